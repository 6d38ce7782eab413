"""What a plan is made of: lanes, and their servers with the commands they would get."""

from dataclasses import dataclass

from harness.checks.base import reference_of
from harness.engines.base import Engine, Launch
from harness.executors import requirements
from harness.executors.planned_check import PlannedCheck
from harness.executors.reuse import EarlierRun
from harness.executors.schedule import Schedule
from harness.host.gpu import Gpu, Link
from harness.scenario.model import Lane, Pair, Scenario, ServerSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedServer:
    """One server with the command it would get; `launch.ports` are those free at planning time."""

    spec: ServerSpec
    engine: Engine
    launch: Launch
    port_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLane:
    lane: Lane
    servers: tuple[PlannedServer, ...]
    checks: tuple[PlannedCheck, ...]
    skip: str = ""  # why the lane cannot run here; empty when it can
    reuse: EarlierRun | None = None  # whose lane of the same name is taken over
    rerun: tuple[str, ...] = ()  # why it is not, although an earlier run was named

    @property
    def gpus(self) -> int:
        """GPUs to lease: none where nothing is going to be started."""
        if self.skip or self.reuse:
            return 0
        return sum(server.spec.gpus for server in self.servers)

    @property
    def cpus(self) -> int:
        """Whole cores to lease, as `gpus`."""
        if self.skip or self.reuse:
            return 0
        return sum(server.spec.cpus or 0 for server in self.servers)

    @property
    def link(self) -> Link:
        """How close the GPUs of the lane must be."""
        return requirements.link(self.lane.requires)

    @property
    def needs(self) -> frozenset[str]:
        """Lanes that must have ended before this one starts: its checks refer to theirs."""
        found = (reference_of(check.params, check.name) for check in self.checks)
        return frozenset(reference[0] for reference in found if reference) - {self.lane.name}

    def suits(self, gpu: Gpu) -> bool:
        """Whether the lane may run on this GPU."""
        return requirements.matches(self.lane.requires, gpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`lanes` stand in the order of starting; `schedule` is None where no lane needs a GPU."""

    scenario: Scenario
    lanes: tuple[PlannedLane, ...]
    problems: tuple[str, ...]
    schedule: Schedule | None = None

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(self.scenario.pairs.values())
