"""What a check is: it collects evidence from a deployment into files, and judges those files.

`collect` talks to servers and decides nothing; `judge` and `pair` read files and talk to nobody, so that
`harness judge RUN` can repeat them on a laptop, months later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from harness.engines.base import Engine
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult, PairResult
from harness.scenario.model import Pair


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckContext:
    """All that a check may touch while it collects.

    `folder` is the check's own directory inside the lane's. `run_command` starts a program as a process of
    the run (owned, logged to the given file, stopped with it), calls the given function a few times a
    second, and returns the exit code; it raises TargetError at once when a server of the lane dies
    meanwhile. `progress(done, total)` feeds the live table.
    """

    engine: Engine
    base_url: str
    served_name: str
    folder: Path
    server_log: Path
    run_command: Callable[[Sequence[str], Mapping[str, str], Path, Callable[[], None]], int]
    progress: Callable[[int, int], None]


class Check(Protocol):
    """One kind of check. Adding one is one file and one line in `CHECKS`."""

    kind: str
    params: type[BaseModel]

    def problems(self, params: Any) -> list[str]:
        """What is missing before anything is leased: data sets, programs. Sentences for people."""
        ...

    def command(self, params: Any, *, base_url: str, served_name: str, folder: Path) -> list[str]:
        """The external command the check will run, for `harness plan`; empty where there is none."""
        ...

    def collect(self, params: Any, context: CheckContext) -> None:
        """Fill `context.folder` with raw evidence. Raises TargetError or HarnessError."""
        ...

    def judge(self, params: Any, folder: Path) -> CheckResult:
        """Pure: evidence in, result out, with every finding there is; the caller keeps and shortens them."""
        ...

    def pair(self, params: Any, pair: Pair, baseline: Path, candidate: Path, out: Path | None) -> PairResult:
        """Pure: two evidence folders of this check in, one result out; details are written under `out`, where
        it is given. Parity of the lanes is judged elsewhere, and added by the caller."""
        ...

    def fingerprint(self, params: Any, folder: Path) -> Fingerprint:
        """What of this check must be equal between the two lanes of a pair: data set digest, evaluator
        version, task hash, shots, seeds, generation arguments, concurrency."""
        ...
