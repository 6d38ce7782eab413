"""Long lists of findings, kept readable."""

from collections import defaultdict
from collections.abc import Iterable

from harness.findings import Code, Finding

LISTED = 20


def listed(findings: Iterable[Finding]) -> list[Finding]:
    """The findings grouped by code in order of appearance, at most 20 of a kind, and one more line with the
    total where there are more. The verdict they make is the same."""
    by_code: defaultdict[Code, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_code[finding.code].append(finding)
    kept = []
    for code, group in by_code.items():
        kept += group[:LISTED]
        if len(group) > LISTED:
            message = f"{len(group)} findings of this kind in all; the first {LISTED} are listed"
            kept.append(Finding(code=code, message=message))
    return kept
