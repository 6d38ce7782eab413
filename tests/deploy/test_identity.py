"""What a lane ran on, without its secrets."""

import json
from pathlib import Path

import pytest

from harness.deploy.identity import lane_fingerprint
from harness.engines.base import Launch
from harness.evidence.fingerprint import parity_findings
from harness.evidence.record import ServerRecord
from harness.scenario.model import FlagValue, Lane, ModelSpec, Scalar, ServerSpec

SECRET = "hf_sesame0000"


def _fingerprint(
    folder: Path, flags: dict[str, FlagValue], config: dict[str, Scalar | None] | None = None
) -> dict[str, Scalar | None]:
    lane = Lane(
        name="a", engine="vllm", model=ModelSpec(path=str(folder), served_name="x"), servers=(ServerSpec(),)
    )
    launch = Launch(
        lane="a",
        role="normal",
        model_path=str(folder),
        served_name="x",
        flags=flags,
        env={},
        ports={},
        folder=folder,
    )
    record = ServerRecord(role="normal", engine="vllm", argv=[], effective_config=config or {})
    return lane_fingerprint(lane, [launch], [record])


def test_secrets_of_flags_and_of_the_resolved_configuration_are_masked(tmp_path: Path) -> None:
    flags: dict[str, FlagValue] = {
        "--hf-token": SECRET,
        "--api-key": [SECRET, "second-key"],
        "--chat-template": f"my {SECRET}",
        "--max-model-len": 4096,
        "--enable-auth": True,
    }
    config: dict[str, Scalar | None] = {
        "server_args.hf_token": SECRET,
        "api_key.0": "another",
        "command": f"serve {SECRET}",
        "max_length": 4096,
        "eos_token": "</s>",
    }
    keys = _fingerprint(tmp_path, flags, config)
    text = json.dumps(keys)
    assert SECRET not in text
    assert "second-key" not in text
    assert "another" not in text
    assert keys["flags.--hf-token"] == keys["config.server_args.hf_token"] == "***"
    assert keys["flags.--api-key"] == '["***", "***"]'
    assert keys["flags.--max-model-len"] == keys["config.max_length"] == 4096
    assert keys["flags.--enable-auth"] is True
    assert keys["config.eos_token"] == "</s>"


def test_a_parity_message_names_no_secret(tmp_path: Path) -> None:
    sides = [_fingerprint(tmp_path, {"--hf-token": SECRET}), _fingerprint(tmp_path, {})]
    (finding,) = parity_findings(sides[0], sides[1], ())
    assert SECRET not in finding.message
    assert finding.where == "flags.--hf-token"


def test_a_short_key_does_not_hide_other_settings(tmp_path: Path) -> None:
    keys = _fingerprint(tmp_path, {"--api-key": "bf16", "--dtype": "bf16"})
    assert keys["flags.--dtype"] == "bf16"
    assert keys["flags.--api-key"] == "***"


def test_what_is_inherited_and_changes_the_numbers_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _fingerprint(tmp_path, {})
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("HOME_SWEET_HOME", "anything")
    told = _fingerprint(tmp_path, {})
    assert {key for key in told if told.get(key) != plain.get(key)} == {"env.NCCL_ALGO"}


def test_a_file_named_by_a_flag_counts_by_its_content(tmp_path: Path) -> None:
    drafter, model = tmp_path / "drafter.bin", tmp_path / "model"
    model.mkdir()
    drafter.write_bytes(b"one")
    before = _fingerprint(model, {"--draft": str(drafter)})
    drafter.write_bytes(b"two")
    after = _fingerprint(model, {"--draft": str(drafter)})
    assert before["flags.--draft"] == after["flags.--draft"]
    assert before["flags.--draft.digest"] != after["flags.--draft.digest"]
