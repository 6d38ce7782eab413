"""vLLM, and the router that the harness lends it."""
