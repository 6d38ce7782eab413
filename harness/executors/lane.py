"""One lane from lease to verified release. Always returns a record; only an interrupt passes through."""

import contextlib
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from harness.deploy.deployment import Deployment, deploy
from harness.deploy.identity import lane_fingerprint
from harness.engines.base import Engine, Launch
from harness.errors import Interrupted, Problem
from harness.evidence.files import write_atomic
from harness.evidence.fingerprint import write_fingerprint
from harness.evidence.record import LaneRecord
from harness.executors.collect import Early, collect
from harness.executors.expected import assert_expected, resolved_otherwise
from harness.executors.plan import at_run, introduced
from harness.executors.planned import PlannedLane
from harness.executors.reuse import EarlierRun
from harness.executors.withheld import cut_off, withheld
from harness.executors.workshop import Workshop
from harness.findings import Code, Finding
from harness.host.cpus import cores as cpu_cores
from harness.host.cpus import lease_cpus
from harness.host.gpu import GpuLease

CPU_WAIT_S = 3600.0
CPU_WAIT_WITH_GPUS_S = 60.0  # for cores of other runs; nobody else can use the lane's GPUs meanwhile


def run_lane(planned: PlannedLane, shop: Workshop, gpus: GpuLease | Problem | None) -> LaneRecord:
    """Launch, wait, collect, stop, verify, on the leased GPUs; or put on record why there are none.

    Nothing is judged here. Foreseen errors become findings; Interrupted passes, after the release.
    """
    lane = planned.lane
    record = LaneRecord(
        name=lane.name,
        required=lane.required,
        check_params={check.name: dict(check.params_given) for check in planned.checks},
    )
    if planned.reuse:
        return _taken_over(planned.reuse, record, shop)
    if planned.skip:
        record.findings.append(Finding(code=Code.NOT_RUN, message=planned.skip, where=lane.name))
        record.status = "done"
        shop.watcher.note(lane.name, f"not run: {planned.skip}")
        return record
    shop.run.lane(lane.name).mkdir(parents=True, exist_ok=True)
    record.findings += _rerun(planned)
    planned = _without(planned, withheld(planned, shop.ended, shop.run), record, shop)
    shop.save(record)
    began = time.monotonic()
    try:
        _run(planned, shop, record, gpus)
        record.status = "done"
    except Problem as problem:
        if shop.halt.called:  # most likely its consequence: the server was ended to free this thread
            record.status = "interrupted"
            raise Interrupted(problem.what) from problem
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
        shop.save(record)
    return record


def _taken_over(earlier: EarlierRun, record: LaneRecord, shop: Workshop) -> LaneRecord:
    """The earlier run's record of the lane; one that failed where the evidence could not be copied: it has no
    GPUs to run on now, and is run once the others have ended."""
    try:
        return earlier.take_over(record.name, shop.run.lane(record.name))
    except Problem as problem:
        record.findings.append(problem.finding())
        record.status = "failed"
        return record


def _without(
    planned: PlannedLane, reasons: Mapping[str, str], record: LaneRecord, shop: Workshop
) -> PlannedLane:
    """The lane without the checks that cannot be run; the record says why."""
    for check, reason in reasons.items():
        _leave_out(check, reason, record, shop)
    return replace(planned, checks=tuple(check for check in planned.checks if check.name not in reasons))


def _leave_out(check: str, reason: str, record: LaneRecord, shop: Workshop) -> None:
    finding = Finding(code=Code.NOT_RUN, message=f"not run: {reason}", where=record.name)
    record.collect_findings[check] = [finding]
    shop.watcher.note(record.name, f"{check} is not run: {reason}")


def _rerun(planned: PlannedLane) -> list[Finding]:
    """Why the lane runs although an earlier run was named that has it."""
    return [
        Finding(code=Code.BASELINE_RERUN, message=f"not taken over: {reason}", where=planned.lane.name)
        for reason in planned.rerun
    ]


def _run(planned: PlannedLane, shop: Workshop, record: LaneRecord, gpus: GpuLease | Problem | None) -> None:
    if isinstance(gpus, Problem):
        raise gpus
    lane = planned.lane
    shop.watcher.lane_phase(lane.name, "waiting")
    up = shop.up[lane.name] = Deployment()
    record.servers = up.records
    with contextlib.ExitStack() as stack:
        launches = _lease(planned, shop, stack, gpus)
        early = stack.enter_context(Early(planned, up, shop))
        try:
            with deploy(
                up,
                launches,
                run_id=shop.run.run_id,
                timeouts=lane.timeouts,
                guard=shop.guard,
                watcher=shop.watcher,
                pulse=early.pulse,
                launched=early.begin,
                neighbours=lambda: [other for other in tuple(shop.up.values()) if other is not up],
            ):
                assert_expected(planned, up)
                record.findings += resolved_otherwise(planned, up)
                shop.save(record)
                for check in planned.checks:
                    if reason := cut_off(check, record, shop.run):
                        _leave_out(check.name, reason, record, shop)
                    else:
                        collect(check, planned, up, shop, record, early)
                    shop.save(record)
                _write_fingerprint(planned, up, shop)
        finally:
            record.findings += up.findings
            record.phases.update(up.phases)
            if gpus is not None:
                pids = {pid for server in up.servers for pid in server.process.seen_pids}
                record.findings += shop.gpus.verify_released(gpus, frozenset(pids))


def _lease(
    planned: PlannedLane, shop: Workshop, stack: contextlib.ExitStack, gpus: GpuLease | None
) -> list[tuple[Engine, Launch]]:
    """Ports and cores of every server, held until the stack unwinds; and its share of the leased GPUs.

    The lane's cores are leased in one go and then dealt out: two lanes that take them server by server could
    each hold half and wait for the other for ever.
    """
    names = [f"{server.spec.role}.{name}" for server in planned.servers for name in server.port_names]
    lease = stack.enter_context(shop.ports.lease(names))
    wanted = planned.cpus
    patience_s = CPU_WAIT_WITH_GPUS_S if planned.gpus else CPU_WAIT_S
    cores = stack.enter_context(
        lease_cpus(
            wanted or None,
            patience_s,
            pulse=shop.halt.check,
            waiting=partial(shop.watcher.note, planned.lane.name),
        )
    )
    if cores.note:
        shop.watcher.note(planned.lane.name, cores.note)
    held = [group for group in cpu_cores().values() if set(group) <= set(cores.cpus)]
    shares = _deal(held, [server.spec.cpus or 0 for server in planned.servers])
    folder = shop.run.lane(planned.lane.name)
    launches: list[Launch] = []
    left = list(gpus.gpus) if gpus is not None else []
    for server, cpus in zip(planned.servers, shares, strict=True):
        ports = {name: lease.ports[f"{server.spec.role}.{name}"] for name in server.port_names}
        mine, left = left[: server.spec.gpus], left[server.spec.gpus :]
        launches.append(at_run(server, ports=ports, cpus=cpus, gpus=mine, folder=folder))
    return list(zip((server.engine for server in planned.servers), introduced(launches), strict=True))


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


def _write_fingerprint(planned: PlannedLane, up: Deployment, shop: Workshop) -> None:
    keys = lane_fingerprint(planned.lane, [server.launch for server in up.servers], up.records)
    for check in planned.checks:
        folder = shop.run.check(planned.lane.name, check.name)
        for key, value in check.check.fingerprint(check.params, folder).items():
            keys[f"check.{check.name}.{key}"] = value
    write_fingerprint(shop.run.lane(planned.lane.name), keys)
