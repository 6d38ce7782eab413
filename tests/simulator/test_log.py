"""Every line that the simulator writes is one that the real server writes, and the harness reads it so."""

import asyncio
import re
from pathlib import Path

import pytest

from harness.engines.lightllm.log import GRAMMAR
from harness.simulator.log import Log
from tests.simulator.launched import fault, inside, launched, words
from tests.simulator.log_classes import PATTERNS, PREFIX, classes, plain

FEATURES = words(
    "--llm_kv_type fp8kv_dsa --page_size 16 --max_req_total_len 3072 --running_max_req_size 8 "
    "--batch_max_tokens 1024 --chunked_prefill_size 257 --mtp_mode eagle_with_att --mtp_step 2 "
    "--enable_prefill_cudagraph --prefill_cudagraph_max_handle_token 1024 --enable_cpu_cache "
    "--linear_att_hash_page_size 128 --linear_att_page_block_num 2 --cache_placement_strategy legacy "
    "--router_token_ratio 1.0"
)
SMALL_POOL = [*FEATURES, "--max_total_token_num", "4096"]
LOADED = words(
    "all_start_args pid init_ok port_alloc server_start_up server_ready hypercorn_ready kv_final kv_type "
    "mem_manager att_backend graph_ok check_max_len_ok cache_placement cpu_page_size sysv_shm sigterm "
    "http_graceful all_down"
)
SERVED = words(
    "req_received req_done kv_field router_recv router_release http_release access len_repaired paused "
    "recovered paused_gauge ema pool_idle"
)


@pytest.mark.process
@pytest.mark.parametrize("flags", [SMALL_POOL, FEATURES], ids=["small-pool", "profiled"])
def test_start_and_stop(tmp_path: Path, flags: list[str]) -> None:
    with launched(tmp_path, *flags) as server:
        server.ready()
        assert server.end() == 0
    seen = classes(server.log)
    wanted = {*LOADED, *(["kv_profiled", "kv_cell"] if flags is FEATURES else [])}
    assert wanted <= seen.keys()
    assert ("kv_profiled" in seen) == (flags is FEATURES)
    graphs = [re.search(PATTERNS["graph_ok"], line) for line in seen["graph_ok"]]
    assert [found and found["kind"] for found in graphs] == ["repfill cudagraph", "cudagraph"]


@pytest.mark.process
def test_the_harness_reads_it(tmp_path: Path) -> None:
    with launched(tmp_path, *SMALL_POOL) as server:
        server.ready()
        server.generate()
        server.end()
    seen = [rule.label for line in plain(server.log) for rule in GRAMMAR.phases if rule.pattern.search(line)]
    in_order = list(dict.fromkeys(seen))
    assert in_order == [
        *("args", "loading", "kv-cache", "warmup", "graphs", "loaded", "startup", "listening", "stopping"),
    ]
    assert any(GRAMMAR.ready.search(line) for line in plain(server.log))
    assert any(GRAMMAR.detect.search(line) for line in plain(server.log))
    for rule in GRAMMAR.fatal:
        assert not [line for line in plain(server.log) if rule.pattern.search(line)], rule.label


def test_requests_pauses_and_pool() -> None:
    async def run() -> str:
        # Real time goes by: a request ends before the next has come, when there is no time at all.
        async with inside(*SMALL_POOL, settings={"speed": 0.05}) as server:
            for _ in range(30):  # the estimate of output lengths falls, until all eight are admitted
                await server.post("/generate", {"inputs": "short", "parameters": {"max_new_tokens": 8}})
            same = {"max_new_tokens": 512, "min_new_tokens": 512}
            bodies = [{"inputs": f"{n} " + "x" * 254, "parameters": same} for n in range(8)]
            answers = await asyncio.gather(
                *(server.post("/generate", body, x_request_id=f"r{n}") for n, body in enumerate(bodies))
            )
            assert [answer["count_output_tokens"] for answer in answers] == [512] * 8
            await server.post("/generate", {"inputs": "y" * 3000, "parameters": {"max_new_tokens": 512}})
            return server.log

    log = asyncio.run(run())
    # The access line is the HTTP server's, which is not here.
    seen = classes(log)
    assert set(SERVED) - {"access"} <= seen.keys()
    paused = {found["rid"] for line in seen["paused"] if (found := re.search(PATTERNS["paused"], line))}
    recovered = {
        found["rid"] for line in seen["recovered"] if (found := re.search(PATTERNS["recovered"], line))
    }
    received = {}
    for line in seen["req_received"]:
        found = re.search(PATTERNS["req_received"], line)
        assert found
        received[found["rid"]] = found["xid"]
    assert paused
    assert paused == recovered
    assert all(received[rid].startswith("r") for rid in paused)
    assert len(seen["req_received"]) == len(seen["req_done"]) == 39
    done = re.search(PATTERNS["req_done"], seen["req_done"][-1])
    assert done
    assert (int(done["out"]), int(done["prompt"])) == (71, 3001)
    fields = dict(re.findall(PATTERNS["kv_field"], done["rest"]))
    assert float(fields["mtp_avg_token_per_step"]) > 1
    assert {"gpu_prompt_cache_len", "cpu_prompt_cache_len", "disk_prompt_cache_len"} <= fields.keys()


def test_pool_is_whole_when_idle() -> None:
    async def run() -> str:
        async with inside("--max_total_token_num", "4096") as server:
            await server.post("/generate", {"inputs": "z" * 1500, "parameters": {"max_new_tokens": 8}})
            return server.log

    log = asyncio.run(run())
    numbers = {
        name: int(found[1])
        for name in ("radix refed token num", "radix hold token num", "alloc token num", "manager total size")
        if (found := re.search(rf"{name} (\d+)", log))
    }
    assert numbers["radix refed token num"] == 0
    assert (
        numbers["radix hold token num"] + numbers["alloc token num"] == numbers["manager total size"] == 4096
    )


@pytest.mark.process
def test_fatal_line_is_read_as_fatal_and_http_goes_on(tmp_path: Path) -> None:
    with launched(tmp_path, settings=fault("fatal-line-while-serving", after_requests=1)) as server:
        server.ready()
        assert server.generate().status_code == 200
        assert "CUDA error" not in server.log
        assert server.generate().status_code == 200
        server.wait_for("CUDA error")
    assert [rule.label for line in plain(server.log) for rule in GRAMMAR.fatal if rule.pattern.search(line)]


def test_form_of_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTLLM_LOG_LEVEL", "info")
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = Log(file.fileno())
        log.line("DEBUG", "a.py:1", "hidden")
        log.line("INFO", "a.py:2", "one\ntwo \ud800")
        log.trace("impl.py:3", "broken", ValueError("why"))
    lines = path.read_bytes().split(b"\n")
    assert re.fullmatch(rb"INFO \d\d-\d\d \d\d:\d\d:\d\d \[a\.py:2\] one\r", lines[0])
    assert lines[1].endswith(b"[a.py:2] two \\ud800")
    assert lines[-2].endswith(b"[impl.py:3] ValueError: why")
    assert all(PREFIX.match(line.decode().rstrip("\r")) for line in lines[:-1])


@pytest.mark.process
def test_log_folder(tmp_path: Path) -> None:
    with launched(tmp_path, env={"LIGHTLLM_LOG_DIR": str(tmp_path / "logs")}) as server:
        server.ready()
        own = (tmp_path / f"logs/process.{server.process.pid}.log").read_text()
        both = (tmp_path / "logs/default.log").read_text()
    assert "server start up ok" in own
    assert "mode setting params" not in own
    assert "mode setting params" in both
    assert "server start up ok" in both
