"""`summary.txt` for people, `summary.json` for programs: two views of one record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.evidence.files import write_atomic, write_json
from harness.evidence.record import RUN, FilterStats, LaneRecord, PairResult, RunRecord
from harness.evidence.run_dir import RunDir
from harness.findings import EFFECT, Code
from harness.report.findings_block import (
    COMPARED,
    all_findings,
    findings_block,
    lane_findings,
    worst_first,
)
from harness.report.text import safe, seconds, table
from harness.verdict import Verdict

MEANING = {
    Verdict.PASS: "every acceptance rule held",
    Verdict.REPORTED: "measured soundly; without a threshold for everything, nothing may be claimed",
    Verdict.SKIPPED: "not run; never a success where it is required",
    Verdict.INCONCLUSIVE: "sound, but too little evidence for the stated margin",
    Verdict.INFRA: "the host or the harness failed; says nothing about the engine",
    Verdict.INVALID: "the evidence is not sound or not comparable",
    Verdict.FAIL: "the engine broke an acceptance rule",
}
SHOWN_PLACES = 5
UNSOUND = (Verdict.INCONCLUSIVE, Verdict.INFRA, Verdict.INVALID, Verdict.FAIL)


def write_summary(run: RunDir, record: RunRecord) -> None:
    """Both summaries of the run, atomically."""
    write_json(run.path / "summary.json", summary_json(record))
    write_atomic(run.path / "summary.txt", render_run(record, str(run.path)))


def write_lane_summary(run: RunDir, lane: LaneRecord) -> None:
    write_atomic(run.lane(lane.name) / "summary.txt", "\n".join(_lane_block(lane)) + "\n")


def summary_json(record: RunRecord) -> dict[str, Any]:
    """The stable contract for scripts."""
    return {
        "run_id": record.run_id,
        "scenario": record.scenario,
        "status": record.status,
        "verdict": record.verdict,
        "exit_code": record.exit_code,
        "harness": {"version": record.harness_version, "revision": record.harness_revision},
        "changed": {place: {"was": was, "now": now} for place, (was, now) in _changed(record).items()},
        "findings": [finding.model_dump() for finding in record.findings],
        "lanes": {
            name: {
                "verdict": lane.verdict,
                "findings": [finding.model_dump() for finding in lane.findings],
                "checks": {check: result.model_dump() for check, result in lane.checks.items()},
            }
            for name, lane in record.lanes.items()
        },
        "pairs": {name: result.model_dump() for name, result in record.pairs.items()},
    }


def render_run(record: RunRecord, place: str) -> str:
    """The page that a release manager reads."""
    lines = [
        f"scenario  {safe(record.scenario)}"
        + (f": {safe(record.description)}" if record.description else ""),
        f"run       {safe(record.run_id)} ({record.status}), {_harness(record)}",
        f"verdict   {record.verdict}: {_meaning(record)} (exit code {record.exit_code})",
        *_worst_line(record),
        *_changed_line(record),
        "",
        *_lanes_table(record),
    ]
    for name, result in record.pairs.items():
        spec = record.pair_specs.get(name)
        lines += ["", *_pair_block(name, result, spec.model_dump() if spec else {})]
    lines += findings_block(all_findings(record))
    lines += ["", f"evidence  {safe(place, 4000)}"]
    return "\n".join(lines) + "\n"


def _meaning(record: RunRecord) -> str:
    simulated = any(finding.code is Code.SIMULATED for finding in record.findings)
    if simulated and record.verdict is Verdict.REPORTED:
        return "on the simulator; nothing may be claimed of an engine"
    return MEANING[record.verdict]


def _worst_line(record: RunRecord) -> list[str]:
    """The first of the worst findings, for those who do not scroll; nothing where the run has no fault."""
    found = worst_first(all_findings(record)) if record.verdict in UNSOUND else []
    if not found or EFFECT[found[0][1].code] is None:
        return []
    place, finding = found[0]
    return [f"worst     {safe(place, 80)}: {safe(finding.headline, 150)}"]


def _harness(record: RunRecord) -> str:
    commit = f" ({safe(record.harness_revision)})" if record.harness_revision else ""
    return f"harness {safe(record.harness_version)}{commit}"


def _changed(record: RunRecord) -> dict[str, tuple[Verdict, Verdict]]:
    """By place, the first verdict and today's, where they differ."""
    now = record.verdicts()
    pairs = {place: (first, now.get(place, first)) for place, first in record.judged_first.items()}
    return {place: (first, last) for place, (first, last) in pairs.items() if first is not last}


def _changed_line(record: RunRecord) -> list[str]:
    """That judging again found something else, and where; nothing where it did not. A check is named where
    its lane's verdict stayed."""
    changed = _changed(record)
    if not changed:
        return []
    since = "it was first judged" if record.status == "started" else "the run ended"
    run = changed.pop(RUN, None)
    places = [place for place in changed if place.rpartition(", check ")[0] not in changed]
    told = [f"{place}: {changed[place][0]} -> {changed[place][1]}" for place in places[:SHOWN_PLACES]]
    told += [f"{len(places) - SHOWN_PLACES} more"] if len(places) > SHOWN_PLACES else []
    what = safe("; ".join(told), 1000)
    if run is None:
        return [f"changed   since {since}: {what}"]
    return [f"changed   verdict was {run[0]} when {since}, now {run[1]}" + (f" ({what})" if what else "")]


def render_unfinished(run: RunDir, record: RunRecord, pid: str | None) -> str:
    """The page of a run that was never judged: how far its lanes are. `pid` is the harness that runs it now;
    None: it was killed."""
    state = f"running, pid {safe(pid)}" if pid else "killed: it has no end on record, and no process holds it"
    verdict = "none yet" if pid else f"none: see what there is with `harness judge {run.path}`"
    rows = [["lane", "state", "phase"]]
    rows += [[name, *_lane_state(run, lane, alive=bool(pid))] for name, lane in record.lanes.items()]
    lines = [
        f"scenario  {safe(record.scenario)}"
        + (f": {safe(record.description)}" if record.description else ""),
        f"run       {safe(record.run_id)} ({state}), {_harness(record)}",
        f"started   {safe(record.started_at)}",
        f"verdict   {safe(verdict, 4000)}",
        "",
        *table(rows, indent=""),
        *findings_block(all_findings(record)),
        "",
        f"evidence  {safe(str(run.path), 4000)}",
    ]
    return "\n".join(lines) + "\n"


def _lane_state(run: RunDir, lane: LaneRecord, *, alive: bool) -> tuple[str, str]:
    """State and phase, from what a lane leaves as it goes: its folder, its servers, its checks' folders."""
    if lane.status != "started":
        return (f"{lane.status}, {lane.verdict}" if lane.checks else lane.status), "-"
    if not run.lane(lane.name).is_dir():
        return "waiting" if alive else "not begun", "-"
    state = "running" if alive else "cut off"
    if not lane.servers:  # they are on record once all of them are ready
        launched = any(run.lane(lane.name).glob("command*.txt"))
        return state, "loading" if launched else "waiting for its lease"
    begun = [name for name in lane.check_params if run.check(lane.name, name).is_dir()]
    if not begun or begun[-1] not in lane.phases:
        return state, begun[-1] if begun else "ready"
    return state, f"after {begun[-1]}"


def _lanes_table(record: RunRecord) -> list[str]:
    """One row for each check; what is true of the whole lane stands in its first row."""
    rows = [["lane", "verdict", "engine", "ready", "check", "verdict", "took", "measured"]]
    judges = _judged_by(record)
    for name, lane in record.lanes.items():
        server = lane.servers[0] if lane.servers else None  # of P/D lanes the last one is a router
        engine = f"{server.engine} {server.version}" if server else "-"
        earlier = [Path(f.where).name for f in lane.findings if f.code is Code.BASELINE_REUSED]
        took = {} if earlier else lane.phases  # not now
        whole = [name, str(lane.verdict), engine, seconds(took.get("ready"))]
        for check, result in lane.checks.items():
            measured = [safe(result.told)] if result.told else []
            if result.verdict is Verdict.REPORTED and (name, check) in judges:
                measured.append(f"judged by pair {', '.join(judges[name, check])}")
            measured += [f"taken over from {run}" for run in earlier]
            own = [check, str(result.verdict), seconds(took.get(check)), "; ".join(measured) or "-"]
            rows.append([*whole, *own])
            whole = ["", "", "", ""]
        if not lane.checks:
            rows.append([*whole, "-", "-", "-", "-"])
    return table(rows, right=frozenset({3, 6}), indent="")


def _judged_by(record: RunRecord) -> dict[tuple[str, str], list[str]]:
    """By lane and check, the pairs that passed on it: such a check counts as more than REPORTED."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, pair in record.pair_specs.items():
        if name in record.pairs and record.pairs[name].verdict is Verdict.PASS:
            for side in (pair.baseline, pair.candidate):
                found.setdefault((side, pair.check), []).append(name)
    return found


def render_compare(
    baseline: str,
    candidate: str,
    max_drop_pp: float | None,
    result: PairResult,
    *,
    may_differ: Sequence[str] = (),
) -> str:
    """What `harness compare` prints; `may_differ` is what a pair of these lanes exempts."""
    spec = {
        "baseline": baseline,
        "candidate": candidate,
        "check": "gsm8k",
        "may_differ": may_differ,
        "max_drop_pp": max_drop_pp,
    }
    lines = _pair_block(COMPARED, result, spec)
    lines += findings_block([(COMPARED, finding) for finding in result.findings])
    return "\n".join(lines) + "\n"


def _pair_block(name: str, result: PairResult, spec: dict[str, Any]) -> list[str]:
    margin = spec.get("max_drop_pp")
    rule = f"largest accepted drop {margin} pp" if margin is not None else "no threshold stated"
    may_differ = safe(", ".join(spec.get("may_differ", ())), 4000) or "nothing"
    candidate, baseline, check = (safe(str(spec.get(key))) for key in ("candidate", "baseline", "check"))
    lines = [
        f"pair {safe(name)}: {result.verdict}",
        f"  candidate {candidate} against baseline {baseline} on {check}",
        f"  {rule}; may differ: {may_differ}",
    ]
    heading = ["filter", "n", "baseline", "candidate", "delta", "95 % two-sided", "only baseline"]
    rows = [[*heading, "only candidate", "both wrong, differ", "McNemar p"]]
    rows += [_filter_row(filter_name, stats) for filter_name, stats in result.filters.items()]
    return lines + (table(rows, right=frozenset(range(1, 10))) if result.filters else [])


def _filter_row(name: str, stats: FilterStats) -> list[str]:
    return [
        name,
        str(stats.n),
        f"{stats.correct_baseline} ({stats.accuracy_baseline:.2%})",
        f"{stats.correct_candidate} ({stats.accuracy_candidate:.2%})",
        f"{stats.delta_pp:+.2f} pp",
        f"[{stats.ci_low_pp:+.2f}, {stats.ci_high_pp:+.2f}]",
        str(stats.only_baseline),
        str(stats.only_candidate),
        str(stats.both_wrong_different),
        f"{stats.mcnemar_p:.4f}",
    ]


def _lane_block(lane: LaneRecord) -> list[str]:
    lines = [f"lane     {safe(lane.name)}", f"verdict  {lane.verdict}: {MEANING[lane.verdict]}"]
    servers = (f"{s.role}: {s.engine} {s.version}, pid {s.pid}, {s.stop}" for s in lane.servers)
    lines += (f"server   {safe(server)}" for server in servers)
    lines += [f"phase    {safe(phase)}: {seconds(value)}" for phase, value in lane.phases.items()]
    for name, result in lane.checks.items():
        lines.append(f"check    {safe(name)}: {result.verdict}")
        lines += [f"           {safe(metric)} = {_number(value)}" for metric, value in result.metrics.items()]
    return lines + findings_block(lane_findings(lane))


def _number(value: float | int | str | None) -> str:
    return f"{value:.4f}" if isinstance(value, float) else safe(str(value))
