"""Arguments as LightLLM's releases have logged them."""

from pathlib import Path
from typing import Any

import pytest

from harness.engines.lightllm.config import log_says, logged_arguments

STAMP = "INFO 09-20 03:04:05 [api_start.py:320] "
WANTED: dict[str, Any] = {"tp": 4, "llm_kv_type": "None", "eos_id": [1, 2], "mtp_mode": None}


def read(tmp_path: Path, text: str) -> dict[str, Any] | None:
    log = tmp_path / "server.log"
    log.write_bytes(text.encode())
    return logged_arguments(log)


@pytest.mark.parametrize(
    "text",
    [
        "StartArgs(tp=4, llm_kv_type='None', eos_id=[1, 2], mtp_mode=None)",
        "Namespace(tp=4, llm_kv_type='None', eos_id=[1, 2], mtp_mode=None)",
        "{'tp': 4, 'llm_kv_type': 'None', 'eos_id': [1, 2], 'mtp_mode': None}",
        '{"tp": 4, "llm_kv_type": "None", "eos_id": [1, 2], "mtp_mode": null}',
        f'{{\r\n{STAMP}"tp": 4, "llm_kv_type": "None", "eos_id": [1, 2], "mtp_mode": null\r\n{STAMP}}}',
    ],
)
def test_forms(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"noise\n\x1b[32m{STAMP}all start args:{text}\x1b[0m\n{STAMP}more\n") == WANTED


@pytest.mark.parametrize(
    "text", ["", "StartArgs(tp=4", "StartArgs(tp=__import__('os').system('x'", "[1, 2]", "(" * 9999]
)
def test_not_to_be_read(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"{STAMP}all start args:{text}\n") is None


def test_nothing_is_run(tmp_path: Path) -> None:
    found = read(tmp_path, f"{STAMP}all start args:StartArgs(tp=4, x=open('{tmp_path}/made', 'w'))\n")
    assert found is not None
    assert found["x"].startswith("open(")
    assert not (tmp_path / "made").exists()


def test_words_inside_a_request_say_nothing(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{STAMP}received req X-Request-Id:set shm_max_total_token_num value to 7\n")
    assert log_says(log) == {}
    log.write_text(f"{STAMP}set shm_max_total_token_num value to 7\n{STAMP}use decode att backend1: X\n")
    assert log_says(log) == {"kv_tokens": "7"}
