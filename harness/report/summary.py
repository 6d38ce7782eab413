"""`summary.txt` for people, `summary.json` for programs: two views of one record."""

import re
from collections import Counter
from typing import Any

from harness.evidence.files import write_atomic, write_json
from harness.evidence.record import RUN, FilterStats, LaneRecord, PairResult, RunRecord
from harness.evidence.run_dir import RunDir
from harness.findings import EFFECT, Code, Finding
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
SHOWN_PER_CODE = 3
SHOWN_PLACES = 5
# The last of a long list says how many there are.
_ALL = re.compile(r"(\d+) findings of this kind in all; the first (\d+) are listed")
COMPARED = "compare"  # the place of what `harness compare` found
PAIR = "pair "  # before the name of a pair, as a place
DECLARED = "what the record of their run declares for a pair of these lanes"


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
        *_changed_line(record),
        "",
        *_lanes_table(record),
    ]
    for name, result in record.pairs.items():
        spec = record.pair_specs.get(name)
        lines += ["", *_pair_block(name, result, spec.model_dump() if spec else {})]
    lines += _findings_block(_all_findings(record))
    lines += ["", f"evidence  {safe(place, 4000)}"]
    return "\n".join(lines) + "\n"


def _meaning(record: RunRecord) -> str:
    simulated = any(finding.code is Code.SIMULATED for finding in record.findings)
    if simulated and record.verdict is Verdict.REPORTED:
        return "on the simulator; nothing may be claimed of an engine"
    return MEANING[record.verdict]


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
        *_findings_block(_all_findings(record)),
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
    if not lane.servers:
        return state, "waiting for its lease, or starting"
    begun = [name for name in lane.check_params if run.check(lane.name, name).is_dir()]
    if not begun or begun[-1] not in lane.phases:
        return state, begun[-1] if begun else "ready"
    return state, f"after {begun[-1]}"


def _lanes_table(record: RunRecord) -> list[str]:
    """One row for each check; what is true of the whole lane stands in its first row."""
    rows = [["lane", "verdict", "engine", "ready", "check", "verdict", "took", "measured"]]
    for name, lane in record.lanes.items():
        server = lane.servers[0] if lane.servers else None  # of P/D lanes the last one is a router
        engine = f"{server.engine} {server.version}" if server else "-"
        whole = [name, str(lane.verdict), engine, seconds(lane.phases.get("ready"))]
        for check, result in lane.checks.items():
            own = [check, str(result.verdict), seconds(lane.phases.get(check)), safe(result.told) or "-"]
            rows.append([*whole, *own])
            whole = ["", "", "", ""]
        if not lane.checks:
            rows.append([*whole, "-", "-", "-", "-"])
    return table(rows, right=frozenset({3, 6}), indent="")


def render_compare(baseline: str, candidate: str, max_drop_pp: float | None, result: PairResult) -> str:
    """What `harness compare` prints."""
    spec = {
        "baseline": baseline,
        "candidate": candidate,
        "check": "gsm8k",
        "may_differ": [DECLARED],
        "max_drop_pp": max_drop_pp,
    }
    lines = _pair_block(COMPARED, result, spec)
    lines += _findings_block([(COMPARED, finding) for finding in result.findings])
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
    heading = ["filter", "n", "baseline", "candidate", "delta", "95 % interval", "only baseline"]
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
    return lines + _findings_block(_lane_findings(lane))


def _number(value: float | int | str | None) -> str:
    return f"{value:.4f}" if isinstance(value, float) else safe(str(value))


def _all_findings(record: RunRecord) -> list[tuple[str, Finding]]:
    found = [("run", finding) for finding in record.findings]
    for lane in record.lanes.values():
        found += _lane_findings(lane)
    for name, result in record.pairs.items():
        found += [(f"{PAIR}{name}", finding) for finding in result.findings]
    return found


def _lane_findings(lane: LaneRecord) -> list[tuple[str, Finding]]:
    """Of the lane and its checks. That a lane was not run is said once, and not again of each check."""
    found = [(lane.name, finding) for finding in lane.findings]
    told = {finding.code for finding in lane.findings} & {Code.NOT_RUN}
    for name, result in lane.checks.items():
        found += [(f"{lane.name}/{name}", finding) for finding in result.findings if finding.code not in told]
    return found


def _findings_block(found: list[tuple[str, Finding]]) -> list[str]:
    """Worst first; of many alike the first few, with the number of the rest."""
    if not found:
        return []
    lines = ["", "findings"]
    total: Counter[tuple[str, str]] = Counter()
    for place, finding in found:
        match = _ALL.match(finding.message)
        total[place, finding.code] += int(match[1]) - int(match[2]) if match else 1
    shown: Counter[tuple[str, str]] = Counter()
    for place, finding in sorted(found, key=lambda entry: -_rank(entry[1])):
        shown[place, finding.code] += 1
        count = shown[place, finding.code]
        if count <= SHOWN_PER_CODE:
            effect = EFFECT[finding.code]
            where = f" [{safe(finding.where, 160)}]" if finding.where not in ("", place) else ""
            lines.append(f"  {effect or 'note'}  {finding.code}  {safe(place)}: {_message(finding)}{where}")
        elif count == SHOWN_PER_CODE + 1:
            rest = total[place, finding.code] - SHOWN_PER_CODE
            lines.append(f"  ... and {rest} more {finding.code} of {safe(place)} ({_all_of(place)})")
    return lines


def _all_of(place: str) -> str:
    """Where every finding of the place lies."""
    if place == COMPARED:
        return "--out keeps all"
    has_folder = "/" in place or place.startswith(PAIR)  # a check's or a pair's
    return "all in its findings.jsonl" if has_folder else "all in run.json"


def _message(finding: Finding) -> str:
    first, *rest = finding.message.split("\n")
    return "\n".join([safe(first, 600), *(f"      {safe(line)}" for line in rest[:20])])


def _rank(finding: Finding) -> int:
    effect = EFFECT[finding.code]
    return -1 if effect is None else effect.rank
