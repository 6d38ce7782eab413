"""A server process without a GPU that speaks LightLLM's command line, log and HTTP API, with faults to plant.

It exists to test the harness. Nothing that it measures says anything about LightLLM. It is launched as the
real server is, with its shim package on the path:

    PYTHONPATH=harness/simulator/site HARNESS_SIMULATOR=told.json \\
        python -m lightllm.server.api_server --model_dir MODEL --port 18000

Prefill/decode disaggregation is three of these, told apart by `--run_mode`: see `pd`.

`importlib.metadata` then says that lightllm is `2026.9+simulator`. Any folder with a `config.json` is a
model; what is told beside the command line is in `settings`, the faults are in `faults`.
"""
