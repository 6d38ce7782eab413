"""Engines as Python packages: found, asked once, and believed only while unchanged."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.engines import installed, python_engine
from harness.engines.base import Launch
from harness.engines.python_engine import PythonEngine
from harness.errors import ConfigError
from tests.host.test_git import git

ENGINE = PythonEngine(
    name="sglang",
    distributions=("sglang-nightly", "sglang"),
    remedy="build it",
    owned=("--model-path", "--port"),
    refused={"--api-key": "no keys"},
    fakes=("SGLANG_TEST_",),
    forcing=("SGLANG_TEST_RETRACT",),
)
PARSER = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        print("noise")
        parser.add_argument("--model-path", "--model", required=True)
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--api-key")
        parser.add_argument("--load-format", choices=["auto", "dummy"])
        parser.add_argument("--pages", type=int, nargs="+")
        parser.add_argument("--eager", action="store_true")
        parser.add_argument("--plugin", action="append")
        parser.add_argument("--object", type=__import__("json").loads)
        parser.add_argument("--old", action="store_true", help="Deprecated. Use --eager.")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for PYTHONPATH with a little `sglang` 9.9 in it; the cache is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_SGLANG_PYTHON", raising=False)
    for name in [name for name in os.environ if name.startswith("SGLANG_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "site"
    (site / "sglang" / "srt").mkdir(parents=True)
    for package in (site / "sglang", site / "sglang" / "srt"):
        (package / "__init__.py").touch()
    (site / "sglang" / "srt" / "server_args.py").write_text(PARSER)
    (site / "sglang-9.9.dist-info").mkdir()
    (site / "sglang-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang\nVersion: 9.9\n"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return site


def launch(site: Path, *, python: str | None = sys.executable, model: str = "", **flags: object) -> Launch:
    return Launch(
        lane="lane",
        role="normal",
        model_path=model or str(site.parent / "model"),
        served_name="model",
        flags={f"--{name.replace('_', '-')}": value for name, value in flags.items()},  # type: ignore[misc]
        env={"PYTHONPATH": str(site)},
        ports={"http": 20399},
        folder=site,
        python=python,
    )


def problems(started: Launch) -> list[str]:
    return ENGINE.problems(started, started.env)


@pytest.mark.process
def test_the_interpreters_own_parser_is_asked(site: Path) -> None:
    started = launch(site, pages=[1, 2], eager=True)
    assert ENGINE.version(started) == "9.9"
    arguments = ENGINE.arguments(started, started.env)
    assert arguments.source == f"sglang 9.9 in {sys.executable}"
    assert arguments.flags[:2] == ("--model-path", "--model")
    assert "--help" not in arguments.flags
    pages = arguments.find("--pages")
    assert pages is not None
    assert (pages.type, pages.nargs) == ("int", "+")
    plugin, old, eager = (arguments.find(flag) for flag in ("--plugin", "--old", "--eager"))
    assert plugin is not None
    assert plugin.repeats
    assert old is not None
    assert old.deprecated == "Deprecated. Use --eager."
    assert eager is not None
    assert eager.bare
    assert problems(started) == []
    assert problems(launch(site, object="{'a': 1}")) == ["--object takes JSON, and this is none: {'a': 1}"]
    assert problems(launch(site, page=[1])) == ["--page is an abbreviation of --pages; write it out"]
    assert problems(launch(site, kv_cache_dtype="auto"))[0].startswith(
        "sglang has no flag --kv-cache-dtype (sglang 9.9"
    )


@pytest.mark.process
def test_the_answer_is_kept_until_a_source_file_changes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = python_engine._ask_parser

    def counting(*args: object) -> object:
        asked.append("")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(python_engine, "_ask_parser", counting)
    started = launch(site)
    first = ENGINE.arguments(started, started.env)
    assert ENGINE.arguments(started, started.env) == first
    assert len(asked) == 1
    (site / "sglang" / "srt" / "server_args.py").write_text(PARSER + "# changed\n")
    assert ENGINE.arguments(started, started.env) == first
    assert len(asked) == 2


@pytest.mark.process
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"sources": {}}', '{"sources": {}, "options": [{"flags": 3}]}']
)
def test_a_spoilt_cache_is_asked_anew(site: Path, text: str) -> None:
    started = launch(site)
    first = ENGINE.arguments(started, started.env)
    (cache,) = (site.parent / "cache" / "harness" / "arguments").iterdir()
    cache.write_text(text)
    assert ENGINE.arguments(started, started.env) == first


@pytest.mark.process
def test_a_cache_that_cannot_be_written_is_no_error(site: Path) -> None:
    (site.parent / "cache").write_text("a file where the folder should be")
    started = launch(site)
    assert ENGINE.arguments(started, started.env).find("--pages") is not None


@pytest.mark.process
def test_an_engine_that_cannot_be_imported_is_a_problem(site: Path) -> None:
    (site / "sglang" / "srt" / "server_args.py").write_text("import no_such_module_at_all\n")
    started = launch(site, bogus=1)
    with pytest.raises(ConfigError, match="cannot build its argument parser"):
        ENGINE.arguments(started, started.env)
    (problem,) = problems(started)
    assert "no_such_module_at_all" in problem
    assert not (site.parent / "cache" / "harness").exists()


@pytest.mark.process
def test_a_parser_that_hangs_is_a_problem(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_engine, "PROBE_TIMEOUT_S", 0.5)
    (site / "sglang" / "srt" / "server_args.py").write_text("import time\ntime.sleep(60)\n")
    assert "did not build its argument parser within" in problems(launch(site))[0]


@pytest.mark.process
def test_without_the_engine_the_packaged_list_is_used_and_said(site: Path) -> None:
    started = launch(site, kv_cache_dtype="fp8")
    bare = Launch(
        **{**{name: getattr(started, name) for name in Launch.__slots__}, "env": {"PYTHONPATH": ""}}
    )
    assert ENGINE.version(bare) is None
    assert ENGINE.arguments(bare, bare.env).source == "packaged list of sglang 0.5.23"
    missing, choice = problems(bare)
    assert missing.startswith(f"{sys.executable} has no sglang; build it, or name another")
    assert choice.startswith("--kv-cache-dtype has no choice `fp8`")


@pytest.mark.process
def test_interpreter_that_does_not_exist(site: Path) -> None:
    found = problems(launch(site, python=str(site / "nowhere" / "python")))
    assert found == [
        f"there is no interpreter {site}/nowhere/python for sglang; set `python:` or HARNESS_SGLANG_PYTHON"
    ]


def test_where_the_interpreter_is_looked_for(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_engine, "__file__", str(site / "a" / "b" / "python_engine.py"))
    unnamed = launch(site, python=None)
    assert ENGINE.interpreter(unnamed) == sys.executable
    lab = site.parent / ".labs" / "sglang" / "bin" / "python"
    lab.parent.mkdir(parents=True)
    lab.symlink_to(sys.executable)
    assert ENGINE.interpreter(unnamed) == str(lab)  # not resolved: the link's place makes the environment
    monkeypatch.setenv("HARNESS_SGLANG_PYTHON", "~/py/bin/python")
    assert ENGINE.interpreter(unnamed) == str(Path.home() / "py/bin/python")
    assert ENGINE.interpreter(launch(site, python="python3.11")) == "python3.11"
    assert ENGINE.interpreter(launch(site, python="venv/bin/python")) == str(site.parent / "venv/bin/python")


@pytest.mark.process
def test_models_that_are_not_there(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no model" in problems(launch(site, model=str(site / "none")))[0]
    assert "no config.json" in problems(launch(site, model=str(site)))[0]
    monkeypatch.setenv("HF_HUB_CACHE", str(site))
    assert "there is no model org/name" in problems(launch(site, model="org/name"))[0]
    (site / "models--org--name").mkdir()
    assert problems(launch(site, model="org/name")) == []


@pytest.mark.process
def test_what_may_not_be_measured(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(launch(site, api_key="x")) == ["--api-key: no keys"]
    assert "random weights" in problems(launch(site, load_format="dummy"))[0]
    monkeypatch.setenv("SGLANG_TEST_STUCK_TOKENIZER", "1")
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    monkeypatch.setenv("SGLANG_TEST_OFF", "0")
    (problem,) = problems(launch(site))
    assert problem.startswith("SGLANG_TEST_STUCK_TOKENIZER is set to `1`")


@pytest.mark.process
def test_an_editable_checkout_is_known_by_its_commit(site: Path, tmp_path: Path) -> None:
    """Its metadata, made when it was installed, says the same for every commit since."""
    top = tmp_path / "top"
    top.mkdir()
    site.rename(top / "python")
    git(top, "init", "--quiet")
    git(top, "add", "python/sglang")
    git(top, "commit", "--quiet", "--message", "first")
    git(top, "tag", "v9.9")
    (top / "python" / "sglang-9.9.dist-info").rename(tmp_path / "sglang-9.9.dist-info")
    path = os.pathsep.join([str(top / "python"), str(tmp_path)])
    started = replace(launch(site), env={"PYTHONPATH": path})
    assert ENGINE.version(started) == "9.9 (v9.9)"
    (top / "python" / "sglang" / "srt" / "server_args.py").write_text(PARSER + "# changed\n")
    assert ENGINE.version(started) == "9.9 (v9.9-dirty)"  # between two lanes of one run
    assert ENGINE.arguments(started, started.env).source == f"sglang 9.9 in {sys.executable}"
    (top / "python" / "other-1.dist-info").mkdir()  # packages are installed there
    assert ENGINE.version(started) == "9.9"


def _answering(site: Path, script: str) -> Launch:
    python = site / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return launch(site, python=str(python))


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("printf 'caf\\351 \\377\\n'", "it answered: caf"),
        ("echo hello; echo world", "it answered: world"),
        ("echo 3", "it answered: 3"),
        ("echo no such option >&2; exit 2", "it answered: no such option"),
        ("exit 0", "it answered: nothing"),
        ("cat", "it answered: nothing"),  # does not wait for the person at the terminal
    ],
)
def test_an_interpreter_that_is_none(site: Path, script: str, why: str) -> None:
    started = _answering(site, script)
    assert ENGINE.version(started) is None
    (problem,) = problems(started)
    assert f"{site}/python does not say whether it has sglang: {why}" in problem


@pytest.mark.process
def test_an_interpreter_that_hangs_is_asked_once(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "TIMEOUT_S", 0.3)
    began = time.monotonic()
    started = _answering(site, "echo x >> asked; exec sleep 60".replace("asked", str(site / "asked")))
    assert [ENGINE.version(started), ENGINE.version(started)] == [None, None]
    (problem,) = problems(started)
    assert "it did not answer within 0 s" in problem
    assert (site / "asked").read_text() == "x\n"
    assert time.monotonic() - began < 20


@pytest.mark.process
def test_a_start_that_prints_does_not_hide_the_answer(site: Path) -> None:
    started = _answering(site, f'echo banner; exec {sys.executable} "$@"')
    assert ENGINE.version(started) == "9.9"
