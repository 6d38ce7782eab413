"""Not LightLLM: the name under which the harness's simulator is launched as the real server is."""
