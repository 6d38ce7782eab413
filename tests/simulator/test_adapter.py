"""The harness's own LightLLM adapter in front of the simulator: two readings of the same facts must agree."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import GenerateRequest, Launch
from harness.engines.client import Client
from harness.engines.lightllm.adapter import Lightllm
from harness.engines.lightllm.traces import leftovers_of
from tests.simulator.launched import SITE, Launched, launched, model_dir, names_of, words

pytestmark = pytest.mark.process
ADAPTER = Lightllm()
FLAGS = words(
    "--llm_kv_type fp8kv_dsa --page_size 16 --max_total_token_num 65536 --max_req_total_len 8192 "
    "--linear_att_hash_page_size 512 --linear_att_page_block_num 2 --mtp_mode eagle_with_att --mtp_step 2 "
    "--enable_cpu_cache --model_name glm53"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launched, Client]]:
    with launched(tmp_path_factory.mktemp("adapter"), *FLAGS) as server:
        server.ready()
        with Client(f"http://127.0.0.1:{server.port}", timeout_s=20) as client:
            yield server, client


def _launch(folder: Path, **flags: Any) -> Launch:
    return Launch(
        lane="lane",
        role="normal",
        model_path=str(model_dir(folder / "model")),
        served_name="glm53",
        flags={name: value for name, value in flags.items() if value is not None},
        env={"PYTHONPATH": str(SITE)},
        ports={"http": 18000, "nccl": 18001},
        folder=folder,
    )


def test_it_is_found_as_an_installed_lightllm(tmp_path: Path) -> None:
    launch = _launch(tmp_path, **{"--tp": 4, "--page_size": 16, "--cache_placement_strategy": "legacy"})
    assert ADAPTER.problems(launch) == []
    assert ADAPTER.version(launch) == "2026.9+simulator"
    assert ADAPTER.arguments(launch).find("--linear_att_hash_page_size") is not None
    assert ADAPTER.problems(_launch(tmp_path, **{"--tpp": 4}))


def test_served_model_and_configuration(served: tuple[Launched, Client]) -> None:
    server, client = served
    model = ADAPTER.served_model(client)
    assert (model.name, model.max_length) == ("glm53", 8192)
    config = ADAPTER.effective_config(client, server.path)
    wanted = {
        "kv_dtype": "fp8kv_dsa",
        "dtype": "bfloat16",
        "kv_tokens": 65536,
        "max_length": 8192,
        "hit_unit": 512,
        "mtp_step": 2,
        "prefill_att_backend": "NsaFlashMlaFp8SparseAttBackend",
        "cpu_cache_token_page_size": 1024,
    }
    assert {name: config[name] for name in wanted} == wanted
    assert ADAPTER.capacity(config).host == config["cpu_tokens"] == 2 * 1024 / 0.01953125 // 1


def test_generation_hits_and_acceptance(served: tuple[Launched, Client]) -> None:
    server, client = served
    config = ADAPTER.effective_config(client, server.path)
    for length in (2304, 2305, 2306, 2307):
        prompt = tuple(32 + (length * number) % 90 for number in range(length))
        made = [
            ADAPTER.generate(
                client,
                GenerateRequest(prompt=prompt, max_tokens=32, ignore_eos=True, request_id=f"{length}-{n}"),
            )
            for n in range(2)
        ]
        assert [one.cached.total for one in made] == [0, ADAPTER.expected_hit(length, config)] == [0, 2048]
        assert made[0].ids == made[1].ids
        accept = made[0].accept
        assert made[0].completion_tokens == 32
        assert accept is not None
        assert accept.steps is not None
        assert accept.accepted is not None
        # The first token comes of the prefill.
        assert accept.steps + accept.accepted in (31, 32)
        assert accept.proposed == 2 * accept.steps
    facts = ADAPTER.log_facts(enumerate(server.log.splitlines(), 1))
    assert {str(length) + "-1" for length in (2304, 2307)} <= facts.requests.keys()


def test_what_it_leaves_behind_is_attributed(served: tuple[Launched, Client]) -> None:
    server, _ = served
    traces = leftovers_of(server.path)
    assert len(traces.unique_ids) == len(traces.sysv_ids) == 1
    names = names_of(next(iter(traces.unique_ids)))
    assert len(names) > 10
    assert all(traces.owns(str(name)) for name in names)


def test_counters(served: tuple[Launched, Client]) -> None:
    _, client = served
    before = ADAPTER.counters(client)
    ADAPTER.generate(client, GenerateRequest(prompt="hello", max_tokens=4))
    after = ADAPTER.counters(client)
    assert after["lightllm_request_count_total"] == before["lightllm_request_count_total"] + 1
