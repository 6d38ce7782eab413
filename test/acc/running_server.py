"""What the scripts beside this file share: the harness's checks against a LightLLM that is running already.

The raw evidence of each check is kept in a folder beside the output file (`cache.json` has
`cache.evidence/`); the output file has all of it again, with the verdict, and may be handed to `--reference`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from harness.checks import CHECKS
from harness.checks.base import CheckContext, Command, ServerView
from harness.checks.exchange import EXCHANGES, FACTS, MARKS
from harness.checks.prompts import tokenizer_problem
from harness.engines import ENGINES
from harness.engines.client import Client
from harness.errors import ConfigError, Problem
from harness.evidence.files import write_atomic, write_json
from harness.evidence.record import CheckResult
from harness.findings import Finding, verdict_of
from harness.verdict import EXIT_USAGE, Verdict, exit_code, worst

ENGINE = ENGINES["lightllm"]
HERE, REFERENCE = "server", "reference"  # the two lanes, as checks see them


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server, what it resolved, and where the evidence goes."""

    url: str
    view: ServerView
    served_name: str
    model_dir: Path
    output: Path

    @property
    def evidence(self) -> Path:
        return self.output.with_suffix(".evidence")

    def context(self, kind: str) -> CheckContext:
        """For one check, with an empty folder."""
        folder = self.evidence / HERE / kind
        folder.mkdir(parents=True, exist_ok=True)
        return CheckContext(
            engine=ENGINE,
            base_url=self.url,
            served_name=self.served_name,
            folder=folder,
            server_log=self.view.log,
            start_command=_no_programs,
            progress=lambda done, total: say(f"{kind}: {done} of {total}", to=sys.stderr),
            servers=(self.view,),
            model_path=str(self.model_dir),
        )


def arguments(description: str) -> argparse.ArgumentParser:
    """The flags that both scripts have."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--url", required=True, help="the running server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--model-dir", required=True, type=Path, help="its model's directory, for the tokenizer"
    )
    parser.add_argument("--output", required=True, type=Path, help="where to write the result, as JSON")
    parser.add_argument("--server-log", type=Path, help="the server's log; LIGHTLLM_LOG_LEVEL must be debug")
    parser.add_argument("--reference", type=Path, help="--output of an earlier run, to compare with")
    return parser


def connect(given: argparse.Namespace) -> RunningServer:
    """Raises Problem when the server does not answer as a LightLLM does, or a file is missing."""
    url = str(given.url).rstrip("/")
    if not given.model_dir.is_dir():
        raise ConfigError(f"--model-dir: there is no directory {given.model_dir}")
    if problem := tokenizer_problem(given.model_dir, server_tells=False):
        raise ConfigError(f"--model-dir: {problem}")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url: {url} does not begin with http://")
    if given.server_log is not None and not given.server_log.is_file():
        raise ConfigError(f"--server-log: there is no file {given.server_log}")
    log = given.server_log or given.output.with_suffix(".no-log")  # a log that is not there says nothing
    with Client(url) as client:
        served = ENGINE.served_model(client)
        config = ENGINE.effective_config(client, log)
    role = "master" if config.get("run_mode") == "pd_master" else "normal"
    view = ServerView(role=role, engine=ENGINE, base_url=url, log=log, config=config)
    return RunningServer(url, view, served.name, given.model_dir, given.output)


def unpack_reference(server: RunningServer, file: Path, kind: str) -> Path:
    """Lay the evidence of an earlier run out as that of another lane. Raises ConfigError."""
    folder = server.evidence / REFERENCE / kind
    try:
        kept = json.loads(file.read_bytes())["checks"][kind]
        for name in (EXCHANGES, MARKS):
            write_atomic(folder / name, "".join(json.dumps(line) + "\n" for line in kept[name]))
        write_json(folder / FACTS, kept[FACTS])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"--reference: {file} is no output of a script here with a check `{kind}`: {error!r}"
        raise ConfigError(what) from error
    return folder


def run_check(server: RunningServer, kind: str, **params: Any) -> CheckResult:
    """Collect and judge one check of the harness. A server that dies meanwhile is a finding."""
    check = CHECKS[kind]
    try:
        parsed = check.params.model_validate(params)
    except ValidationError as error:
        raise ConfigError(f"{kind}: {error}") from error
    if problems := check.problems(parsed):
        raise ConfigError(f"{kind}:", problems=tuple(problems))
    context = server.context(kind)
    return judged(lambda: check.collect(parsed, context, None), lambda: check.judge(parsed, context.folder))


def judged(collect: Callable[[], None], judge: Callable[[], CheckResult]) -> CheckResult:
    """What was collected is judged, also when collecting came to an early end."""
    cause: list[Finding] = []
    try:
        collect()
    except Problem as problem:
        cause = [problem.finding()]
    result = judge()
    return result.model_copy(
        update={"findings": cause + result.findings, "verdict": verdict_of(cause, result.verdict)}
    )


def report(server: RunningServer, results: Mapping[str, CheckResult]) -> int:
    """Write the output file and a short text; the exit code of the verdict."""
    verdict = worst(result.verdict for result in results.values())
    checks = {kind: _with_evidence(result, server.evidence / HERE / kind) for kind, result in results.items()}
    told = {"url": server.url, "model": server.served_name, "config": dict(server.view.config)}
    write_json(server.output, {"verdict": verdict, "server": told, "checks": checks})
    say(f"{verdict}  {server.output}")
    for kind, result in results.items():
        numbers = "  ".join(f"{name}={value}" for name, value in result.metrics.items())
        say(f"  {kind}: {result.verdict}  {numbers}")
        for finding in result.findings:
            say(f"    {finding.code}: {finding.message} [{finding.where}]")
    return exit_code(verdict)


def main(run: Callable[[], int], output: Callable[[], Path]) -> NoReturn:
    """Run a script; a foreseen problem is told, and put on file, instead of a traceback."""
    try:
        code = run()
    except ConfigError as problem:
        say(str(problem), to=sys.stderr)
        code = EXIT_USAGE
    except Problem as problem:
        finding = problem.finding()
        verdict = verdict_of([finding], Verdict.REPORTED)
        write_json(output(), {"verdict": verdict, "findings": [finding.model_dump()], "checks": {}})
        say(str(problem), to=sys.stderr)
        code = exit_code(verdict)
    sys.exit(code)


def say(text: str, to: Any = None) -> None:
    (to or sys.stdout).write(text + "\n")


def _with_evidence(result: CheckResult, folder: Path) -> dict[str, Any]:
    """The result, and the files it was judged from."""
    kept: dict[str, Any] = result.model_dump(mode="json")
    for name in (EXCHANGES, MARKS):
        lines = (folder / name).read_text(encoding="utf-8").splitlines() if (folder / name).is_file() else []
        kept[name] = [json.loads(line) for line in lines]
    facts = folder / FACTS
    kept[FACTS] = json.loads(facts.read_bytes()) if facts.is_file() else None
    return kept


def _no_programs(argv: Sequence[str], env: Mapping[str, str], log: Path) -> Command:
    del env, log
    raise ConfigError(f"no check of these scripts starts a program: {argv[0]}")
