"""Engines that are Python packages: which interpreter has them, in which version, and what they accept.

Nothing here imports an engine into this process: its interpreter is asked, in a process of its own.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.engines.arguments import DATA, ArgumentList
from harness.engines.base import Launch
from harness.engines.environment import faked
from harness.engines.flags import check, given
from harness.errors import ConfigError
from harness.host.hub import hub_cache
from harness.host.paths import expanded, is_file, is_folder

PROBE = DATA / "parse_probe.py"
PROBE_TIMEOUT_S = 180.0  # an engine imported from a slow network disk
VERSION_TIMEOUT_S = 30.0
ONE_PLACE = "flags in another file are neither checked nor compared; write them into the scenario"
PLAIN_HTTP = "the harness talks plain HTTP, without a key, on the loopback address"
DESCRIBE_TIMEOUT_S = 5.0  # a checkout on a slow network disk: its commit stays unknown
# Prints a line with the version, and one with the package's folder; either may be empty. Finding a top-level
# package imports nothing.
ASK_INSTALLED = (
    "import importlib.metadata as m, importlib.util as u, sys\n"
    "version = ''\n"
    "for name in sys.argv[2:]:\n"
    "    try: version = m.version(name); break\n"
    "    except m.PackageNotFoundError: pass\n"
    "spec = u.find_spec(sys.argv[1])\n"
    "print(version)\n"
    "print(next(iter(spec.submodule_search_locations or ()), '') if spec else '')\n"
)


@dataclass(frozen=True, slots=True)
class Installed:
    """An engine as its interpreter finds it: its metadata's version, and the package's folder."""

    version: str
    folder: Path | None


@dataclass(frozen=True, slots=True)
class PythonEngine:
    """One engine as a Python package, and the rules for its flags and environment.

    `distributions` are its names on a package index, the usual one first; `remedy` says how to get it.
    `owned` flags are set by the harness, `refused` ones may not be given, for the reason beside them.
    Variables that begin with one of `fakes`, but none of `forcing`, make the server invent its results.
    `parser_file` is for an engine that is mostly run from a checkout, not installed: where its package keeps
    the parser; a package without that file is judged by the packaged list.
    """

    name: str
    distributions: tuple[str, ...]
    remedy: str
    owned: tuple[str, ...]
    refused: Mapping[str, str]
    fakes: tuple[str, ...]
    forcing: tuple[str, ...] = ()
    parser_file: str = ""

    @property
    def variable(self) -> str:
        return f"HARNESS_{self.name.upper()}_PYTHON"

    def interpreter(self, launch: Launch) -> str:
        """The lane's `python`, else the environment variable, else the lab in `.labs/`, else this one."""
        named = launch.python or os.environ.get(self.variable)
        if named:
            path = expanded(named)
            return str(path.absolute()) if len(path.parts) > 1 else named
        project = Path(__file__).resolve().parents[2]
        for root in (Path.cwd(), project):
            lab = root / ".labs" / self.name / "bin" / "python"
            if lab.exists():
                return str(lab)
        return sys.executable

    def version(self, launch: Launch) -> str | None:
        """The installed version, from its metadata, for a git checkout with its commit; `unknown` for one
        that has neither. None when the interpreter lacks the engine."""
        found = self._installed(launch)
        if not self.parser_file or found.folder is None:
            return found.version or None
        commit = _commit(found.folder.parent)
        if found.version and commit:
            return f"{found.version} ({commit})"
        return found.version or commit or "unknown"

    def folder(self, launch: Launch) -> Path | None:
        """Where the interpreter has the package; None when it lacks it."""
        return self._installed(launch).folder

    def _installed(self, launch: Launch) -> Installed:
        return _installed(
            self.interpreter(launch), (self.name, *self.distributions), self._search_path(launch)
        )

    def _search_path(self, launch: Launch) -> str:
        path = launch.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        if self.parser_file:  # `python -m` looks into the current folder first: it may be the checkout
            return os.pathsep.join(filter(None, (str(Path.cwd()), path)))
        return path

    def arguments(self, launch: Launch, environment: Mapping[str, str]) -> ArgumentList:
        """What the interpreter's own engine accepts, else the packaged list; `source` says which.

        Asking takes seconds, so that the answer is kept until one of the engine's files changes. Raises
        ConfigError when the engine is there and cannot build its parser: it could not start either.
        """
        version = self.version(launch)
        if version is None:
            return ArgumentList.load(self.name)
        python, folder = self.interpreter(launch), self._installed(launch).folder
        if self.parser_file and not (folder and (folder / self.parser_file).is_file()):
            return ArgumentList.load(self.name)
        source = f"{self.name} {version} in {python}"
        search_path = self._search_path(launch)
        cache = _cache_file(self.name, version, python, search_path)
        try:
            return ArgumentList.of(self.name, version, source, _kept(cache))
        except ValueError:  # nothing is kept, or it has aged
            environment = {**environment, "PYTHONPATH": search_path}
            dump = _ask_parser(self.name, python, environment, source)
            _keep(cache, dump)
            return ArgumentList.of(self.name, version, source, dump)

    def problems(self, launch: Launch, environment: Mapping[str, str]) -> list[str]:
        """What is wrong with the interpreter, the engine, the model, the flags and the environment."""
        found = self._installation_problems(launch) + _model_problems(launch.model_path)
        try:
            arguments = self.arguments(launch, environment)
        except ConfigError as error:
            found.append(f"{error.what}: {error.fix}")
        else:
            found += check(launch.flags, arguments, self.owned)
        refused = (flag for flag in self.refused if given(launch.flags, flag) is not None)
        found += (f"{flag}: {self.refused[flag]}" for flag in refused)
        if given(launch.flags, "--load-format") == "dummy":
            found.append("--load-format dummy serves random weights; nothing measured on them means anything")
        return found + faked({**os.environ, **environment}, *self.fakes, allowed=self.forcing)

    def _installation_problems(self, launch: Launch) -> list[str]:
        python = self.interpreter(launch)
        if shutil.which(python) is None:
            return [f"there is no interpreter {python} for {self.name}; set `python:` or {self.variable}"]
        if self.version(launch) is None:
            elsewhere = f"name another with `python:` or {self.variable}"
            return [f"{python} has no {self.name}; {self.remedy}, or {elsewhere}"]
        return []


@lru_cache
def _installed(python: str, names: tuple[str, ...], search_path: str) -> Installed:
    """`names` are the package's and then its distributions'."""
    environment = {**os.environ, "PYTHONPATH": search_path}
    command = [python, "-c", ASK_INSTALLED, *names]
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return Installed("", None)
    *_, version, folder = ["", "", *answer.stdout.splitlines()]  # the interpreter's own start may print, too
    return Installed(version, Path(folder) if folder else None)


@lru_cache
def _commit(checkout: Path) -> str:
    """What git calls the commit of a checkout (`v1.2.0-34-g87881ae7c-dirty`); empty if it cannot say."""
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--tags", "--always", "--dirty"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DESCRIBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


def _model_problems(path: str) -> list[str]:
    """Servers are started offline: the weights have to be on this machine."""
    folder = expanded(path)
    if is_file(folder) or any(is_file(folder / name) for name in ("config.json", "params.json")):
        return []
    if is_folder(folder):
        return [f"{path} has no config.json: it is not a model directory"]
    if path.count("/") == 1 and is_folder(hub_cache(os.environ) / f"models--{path.replace('/', '--')}"):
        return []
    return [f"there is no model {path} on this machine (servers are started offline and fetch nothing)"]


def _ask_parser(engine: str, python: str, environment: Mapping[str, str], source: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="harness-arguments-") as folder:
        output = Path(folder) / "arguments.json"
        command = [python, str(PROBE), engine, str(output)]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_TIMEOUT_S,
                cwd=folder,
            )
        except subprocess.TimeoutExpired as error:
            what = f"{source} did not build its argument parser within {PROBE_TIMEOUT_S:.0f} s"
            raise ConfigError(what, fix=f"see what it does: {' '.join(command)}") from error
        if done.returncode or not output.exists():
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            what = f"{source} cannot build its argument parser, so no server would start"
            raise ConfigError(what, fix=f"mend that installation first ({last})")
        dump: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return dump


def _cache_file(engine: str, version: str, python: str, search_path: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    known = [PROBE, *sorted(DATA.glob(f"{engine}-*.json"))]  # the simulator's parser is made from that list
    texts = (path.read_text(encoding="utf-8") for path in known)
    seed = [python, search_path, *texts]  # the path is not resolved: a venv is a link's name
    digest = hashlib.sha256("\0".join(seed).encode()).hexdigest()[:16]
    readable = re.sub(r"[^\w.+-]+", "-", version)
    return root / "harness" / "arguments" / f"{engine}-{readable}-{digest}.json"


def _kept(cache: Path) -> dict[str, Any]:
    """The kept answer. Raises ValueError when there is none, or a source file is not as it was."""
    try:
        dump: dict[str, Any] = json.loads(cache.read_text(encoding="utf-8"))
        for path, (time, size) in dump["sources"].items():
            status = Path(path).stat()
            if (status.st_mtime_ns, status.st_size) != (time, size):
                raise ValueError(f"{path} has changed")
    except (OSError, KeyError, TypeError, AttributeError) as error:  # absent, or of another form
        raise ValueError(f"{cache} is no use: {error}") from error
    return dump


def _keep(cache: Path, dump: dict[str, Any]) -> None:
    """Keep the answer for the next time; a cache that cannot be written costs seconds, never a run."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=cache.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(dump, file)
        Path(name).replace(cache)
    except OSError:
        return
