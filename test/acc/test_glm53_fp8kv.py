"""Prefix cache of a running LightLLM at the page boundaries of 2304 to 2307 tokens; with `--cpu-cache` also
what comes back from the CPU tier; with `--reference` the outputs of an earlier run, for prefill/decode nodes.

    python test/acc/test_glm53_fp8kv.py --url http://127.0.0.1:8000 --model-dir DIR --output cache.json \
        [--cpu-cache --server-log server.log] [--reference OTHER.json] [--evict-prompts N]

Needs the harness and the model's tokenizer, not LightLLM. The exit code is the verdict's: 0 passed, 1 failed,
3 inconclusive, 5 not sound or not exercised.
"""

import sys

from cold_reference import KIND as COLD_REFERENCE
from cold_reference import cold_reference
from running_server import RunningServer, arguments, connect, main, report, run_check, say, unpack_reference

from harness.engines.lightllm.adapter import Lightllm
from harness.errors import TargetError

BOUNDARY, RELOAD = "cache-boundary", "cpu-reload"
LENGTHS, OUTPUT = (2304, 2305, 2306, 2307), 32
RELOADED = 2305  # 2304 are whole pages of the GPU's cache and of the CPU's: a hit in either leaves one token
parser = arguments("Prefix cache at page boundaries, alone and all at once.")
parser.add_argument("--cpu-cache", action="store_true", help="also what is copied back from the CPU tier")
parser.add_argument(
    "--evict-prompts", type=int, help="prompts that empty the GPU's cache (default: computed)"
)


def run() -> int:
    given = parser.parse_args()
    if given.cpu_cache and given.server_log is None:
        parser.error("--cpu-cache needs --server-log: only the log tells the tiers apart")
    if given.evict_prompts is not None and not given.cpu_cache:
        parser.error("--evict-prompts is for --cpu-cache")
    server = connect(given)
    results = {}
    if given.reference is not None:  # first, while its prompts are cold
        folder = unpack_reference(server, given.reference, BOUNDARY)
        results[COLD_REFERENCE] = cold_reference(server, folder)
    results[BOUNDARY] = run_check(server, BOUNDARY, lengths=LENGTHS, together=_holds_all(server))
    if given.cpu_cache:
        evict = "computed" if given.evict_prompts is None else given.evict_prompts
        results[RELOAD] = run_check(server, RELOAD, evict=evict, length=RELOADED)
    return report(server, results)


def _holds_all(server: RunningServer) -> bool:
    """Whether the GPU's cache holds all prompts at once: else none of them could be warm together. A P/D
    master does not tell; its nodes are never that small."""
    if server.view.role == "master":
        return True
    try:
        capacity = Lightllm().capacity(server.view.config).device
    except TargetError as error:  # it was profiled, and only the log tells it
        say(f"not asked all at once: {error.what}; give --server-log", to=sys.stderr)
        return False
    return capacity is None or capacity > sum(length + OUTPUT for length in LENGTHS)


if __name__ == "__main__":
    main(run, lambda: parser.parse_args().output)
