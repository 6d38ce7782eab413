"""What every lane of a run shares."""

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.deploy.deployment import Deployment
from harness.events import Watcher
from harness.evidence.record import LaneRecord
from harness.evidence.run_dir import RunDir
from harness.executors.halt import Halt
from harness.host.gpu import GpuBook
from harness.host.guard import Guard
from harness.host.ports import PortBook


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """`save` is called whenever a lane's record has grown; `gpu_wait_s` is
    how long a run waits for GPUs that others hold."""

    run: RunDir
    ports: PortBook
    gpus: GpuBook
    guard: Guard
    watcher: Watcher
    halt: Halt
    save: Callable[[LaneRecord], None]
    gpu_wait_s: float = 600.0
    up: dict[str, Deployment] = field(default_factory=dict)  # by lane
    ended: dict[str, LaneRecord] = field(default_factory=dict)  # by lane, judged
    awaiting: set[str] = field(default_factory=set)  # lanes of which it was told what they wait for

    def hurry(self, lane: str, number: int) -> None:
        """Signal the servers of a lane whose thread waits for them."""
        if (deployment := self.up.get(lane)) is not None:
            deployment.hurry(number)
