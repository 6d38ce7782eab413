"""Findings: a stable code, a sentence, and where."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from harness.codes import EFFECT, Code
from harness.verdict import Verdict, worst

__all__ = ["EFFECT", "Code", "Finding", "verdict_of"]


class Finding(BaseModel):
    """One thing a person should know: what happened in a sentence, and where the evidence is.

    `where` is a doc id (`doc_id=17 filter=strict-match`), a request id, or `file:line`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: Code
    message: str
    where: str = ""


def verdict_of(findings: Iterable[Finding], base: Verdict) -> Verdict:
    """The worst of `base` and what each finding makes of it."""
    effects = (EFFECT[finding.code] for finding in findings)
    return worst([base, *(effect for effect in effects if effect is not None)])
