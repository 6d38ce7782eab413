"""The flags of a llama.cpp lane: what the embedded server takes, what the user's own program says it takes,
and what the general check of flags cannot know."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from harness.engines.arguments import Argument, ArgumentList
from harness.engines.flags import check, given
from harness.engines.llamacpp.llama_server import BY_NAME, OPTIONS, Option
from harness.host.paths import is_file
from harness.scenario.model import FlagValue

HELP_TIMEOUT_S = 30.0
OWNED = ("--model", "--host", "--port", "--alias", "--metrics")
ONE_WAY_IN = "the harness talks plain HTTP, without a key, on the port that it leased"
ONE_LOG = "the harness reads readiness, causes and proofs from the log"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("--api-key", "--api-key-file", "--api-prefix", "--reuse-port", "--ssl-key-file", "--ssl-cert-file"),
        ONE_WAY_IN,
    ),
    **dict.fromkeys(("--log-disable", "--log-file", "--log-jsonl"), ONE_LOG),
    "--models-dir": "a lane serves one model",
    "--models-preset": "a lane serves one model",
    "--sleep-idle-seconds": "a server that went to sleep would answer late",
}
# `-c,    --ctx-size N         size of the prompt context`, from the first column
_NAMES = re.compile(r"(?P<names>-[\w.-]+(?:, +-[\w.-]+)*)(?: (?P<value>\S+(?: \S+)*))?(?:\s{2,}.*)?")
_CHOICES = re.compile(r"\[([\w-]+(?:\|[\w-]+)+)\]|\{([\w-]+(?:,[\w-]+)+)\}|<([\w-]+(?:\|[\w-]+)+)>")


def embedded(version: str) -> ArgumentList:
    """What the embedded server takes."""
    return ArgumentList(
        engine="llamacpp",
        version=version,
        source=f"the embedded llama.cpp server, xllamacpp {version}",
        dotted=False,
        options=tuple(_argument(options) for options in _by_field().values()),
    )


@lru_cache
def of_program(program: str) -> ArgumentList:
    """What the user's `llama-server` lists under `--help`; the embedded server's list where it does not."""
    text = ask(program, "--help")
    listed = tuple(_listed(text))
    if not listed:
        source = f"the embedded server's list: {program} --help tells nothing"
        return embedded("").model_copy(update={"source": source})
    source = f"{program} --help"
    return ArgumentList(engine="llamacpp", version="", source=source, dotted=False, options=listed)


def ask(program: str, flag: str) -> str:
    """What the program prints for `--help` or `--version`; empty when it cannot be run."""
    try:
        done = subprocess.run(
            [program, flag],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=HELP_TIMEOUT_S,
            cwd="/",
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):  # ValueError: a zero byte in the name
        return ""
    return done.stdout + done.stderr


def flag_problems(flags: Mapping[str, FlagValue], arguments: ArgumentList, cpus: int) -> list[str]:
    """Everything that is wrong with the flags; `cpus` are the leased cores, 0 while none are."""
    found = check(flags, arguments, OWNED)
    found += (f"{flag}: {why}" for flag, why in REFUSED.items() if given(flags, flag) is not None)
    for flag, value in flags.items():
        option = BY_NAME.get(flag)
        if option is not None and arguments.find(flag) is not None:
            found += _value_problems(flag, value, option)
    draft, kinds = (given(flags, *BY_NAME[name].names) for name in ("--model-draft", "--spec-type"))
    if draft is not None and kinds is None and arguments.find("--spec-type"):
        found.append(
            "--model-draft without --spec-type is loaded and never used; say `draft-simple`, or another"
        )
    threads = given(flags, *BY_NAME["--threads"].names)
    if isinstance(threads, int) and 0 < cpus < threads:
        found.append(
            f"--threads {threads} on {cpus} leased cores would crawl: OpenMP threads wait for one another; "
            "lease more with `cpus:`, or leave the flag out"
        )
    return found


def inherited_flags(environment: Mapping[str, str]) -> list[str]:
    """Sentences about variables that llama-server takes for flags: they would bypass the scenario."""
    names = sorted(name for name in environment if name.startswith("LLAMA_ARG_") or name == "LLAMA_API_KEY")
    return [
        f"{name} is set: llama-server takes it for a flag; write the flag into the scenario" for name in names
    ]


def _by_field() -> dict[str, list[Option]]:
    """An option and its opposite set one field, so that they are one argument."""
    fields: dict[str, list[Option]] = {}
    for option in OPTIONS:
        fields.setdefault(option.field, []).append(option)
    return fields


def _argument(options: list[Option]) -> Argument:
    first = options[0]
    return Argument(
        flags=tuple(name for option in options for name in option.names),
        type=first.kind if first.kind in ("int", "float") else "",
        nargs=0 if first.kind in ("on", "off") else None,
        choices=() if first.several else first.choices,
    )


def _listed(text: str) -> Iterator[Argument]:
    for line in text.splitlines():
        match = _NAMES.fullmatch(line)
        if match is None:
            continue
        names = tuple(re.split(r", +", match["names"]))
        hint = match["value"] or ""
        known = next((BY_NAME[name] for name in names if name in BY_NAME), None)
        choices = _CHOICES.fullmatch(hint)
        yield Argument(
            flags=names,
            type=known.kind if known and hint and known.kind in ("int", "float") else "",
            nargs=(len(hint.split()) if " " in hint else None) if hint else 0,
            choices=tuple(re.split(r"[|,]", next(filter(None, choices.groups())))) if choices else (),
        )


def _value_problems(flag: str, value: FlagValue, option: Option) -> Iterator[str]:
    """What the general check cannot see: YAML's `off`, folders, comma lists, a draft model's file."""
    if value is False and "off" in option.choices:
        yield f"{flag}: YAML reads off as false, which takes the flag out; write `{flag}: 'off'`, or null"
    if value is True and "on" in option.choices:
        yield f"{flag}: YAML reads on as true, which is a bare flag; write `{flag}: 'on'`"
    if isinstance(value, str) and (option.several or option.kind == "folder"):
        try:
            option.parse(value)
        except ValueError as error:
            yield f"{flag}: {error}"
    if isinstance(value, str) and "--model-draft" in option.names and not is_file(Path(value)):
        yield f"{flag}: there is no draft model {value}"
