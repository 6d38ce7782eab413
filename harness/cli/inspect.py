"""`judge`, `compare`, `show`, `triage`, `doctor`, `models`: look, and judge what is there."""

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.output import say
from harness.cli.run import JsonOption

RunArgument = Annotated[Path, typer.Argument(help="A run directory, e.g. runs/latest.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("judge")(judge)
    app.command("show")(show)
    app.command("compare")(compare)
    app.command("triage")(triage)
    app.command("doctor")(doctor)
    models = typer.Typer(help="Models that the harness can fetch.", no_args_is_help=True)
    models.command("list")(models_list)
    models.command("pull")(models_pull)
    app.add_typer(models, name="models")


def judge(run: RunArgument = Path("runs/latest")) -> None:
    """Judge a run again from its files alone, and write its summaries anew."""
    from harness.evidence.run_dir import RunDir
    from harness.executors.local import judge_and_report
    from harness.report.summary import render_run

    place = RunDir.open(run)
    with place.hold():
        record = place.read()
        judge_and_report(place, record)
    say(render_run(record, str(place.path)))
    raise typer.Exit(record.exit_code or 0)


def show(run: RunArgument = Path("runs/latest"), as_json: JsonOption = False) -> None:
    """Print the summary of a run as it was judged, or how far it is."""
    from harness.evidence.run_dir import RunDir
    from harness.report.summary import render_run, render_unfinished, summary_json

    place = RunDir.open(run)
    alive = place.alive()  # asked first: a run that ends in between has its end on record
    record = place.read()
    unfinished = record.status == "started" and (alive or record.exit_code is None)
    if as_json:
        state = {"status": "running" if alive else "killed", "verdict": None} if unfinished else {}
        say(json.dumps(summary_json(record) | state, indent=2, ensure_ascii=False))
    elif unfinished:
        say(render_unfinished(place, record, place.pid() if alive else None))
    else:
        say(render_run(record, str(place.path)))


def compare(
    baseline: Annotated[Path, typer.Argument(help="Lane directory or lm-eval output directory.")],
    candidate: Annotated[Path, typer.Argument(help="Lane directory or lm-eval output directory.")],
    max_drop_pp: Annotated[
        float | None, typer.Option(min=0, help="Accepted accuracy drop in percentage points.")
    ] = None,
    expect_docs: Annotated[
        int | None, typer.Option(min=1, help="Documents that each side must have.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for all findings and disagreements, as JSON lines.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pair the samples of two evaluations per (doc_id, filter), after auditing both."""
    from harness.executors.compare import compare as compare_folders
    from harness.executors.compare import exempted
    from harness.report.summary import render_compare
    from harness.verdict import exit_code

    result = compare_folders(baseline, candidate, max_drop_pp=max_drop_pp, expect_docs=expect_docs, out=out)
    if as_json:
        say(json.dumps(result.model_dump(), indent=2, ensure_ascii=False))
    else:
        may_differ = exempted(baseline, candidate)
        say(render_compare(str(baseline), str(candidate), max_drop_pp, result, may_differ=may_differ))
    raise typer.Exit(exit_code(result.verdict))


def triage(
    log: Annotated[Path, typer.Argument(help="A server's log, from here or elsewhere.")],
    engine: Annotated[str | None, typer.Option(help="Which server wrote it; default: recognised.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a server's log as an engineer would: phases, ready or not, the cause rather than the last line."""
    from harness.triage import triage as read

    report = read(log, engine)
    say(json.dumps(report.to_json(), indent=2, ensure_ascii=False) if as_json else report.render())
    raise typer.Exit(report.exit_code)


def doctor() -> None:
    """What this machine has, what is missing, and how to get it."""
    from harness.cli.doctor import render_doctor

    text, sound = render_doctor()
    say(text)
    raise typer.Exit(0 if sound else 1)


def models_list() -> None:
    """Models that can be fetched, and where they are."""
    from harness import models
    from harness.report.text import table

    rows = [["model", "on this machine", "licence"]]
    rows += [[name, str(models.locate(name) or "-"), models.MODELS[name].licence] for name in models.MODELS]
    say("\n".join(table(rows, indent="")))


def models_pull(name: Annotated[str, typer.Argument(help="A name from `harness models list`.")]) -> None:
    """Fetch a model once, with progress and a checked sha256."""
    from harness import models
    from harness.report.live import transfer_bar

    with transfer_bar(f"pulling {name}") as tick:
        path = models.pull(name, tick)
    say(f"{name}: {path}")
