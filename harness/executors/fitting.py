"""Whether what a scenario says fits together: the GPUs of a lane and its servers' flags, the lengths that a
check asks and what the servers take, its prompts and the model's tokenizer.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.checks.base import reference_of
from harness.checks.cache_boundary import CacheBoundaryParams
from harness.checks.pause_resume import PauseResumeParams
from harness.checks.prompts import tokenizer_problem
from harness.engines.flags import unknown_flags
from harness.errors import ConfigError
from harness.executors.planned import PlannedLane
from harness.executors.planned_check import PlannedCheck
from harness.host.cpus import cores

Requests = Sequence[tuple[int, int]]  # tokens of the prompt, tokens of the output


def gpu_problems(planned: PlannedLane) -> Iterator[str]:
    """Servers that would use more or fewer GPUs than the lane leases for them."""
    for server in planned.servers:
        leased, uses = server.spec.gpus, server.engine.gpus_used(server.launch)
        if uses is not None and uses.number != leased:
            remedy = f"set `gpus: {uses.number}`" + (", or mend the flags" if uses.number else "")
            yield (
                f"{server.spec.role} leases {leased} GPU(s) (`gpus:`) and would use {uses.number} "
                f"({uses.by}): {remedy}"
            )


def cpu_problems(planned: PlannedLane) -> Iterator[str]:
    """Servers that want more cores than there are. Several that want more together share them."""
    most = len(cores())
    for server in planned.servers:
        if (wanted := server.spec.cpus or 0) > most:
            has = f"this process may use {most} of this machine's"
            yield f"{server.spec.role} leases {wanted} CPU cores (`cpus:`), and {has}: ask for fewer"


def flag_problems(planned: PlannedLane) -> Iterator[str]:
    """Flags that the engine does not have: all that is asked of the engine of a lane that is skipped, whose
    machine may be another. A router has arguments of its own, and is asked where it runs."""
    for server in planned.servers:
        if server.spec.role != "router":
            with contextlib.suppress(ConfigError):  # an engine that cannot tell is told where it runs
                yield from unknown_flags(server.launch.flags, server.engine.arguments(server.launch))


def check_problems(planned: PlannedLane, lanes: Mapping[str, PlannedLane]) -> Iterator[str]:
    """Checks whose requests the lane's servers would not take, or whose prompts cannot be made."""
    limits = [
        (limit.number, f"{server.spec.role} takes {limit.number} ({limit.by})")
        for server in planned.servers
        for limit in server.engine.limits(server.launch)
    ]
    slots = [
        (slot.number, f"{server.spec.role} runs {slot.number} at once ({slot.by})")
        for server in planned.servers
        for slot in server.engine.at_once(server.launch)
    ]
    entry = planned.servers[-1]
    for check in planned.checks:
        together, fewest = _together(check, planned), min(slots, default=(0, ""))
        if 0 < fewest[0] < together:
            asked = f"it asks {together} requests at once"
            yield f"check `{check.name}`: {asked}, and {fewest[1]}: raise that, or ask fewer"
        requests = _requests(check, lanes)
        if not requests:
            continue
        prompt, output = max(requests, key=sum)
        most, what = min(limits, default=(prompt + output, ""))
        if prompt + output > most:
            asked = f"{prompt} + {output} tokens"
            yield f"check `{check.name}`: it asks for {asked}, and {what}: raise that, or ask for less"
        folder = Path(entry.launch.model_path)
        if problem := tokenizer_problem(folder, server_tells=entry.engine.tells_ids):
            yield f"check `{check.name}`: {problem}"


def _together(check: PlannedCheck, planned: PlannedLane) -> int:
    """Requests that must be computed at the same time, or the check does not show what it is for."""
    if isinstance(check.params, CacheBoundaryParams) and check.params.together:
        return len(check.params.lengths)
    if isinstance(check.params, PauseResumeParams) and planned.servers[-1].engine.pausing is not None:
        return check.params.concurrency
    return 0


def _requests(check: PlannedCheck, lanes: Mapping[str, PlannedLane]) -> Requests:
    """What the check asks, or the check that it refers to; nothing where that is not known."""
    own = check.check.requests(check.params)
    if own is not None:
        return own
    lane, name = reference_of(check.params, check.name) or ("", "")
    referred = lanes[lane].checks if lane in lanes else ()
    found = (other.check.requests(other.params) for other in referred if other.name == name)
    return next(found, None) or ()
