"""Findings: a stable code, a sentence, and where."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from harness.codes import EFFECT, Code
from harness.verdict import Verdict, worst

__all__ = ["EFFECT", "Code", "Finding", "verdict_of"]


LONGEST = 8000  # characters of one message: twenty lines of a log and the words around them


def shortened(text: str) -> str:
    """The text, or its beginning and how much is left out: a server may answer every request with megabytes
    of error text, and findings are copied into the record, the summaries and `findings.jsonl`."""
    if len(text) <= LONGEST:
        return text
    kept = LONGEST - 40  # with the words behind it still no longer than LONGEST: cut once, it stays as it is
    return f"{text[:kept]}… ({len(text) - kept} characters more)"


class Finding(BaseModel):
    """One thing a person should know: what happened in a sentence, and where the evidence is.

    A long message is cut, see `shortened`: the evidence has all of it.
    `where` is a doc id (`doc_id=17 filter=strict-match`), a request id, or `file:line`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer harness may say more

    code: Code
    message: Annotated[str, AfterValidator(shortened)]
    where: str = ""

    @property
    def headline(self) -> str:
        """What happened, in one line; cause and remedy are left to the whole message."""
        first = self.message.partition("\n")[0]
        return first.partition("; likely cause: ")[0].partition("; what to do: ")[0]


def verdict_of(findings: Iterable[Finding], base: Verdict) -> Verdict:
    """The worst of `base` and what each finding makes of it."""
    effects = (EFFECT[finding.code] for finding in findings)
    return worst([base, *(effect for effect in effects if effect is not None)])
