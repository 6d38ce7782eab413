"""One lane from lease to verified release. Always returns a record; only an interrupt passes through."""

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from harness.checks.base import CheckContext
from harness.deploy.deployment import Deployment, deploy
from harness.deploy.identity import lane_fingerprint
from harness.engines.base import Engine, Launch
from harness.errors import Problem, TargetError
from harness.events import Watcher
from harness.evidence.files import write_atomic
from harness.evidence.fingerprint import write_fingerprint
from harness.evidence.record import LaneRecord
from harness.evidence.run_dir import RunDir
from harness.executors.plan import PlannedCheck, PlannedLane, at_run
from harness.findings import Code, Finding
from harness.host.cpus import cores as cpu_cores
from harness.host.cpus import lease_cpus
from harness.host.guard import Guard
from harness.host.ports import PortBook
from harness.host.process import ManagedProcess

CPU_WAIT_S = 3600.0
TICK_S = 0.2
EVALUATOR_GRACE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What every lane of a run shares."""

    run: RunDir
    ports: PortBook
    guard: Guard
    watcher: Watcher


def run_lane(planned: PlannedLane, shop: Workshop, save: Callable[[LaneRecord], None]) -> LaneRecord:
    """Lease, launch, wait, collect, stop, verify. `save` is called whenever the record has grown.

    Nothing is judged here. Foreseen errors become findings; Interrupted passes, after the release.
    """
    lane = planned.lane
    record = LaneRecord(
        name=lane.name,
        required=lane.required,
        check_params={check.name: dict(check.params_given) for check in planned.checks},
    )
    shop.run.lane(lane.name).mkdir(parents=True, exist_ok=True)
    if planned.skip:
        record.findings.append(Finding(code=Code.NOT_RUN, message=planned.skip, where=lane.name))
        record.status = "done"
        return record
    save(record)
    began = time.monotonic()
    try:
        _run(planned, shop, record, save)
        record.status = "done"
    except Problem as problem:
        record.findings.append(problem.finding())
        record.status = "failed"
    except Exception:  # noqa: BLE001 - a bug of ours must neither end the run nor pass for the engine's fault
        trace = shop.run.lane(lane.name) / "harness-traceback.txt"
        write_atomic(trace, traceback.format_exc())
        what = "the harness itself failed while it ran this lane"
        record.findings.append(Finding(code=Code.HARNESS_BUG, message=what, where=str(trace)))
        record.status = "failed"
    except BaseException:
        record.status = "interrupted"
        raise
    finally:
        record.phases["lane"] = time.monotonic() - began
        save(record)
    return record


def _run(
    planned: PlannedLane, shop: Workshop, record: LaneRecord, save: Callable[[LaneRecord], None]
) -> None:
    lane = planned.lane
    shop.watcher.lane_phase(lane.name, "waiting")
    up = Deployment()
    record.servers = up.records
    with contextlib.ExitStack() as stack:
        launches = _lease(planned, shop, stack)
        try:
            with deploy(
                up,
                launches,
                run_id=shop.run.run_id,
                timeouts=lane.timeouts,
                guard=shop.guard,
                watcher=shop.watcher,
            ):
                _assert_expected(planned, up)
                save(record)
                for check in planned.checks:
                    _collect(check, planned, up, shop, record)
                    save(record)
                _write_fingerprint(planned, up, shop)
        finally:
            record.findings += up.findings
            record.phases.update(up.phases)


def _lease(planned: PlannedLane, shop: Workshop, stack: contextlib.ExitStack) -> list[tuple[Engine, Launch]]:
    """Ports and cores of every server, held until the stack unwinds.

    The lane's cores are leased in one go and then dealt out: two lanes that take them server by server could
    each hold half and wait for the other for ever.
    """
    names = [f"{server.spec.role}.{name}" for server in planned.servers for name in server.port_names]
    lease = stack.enter_context(shop.ports.lease(names))
    wanted = sum(server.spec.cpus or 0 for server in planned.servers)
    cores = stack.enter_context(lease_cpus(wanted or None, CPU_WAIT_S))
    if cores.note:
        shop.watcher.note(planned.lane.name, cores.note)
    held = [group for group in cpu_cores().values() if set(group) <= set(cores.cpus)]
    shares = _deal(held, [server.spec.cpus or 0 for server in planned.servers])
    folder = shop.run.lane(planned.lane.name)
    launches: list[tuple[Engine, Launch]] = []
    for server, cpus in zip(planned.servers, shares, strict=True):
        ports = {name: lease.ports[f"{server.spec.role}.{name}"] for name in server.port_names}
        launches.append((server.engine, at_run(server, ports=ports, cpus=cpus, folder=folder)))
    return launches


def _deal(cores: Sequence[tuple[int, ...]], wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """CPU numbers of each server's whole cores, in order. Where the machine has fewer, the servers share all
    of them."""
    if len(cores) < sum(wanted):
        return [tuple(sorted(chain(*cores))) if count else () for count in wanted]
    shares, start = [], 0
    for count in wanted:
        shares.append(tuple(sorted(chain(*cores[start : start + count]))))
        start += count
    return shares


def _assert_expected(planned: PlannedLane, up: Deployment) -> None:
    """Servers silently rewrite settings: what the scenario relies on is read back from the server itself."""
    for server, record in zip(planned.servers, up.records, strict=True):
        wrong = []
        for key, wanted in server.spec.expect.items():
            found = record.effective_config.get(key)
            if found is None or str(found).lower() != str(wanted).lower():
                wrong.append(f"{key} is {found!r}, expected {wanted!r}")
        if wrong:
            raise TargetError(
                f"the running {record.role} server is not configured as expected: {'; '.join(wrong)}",
                cause="the server rewrote a setting, or does not tell it",
                fix=f"compare with effective-config.{record.role}.json in the lane's folder",
                evidence=str(up.entry.log),
                code=Code.CONFIG_REWRITTEN,
            )


def _collect(
    check: PlannedCheck, planned: PlannedLane, up: Deployment, shop: Workshop, record: LaneRecord
) -> None:
    lane = planned.lane
    shop.watcher.lane_phase(lane.name, check.name)
    folder = shop.run.check(lane.name, check.name)
    folder.mkdir(parents=True, exist_ok=True)
    entry = up.entry
    context = CheckContext(
        engine=entry.engine,
        base_url=entry.launch.base_url,
        served_name=lane.model.served_name,
        folder=folder,
        server_log=entry.log,
        run_command=_Runner(up, shop, lane.name, lane.timeouts.check_s),
        progress=lambda done, total: shop.watcher.progress(lane.name, done, total),
    )
    began = time.monotonic()
    try:
        check.check.collect(check.params, context)
    except Problem as problem:  # the other checks go on, unless the server itself is gone
        record.collect_findings[check.name] = [problem.finding()]
    finally:
        record.phases[check.name] = time.monotonic() - began
    up.assert_alive()


def _write_fingerprint(planned: PlannedLane, up: Deployment, shop: Workshop) -> None:
    keys = lane_fingerprint(planned.lane, [server.launch for server in up.servers], up.records)
    for check in planned.checks:
        folder = shop.run.check(planned.lane.name, check.name)
        for key, value in check.check.fingerprint(check.params, folder).items():
            keys[f"check.{check.name}.{key}"] = value
    write_fingerprint(shop.run.lane(planned.lane.name), keys)


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs a check's program as a process of the run, and lets nothing hang unseen."""

    up: Deployment
    shop: Workshop
    lane: str
    limit_s: float

    def __call__(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, tick: Callable[[], None]
    ) -> int:
        marker = f"{self.shop.run.run_id}:{self.lane}:evaluator"
        self.shop.guard.watch(marker)
        process = ManagedProcess.start(
            list(argv), env={**os.environ, **env}, cwd=log.parent, log=log, marker=marker, name="evaluator"
        )
        self.shop.guard.watch(process)
        deadline = time.monotonic() + self.limit_s
        with _stopped(process):
            while (code := process.poll()) is None:
                self.up.assert_alive()
                tick()
                if time.monotonic() > deadline:
                    what = f"the check's program did not end within {self.limit_s:.0f} s (timeouts.check_s)"
                    raise TargetError(what, evidence=str(log), code=Code.STALLED)
                time.sleep(TICK_S)
        return code


@contextlib.contextmanager
def _stopped(process: ManagedProcess) -> Iterator[None]:
    try:
        yield
    finally:
        process.stop(EVALUATOR_GRACE_S)
