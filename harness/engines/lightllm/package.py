"""LightLLM as a Python package, and which of its flags a lane may not give."""

from harness.engines.python_engine import ONE_PLACE, PythonEngine

ONE_MACHINE = (
    "a lane's servers run on this machine; a LightLLM of several nodes waits for ever for the others"
)
OTHER_ANSWERS = "its answers have another form, which is not read here"
PACKAGE = PythonEngine(
    name="lightllm",
    distributions=("lightllm",),
    remedy="put a checkout on PYTHONPATH",
    owned=(
        *("--model_dir", "--model_name", "--host", "--port", "--nccl_port"),
        *("--run_mode", "--pd_master_ip", "--pd_master_port"),
    ),
    refused={
        "--hypercorn_config": ONE_PLACE,
        "--performance_mode": "it quietly replaces the batch, chunk and graph sizes; write those out",
        **dict.fromkeys(("--nnodes", "--node_rank", "--nccl_host"), ONE_MACHINE),
        **dict.fromkeys(("--config_server_host", "--use_config_server_to_init_nccl"), ONE_MACHINE),
        **dict.fromkeys(("--use_tgi_api", "--use_reward_model"), OTHER_ANSWERS),
        "--metric_gateway": "nothing is told to anybody during a run",
    },
    fakes=("DEBUG_HEALTHCHECK_RETURN_FAIL",),
    parser_file="server/api_cli.py",
)
