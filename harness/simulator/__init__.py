"""A server process without a GPU that speaks LightLLM's command line, log and HTTP API, with faults to plant.

It exists to test the harness. Nothing that it measures says anything about LightLLM.
"""
