"""What a lane ran on, without its secrets."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.deploy.identity import lane_fingerprint, model_digest
from harness.engines import ENGINES, engine_of, roles_of
from harness.engines.base import Launch
from harness.engines.environment import LEASED
from harness.errors import HarnessError
from harness.evidence.fingerprint import parity_findings
from harness.evidence.record import ServerRecord
from harness.findings import Code
from harness.scenario.model import FlagValue, Lane, ModelSpec, Scalar, ServerSpec
from tests.engines.pd_launch import pd_launch

SECRET = "hf_sesame0000"


def _fingerprint(
    folder: Path,
    flags: dict[str, FlagValue],
    config: dict[str, Scalar | None] | None = None,
    env: dict[str, str] | None = None,
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
    record = ServerRecord(role="normal", engine="vllm", argv=[], env=env or {}, effective_config=config or {})
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


def test_a_directory_named_by_a_flag_counts_only_if_it_holds_a_model(tmp_path: Path) -> None:
    scratch, adapter, model = (tmp_path / name for name in ("scratch", "adapter", "model"))
    for folder in (scratch, adapter, model):
        folder.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    flags: dict[str, FlagValue] = {"--disk_cache_dir": str(scratch), "--lora": str(adapter)}
    before = _fingerprint(model, flags)
    (scratch / "page-1").write_bytes(b"written by the server")
    (adapter / "adapter_model.safetensors").write_bytes(b"other weights")
    after = _fingerprint(model, flags)
    assert {key for key in after if after[key] != before.get(key)} == {"flags.--lora.digest"}


def test_a_model_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "a.safetensors").write_bytes(b"a")
    (weights / "gone.safetensors").symlink_to("/nowhere")  # a half-deleted cache: as if it were not there
    whole = model_digest(weights)
    monkeypatch.setattr(Path, "open", _gone)
    with pytest.raises(HarnessError, match=r"a\.safetensors cannot be read \(No such file") as caught:
        model_digest(weights)
    assert caught.value.code is Code.HOST_FAULT
    monkeypatch.undo()
    assert model_digest(weights) == whole
    assert model_digest(tmp_path / "none") == "missing"


def _gone(file: Path, mode: str) -> None:
    """As if the file had vanished after the folder was listed."""
    raise FileNotFoundError(2, os.strerror(2), str(file))


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out without a word, two models that differ in there would be equal."""
    (tmp_path / "part").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name == "part":
            raise PermissionError(13, os.strerror(13), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(HarnessError, match="part cannot be read"):
        model_digest(tmp_path)


@pytest.mark.parametrize(
    ("engine", "role"), [(engine, role) for engine in ENGINES for role in roles_of(engine)]
)
def test_another_lease_is_no_difference(engine: str, role: str) -> None:
    """Whatever an adapter makes of ports, GPUs and the address, only variables of LEASED may change."""
    flags: dict[str, FlagValue] = {}
    if engine == "vllm" and role != "router":
        flags = {"--kv-transfer-config.kv_connector": "NixlConnector", "--data-parallel-size": 2}
    launch = pd_launch(engine, role, flags, gpus=("0", "1"), cpus=(0, 1))
    ports = {name: port + 100 for name, port in launch.ports.items()}
    other = replace(launch, ports=ports, gpus=("2", "3"), cpus=(2, 3), host="10.0.0.7")
    adapter = engine_of(engine, role)
    one, two = adapter.environment(launch), adapter.environment(other)
    changed = {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)}
    assert "CUDA_VISIBLE_DEVICES" in changed
    assert changed <= LEASED


def test_two_nixl_nodes_on_other_ports_are_alike(tmp_path: Path) -> None:
    sides = []
    for port in (20301, 20401):
        env = {
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
            "VLLM_HOST_IP": f"10.0.0.{port % 7}",
            "VLLM_USE_V1": "1",
        }
        sides.append(_fingerprint(tmp_path, {}, env=env))
    assert sides[0] == sides[1]
    assert sides[0]["env.VLLM_USE_V1"] == "1"
