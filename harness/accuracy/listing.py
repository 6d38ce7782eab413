"""Long lists of findings, kept readable."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from harness.evidence.files import write_atomic
from harness.findings import Code, Finding

FILE_NAME = "findings.jsonl"
LISTED = 20


def listed(findings: Iterable[Finding], where: str = "") -> list[Finding]:
    """The findings grouped by code in order of appearance, at most 20 of a kind, and one more line with the
    total where there are more (`where` says of what). The verdict they make is the same."""
    by_code: defaultdict[Code, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_code[finding.code].append(finding)
    kept = []
    for code, group in by_code.items():
        kept += group[:LISTED]
        if len(group) > LISTED:
            message = f"{len(group)} findings of this kind in all; the first {LISTED} are listed"
            kept.append(Finding(code=code, message=message, where=where))
    return kept


def write_findings(folder: Path, findings: Iterable[Finding]) -> None:
    """Every one of them, one JSON object per line, as `findings.jsonl`. Raises HarnessError."""
    write_atomic(folder / FILE_NAME, "".join(finding.model_dump_json() + "\n" for finding in findings))
