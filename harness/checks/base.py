"""What a check is: it collects evidence from a deployment into files, and judges those files.

`collect` talks to servers and decides nothing; `judge` and `pair` read files and talk to nobody, so that
`harness judge RUN` can repeat them on a laptop, months later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, Field

from harness.engines.base import Engine
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult, PairResult
from harness.scenario.model import Frozen, Pair, Scalar


class Command(Protocol):
    """A program that was started as a process of the run."""

    def wait(self, tick: Callable[[], None]) -> int:
        """Its exit code, once it has ended; `tick` is called a few times a second meanwhile. Raises
        TargetError at once when a server of the lane dies, and when it takes longer than the lane allows."""
        ...

    def stop(self) -> None:
        """End it, if it still runs."""
        ...


class Begun(Protocol):
    """What a check has started before its server was ready."""

    def pulse(self) -> None:
        """Called a few times a second while the server loads."""
        ...

    def close(self) -> None:
        """Give it up, if the check was not collected: nothing of it stays."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerView:
    """One running server of the lane, as a check may see it. `config` is what the server resolved."""

    role: str
    engine: Engine
    base_url: str
    log: Path
    config: Mapping[str, Scalar | None]
    version: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckContext:
    """All that a check may touch while it collects.

    `folder` is the check's own directory inside the lane's. `start_command` starts a program as a process of
    the run (owned, logged to the given file, stopped with it). `progress(done, total)` feeds the live table.
    `servers` are all of the lane, the entry last; none are known yet when a check is begun early. `pulse` is
    to be called by whoever waits: it raises when a server has died, the run is to end, or the check has taken
    too long.
    """

    engine: Engine
    base_url: str
    served_name: str
    folder: Path
    server_log: Path
    start_command: Callable[[Sequence[str], Mapping[str, str], Path], Command]
    progress: Callable[[int, int], None]
    servers: tuple[ServerView, ...] = ()
    model_path: str = ""
    pulse: Callable[[], None] = lambda: None


def caching(context: CheckContext) -> ServerView:
    """The server whose prefix cache the requests meet: the entry; behind a master or a router, which have
    none, the prefill node."""
    entry = context.servers[-1]
    nodes = (server for server in context.servers if server.role == "prefill")
    return next(nodes, entry) if entry.role in ("master", "router") else entry


def _named(text: str) -> str:
    if not text.strip():
        raise ValueError("an empty text names no lane; null, or no such line: there is none")
    return text


LaneName = Annotated[str, AfterValidator(_named)]  # `lane` or `lane/check`


class WithReference(Frozen):
    """Parameters of a check that is judged against what another lane's check collected. That lane runs
    first."""

    reference: LaneName | None = Field(
        None, description="`lane` or `lane/check` of this scenario whose answers are the reference"
    )


def reference_of(params: BaseModel, name: str) -> tuple[str, str] | None:
    """Lane and check that the parameters of check `name` refer to, if they do."""
    text = getattr(params, "reference", None)
    if not text:
        return None
    lane, _, check = str(text).partition("/")
    return lane, check or name


def reference_folder(params: BaseModel, folder: Path) -> Path | None:
    """The evidence of the check that `params` refer to; `folder` is the referring check's own."""
    found = reference_of(params, folder.name)
    return folder.parents[1] / found[0] / found[1] if found else None


class Check(Protocol):
    """One kind of check. Adding one is one file and one line in `CHECKS`."""

    kind: str
    pairable: bool  # whether two lanes can be compared by it
    params: type[BaseModel]

    def problems(self, params: Any) -> list[str]:
        """What is missing before anything is leased: data sets, programs. Sentences for people."""
        ...

    def requests(self, params: Any) -> Sequence[tuple[int, int]] | None:
        """Tokens of prompt and of output of the requests whose prompts it makes, as far as the parameters
        tell. None: those that its reference asked."""
        ...

    def command(self, params: Any, *, base_url: str, served_name: str, folder: Path) -> list[str]:
        """The external command the check will run, for `harness plan`; empty where there is none."""
        ...

    def begin(self, params: Any, context: CheckContext) -> Begun | None:
        """Start what may be started while the server still loads; asked only of the lane's first check. None:
        nothing. Raises HarnessError."""
        ...

    def collect(self, params: Any, context: CheckContext, begun: Begun | None) -> None:
        """Fill `context.folder` with raw evidence; `begun` is what `begin` returned, now that the server is
        ready. Raises TargetError or HarnessError."""
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
