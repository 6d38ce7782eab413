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
from pathlib import Path
from typing import Any

from harness.engines.arguments import DATA, ArgumentList
from harness.engines.base import Launch
from harness.engines.environment import faked
from harness.engines.flags import check, given
from harness.engines.installed import Installed, ask_installed, commit_of
from harness.errors import ConfigError
from harness.host.hub import hub_cache
from harness.host.paths import expanded, is_file, is_folder

PROBE = DATA / "parse_probe.py"
PROBE_TIMEOUT_S = 180.0  # an engine imported from a slow network disk
ONE_PLACE = "flags in another file are neither checked nor compared; write them into the scenario"
PLAIN_HTTP = "the harness talks plain HTTP, without a key, on the loopback address"


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
        found = self.installed(launch)
        if not self._has(found):
            return None
        commit = commit_of(found.folder) if found.folder else ""
        if found.version and commit:
            return f"{found.version} ({commit})"
        return found.version or commit or "unknown"

    def installed(self, launch: Launch) -> Installed:
        """What the interpreter has of the engine."""
        return ask_installed(
            self.interpreter(launch), (self.name, *self.distributions), self._search_path(launch)
        )

    def _has(self, found: Installed) -> bool:
        return bool(found.version or (self.parser_file and found.folder))

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
        found, python = self.installed(launch), self.interpreter(launch)
        if not self._has(found) or (self.parser_file and not _holds(found.folder, self.parser_file)):
            return ArgumentList.load(self.name)
        version = found.version or "unknown"
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
        if mute := self.installed(launch).mute:
            what = f"{python} does not say whether it has {self.name}: {mute}"
            return [f"{what}; name a Python interpreter with `python:` or {self.variable}"]
        if not self._has(self.installed(launch)):
            elsewhere = f"name another with `python:` or {self.variable}"
            return [f"{python} has no {self.name}; {self.remedy}, or {elsewhere}"]
        return []


def _holds(folder: Path | None, file: str) -> bool:
    return folder is not None and is_file(folder / file)


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
                stdin=subprocess.DEVNULL,
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
