"""What the checks have in common that ask a server themselves, and are judged on each lane by itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.checks.base import Begun, CheckContext
from harness.evidence.record import PairResult
from harness.findings import Code, Finding
from harness.scenario.model import Pair
from harness.verdict import Verdict


class FunctionalCheck:
    """The parts of `Check` in which they do not differ: no program, nothing begun early, no pair."""

    pairable = False

    def problems(self, params: Any) -> list[str]:
        del params
        return []

    def requests(self, params: Any) -> Sequence[tuple[int, int]] | None:
        del params
        return ()

    def command(self, params: Any, *, base_url: str, served_name: str, folder: Path) -> list[str]:
        del params, base_url, served_name, folder
        return []

    def begin(self, params: Any, context: CheckContext) -> Begun | None:
        del params, context
        return None

    def pair(self, params: Any, pair: Pair, baseline: Path, candidate: Path, out: Path | None) -> PairResult:
        """Plans refuse such a pair; a record may still ask for one."""
        del params, baseline, candidate, out
        message = f"check `{pair.check}` is judged on each lane by itself; it cannot be paired"
        finding = Finding(code=Code.NOT_EXERCISED, message=message, where=pair.name)
        return PairResult(verdict=Verdict.INVALID, findings=[finding])
