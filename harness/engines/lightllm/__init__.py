"""LightLLM."""
