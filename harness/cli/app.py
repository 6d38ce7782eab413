"""`main`: hands over to typer, and turns every foreseen error into a message and an exit code."""

import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType

import typer

from harness import __version__
from harness.cli import inspect, run
from harness.errors import ConfigError, HarnessError, Interrupted, Problem, TargetError
from harness.report.text import safe_block
from harness.verdict import EXIT_INTERRUPTED, EXIT_USAGE, Verdict, exit_code

app = typer.Typer(
    name="harness",
    help="End-to-end regression harness for LLM inference servers: launch, prove, evaluate, pair, judge.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
run.register(app)
inspect.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Exit codes: 0 PASS or REPORTED, 1 FAIL, 2 usage, 3 SKIPPED or INCONCLUSIVE (or REPORTED where a gate
    is required), 4 INFRA, 5 INVALID, 130 interrupted."""


def main() -> None:
    """Entry point of the program; never shows a traceback for a foreseen error."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)  # typer would swallow a KeyboardInterrupt without a word
    try:
        app()
    except Problem as problem:
        typer.echo(f"harness: {safe_block(str(problem))}", err=True)
        sys.exit(_code(problem))
    except (Interrupted, KeyboardInterrupt):
        typer.echo("harness: interrupted; nothing is left running", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except Exception:  # noqa: BLE001 - a bug of ours: told as such, and never as exit 1, the engine's fault
        place = Path(tempfile.gettempdir()) / f"harness-crash-{os.getpid()}.txt"
        place.write_text(traceback.format_exc(), encoding="utf-8")
        typer.echo(f"harness: internal error, please report it with {place}", err=True)
        sys.exit(exit_code(Verdict.INFRA))


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    raise Interrupted(f"interrupted by {signal.Signals(number).name}")


def _code(problem: Problem) -> int:
    match problem:
        case ConfigError():
            return EXIT_USAGE
        case TargetError():
            return exit_code(Verdict.FAIL)
        case HarnessError():
            return exit_code(Verdict.INFRA)
        case _:
            return exit_code(Verdict.INFRA)
