"""The findings of a page: the worst first, and of many alike a few."""

import re
from collections import Counter
from collections.abc import Iterable

from harness.evidence.record import LaneRecord, RunRecord
from harness.findings import EFFECT, Code, Finding
from harness.report.text import quoted, safe

SHOWN_PER_CODE = 3
# The last of a long list says how many there are.
_ALL = re.compile(r"(\d+) findings of this kind in all; the first (\d+) are listed")
COMPARED = "compare"  # the place of what `harness compare` found
PAIR = "pair "  # before the name of a pair, as a place
# Notes of a clean-up come by the dozen: on the page one line for each kind, with their number.
CLEANED_UP = {
    Code.SHM_REMOVED: "left {} shared memory segments; removed",
    Code.FILES_REMOVED: "left {} files or sockets; removed",
    Code.SHM_UNATTRIBUTED: "{} shared memory segments are new and unused; "
    "they may be this lane's or another program's",
}


def all_findings(record: RunRecord) -> list[tuple[str, Finding]]:
    """Of the run, its lanes and its pairs, each with its place."""
    found = [("run", finding) for finding in record.findings]
    for lane in record.lanes.values():
        found += lane_findings(lane)
    for name, result in record.pairs.items():
        found += [(f"{PAIR}{name}", finding) for finding in result.findings]
    return found


def lane_findings(lane: LaneRecord) -> list[tuple[str, Finding]]:
    """Of the lane and its checks. That a lane was not run is said once, and not again of each check; nor are
    cause and remedy, where a check ended for the reason that its lane did."""
    found = [(lane.name, finding) for finding in lane.findings]
    skipped = any(finding.code is Code.NOT_RUN for finding in lane.findings)
    known = {(finding.code, finding.headline) for finding in lane.findings}
    for name, result in lane.checks.items():
        for finding in result.findings:
            if not (skipped and finding.code is Code.NOT_RUN):
                again = (finding.code, finding.headline) in known
                found.append((f"{lane.name}/{name}", _in_short(finding, lane.name) if again else finding))
    return found


def _in_short(finding: Finding, place: str) -> Finding:
    """What happened, for a reader who finds the rest at another place."""
    return finding.model_copy(update={"message": f"{finding.headline}; see {place}"})


def findings_block(found: list[tuple[str, Finding]]) -> list[str]:
    """Worst first; of many alike the first few, with the number of the rest."""
    if not found:
        return []
    lines = ["", "findings"]
    total: Counter[tuple[str, str]] = Counter()
    for place, finding in found:
        match = _ALL.match(finding.message)
        total[place, finding.code] += int(match[1]) - int(match[2]) if match else 1
    shown: Counter[tuple[str, str]] = Counter()
    for place, finding in worst_first(found):
        shown[place, finding.code] += 1
        count, of = shown[place, finding.code], total[place, finding.code]
        if finding.code in CLEANED_UP and of > 1:
            if count == 1:
                what = CLEANED_UP[finding.code].format(of)
                lines.append(f"  note  {finding.code}  {safe(place)}: {what} ({_all_of(place)})")
        elif count <= SHOWN_PER_CODE:
            effect = EFFECT[finding.code]
            where = f" [{safe(finding.where, 160)}]" if finding.where not in ("", place) else ""
            lines.append(f"  {effect or 'note'}  {finding.code}  {safe(place)}: {_message(finding, where)}")
        elif count == SHOWN_PER_CODE + 1:
            lines.append(
                f"  ... and {of - SHOWN_PER_CODE} more {finding.code} of {safe(place)} ({_all_of(place)})"
            )
    return lines


def _all_of(place: str) -> str:
    """Where every finding of the place lies."""
    if place == COMPARED:
        return "--out keeps all"
    has_folder = "/" in place or place.startswith(PAIR)  # a check's or a pair's
    return "all in its findings.jsonl" if has_folder else "all in run.json"


def _message(finding: Finding, where: str) -> str:
    first, *rest = finding.message.split("\n")
    return "\n".join([safe(first, 900) + where, *quoted(rest[:20])])


def worst_first(found: Iterable[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    return sorted(found, key=lambda entry: -_rank(entry[1]))


def _rank(finding: Finding) -> int:
    effect = EFFECT[finding.code]
    return -1 if effect is None else effect.rank
