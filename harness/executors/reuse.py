"""`--baseline RUN`: a baseline lane that an earlier run measured already, taken over instead of run again.

Taken over only if nothing speaks against it: the same engine, version, weights, flags, environment and
hardware as planned now, the same check parameters, every artefact as it was written, and a sound verdict: the
one on record, and the one that today's judges give to the same files.
What only a running server can tell (its resolved configuration) is compared after the candidate has run, by
the pair's own parity; a baseline that fails there is run again.
"""

import errno
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.deploy.identity import lane_fingerprint
from harness.engines.base import Engine, Launch
from harness.errors import HarnessError
from harness.evidence.digests import FILE_NAME as DIGESTS
from harness.evidence.digests import check_digests, listed_files
from harness.evidence.files import open_regular
from harness.evidence.fingerprint import Fingerprint, diff, read_fingerprint, up_to_check
from harness.evidence.record import LaneRecord, RunRecord, ServerRecord
from harness.evidence.run_dir import RunDir
from harness.executors.judge import examine_lane
from harness.executors.planned_check import REQUEST_S
from harness.findings import EFFECT, Code, Finding
from harness.host.redact import redact_env, secret_values, telling
from harness.scenario.model import Lane, Scenario
from harness.verdict import Verdict

# Known only of a server that runs, or of an evaluation that has been made.
LATER = ("config.*", "*.config.*", "check.*")
DIRTY = "-dirty"  # behind a commit, which may stand in brackets: `1.2 (f76017b-dirty)`
SOUND = (Verdict.PASS, Verdict.REPORTED)


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The run that `--baseline` names. Raises ConfigError when it cannot be read."""

    run: RunDir
    record: RunRecord

    @classmethod
    def open(cls, path: Path) -> "EarlierRun":
        run = RunDir.open(path)
        return cls(run, run.read())

    def take_over(self, lane: str, folder: Path) -> LaneRecord:
        """Copy a lane's evidence into this run, so that the run can be judged by itself for ever: what its
        digests list, and nothing that lies beside it. Raises HarnessError; what was copied till then is
        left."""
        source = self.run.lane(lane)
        try:
            for name in (DIGESTS, *listed_files(source)):
                _copy(source / name, folder / name)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a name
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = f"the evidence of lane `{lane}` cannot be taken over from {self.run.path}: {error}"
            raise HarnessError(what, code=Code.DISK_FULL if full else Code.HOST_FAULT) from error
        if changed := check_digests(folder):
            what = f"the evidence of lane `{lane}` changed while it was taken over: {'; '.join(changed[:3])}"
            raise HarnessError(what, code=Code.HOST_FAULT)
        message = f"taken over from {self.run.run_id}, whose lane of this name ran under equal conditions"
        finding = Finding(code=Code.BASELINE_REUSED, message=message, where=str(self.run.path))
        record = self.record.lanes[lane].model_copy(deep=True)
        record.findings.append(finding)
        return record


def _copy(source: Path, target: Path) -> None:
    """The content of a regular file. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as old, target.open("xb") as new:
        shutil.copyfileobj(old, new)


def discard(folder: Path) -> None:
    """Throw a copy away: the earlier run keeps its own. Raises HarnessError."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        what = f"the copied evidence {folder} cannot be removed: {error.strerror or error}"
        raise HarnessError(what, fix="run again without --baseline", evidence=str(folder)) from error


def baselines_of(scenario: Scenario) -> set[str]:
    """Lanes that are baselines, and nobody's candidate."""
    pairs = scenario.pairs.values()
    return {pair.baseline for pair in pairs} - {pair.candidate for pair in pairs}


def objections(past: EarlierRun, lane: Lane, launches: Sequence[tuple[Engine, Launch]]) -> list[str]:
    """Why the earlier run's lane of this name cannot stand for the planned one; empty when it can."""
    earlier = past.record.lanes.get(lane.name)
    if earlier is None:
        return [f"{past.run.run_id} has no lane `{lane.name}`"]
    found = []
    if earlier.status != "done" or earlier.verdict not in SOUND:
        found.append(f"there it ended as {earlier.verdict} ({earlier.status})")
    if past.record.status != "done" or past.run.alive():
        found.append("that run did not come to its end, or is still running")
    if past.run.lane(lane.name).is_symlink():
        found.append("its folder is a link")
    if any(DIRTY in server.version for server in earlier.servers):
        found.append("its engine ran from a checkout with changes that no version tells apart")
    if _asked(earlier.check_params) != _asked(lane.checks):
        found.append("its checks had other parameters")
    folder = past.run.lane(lane.name)
    found += check_digests(folder)
    found += _judged_again(past, earlier)
    found += (
        f"nothing is left of its check `{name}`" for name in lane.checks if not any((folder / name).glob("*"))
    )
    try:
        before = read_fingerprint(folder)
    except HarnessError as error:
        return [*found, error.what]
    now = planned_fingerprint(lane, launches)
    found += (
        f"{item.key} was {item.baseline!r} and is {item.candidate!r}" for item in diff(before, now, LATER)
    )
    return found


def _asked(checks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without how long an answer was waited for: what came in time is the same."""
    return {
        name: {key: value for key, value in given.items() if key != REQUEST_S}
        for name, given in checks.items()
    }


def _judged_again(past: EarlierRun, earlier: LaneRecord) -> list[str]:
    """What today's judges have against the old evidence, whatever its record says. Writes nothing there."""
    lane = earlier.model_copy(deep=True)
    examine_lane(past.run, lane)
    if lane.verdict in SOUND:
        return []
    findings = [*lane.findings, *(item for result in lane.checks.values() for item in result.findings)]
    worst_first = sorted((item for item in findings if EFFECT[item.code]), key=_rank, reverse=True)
    why = f": {worst_first[0].code} {worst_first[0].headline}" if worst_first else ""
    return [f"judged again, its evidence is {lane.verdict}{why}"]


def _rank(finding: Finding) -> int:
    return (EFFECT[finding.code] or Verdict.PASS).rank


def planned_fingerprint(
    lane: Lane, launches: Sequence[tuple[Engine, Launch]], digest: Callable[[Path], str] | None = None
) -> Fingerprint:
    """As far as it is known before anything runs; `digest` as for `lane_fingerprint`."""
    records = []
    for engine, launch in launches:
        env = engine.environment(launch)
        secrets = telling(secret_values(engine.argv(launch), {**os.environ, **env}))
        records.append(
            ServerRecord(
                role=launch.role,
                engine=engine.name,
                version=engine.version(launch),
                argv=[],
                env=redact_env(env, secrets),
            )
        )
    return lane_fingerprint(lane, [launch for _, launch in launches], records, digest)


def late_objections(run: RunDir, scenario: Scenario, lane: str) -> list[str]:
    """What only the candidates of this run could tell: settings that differ between a baseline that was taken
    over and a candidate, and that the pair does not name. A candidate without fingerprint says nothing."""
    found: list[str] = []
    for pair in scenario.pairs.values():
        if pair.baseline != lane:
            continue
        try:
            sides = [
                up_to_check(read_fingerprint(run.lane(name)), list(scenario.lanes[name].checks), pair.check)
                for name in (pair.baseline, pair.candidate)
            ]
        except HarnessError:
            continue
        found += (
            f"{item.key} was {item.baseline!r} then, and is {item.candidate!r} on `{pair.candidate}`"
            for item in diff(sides[0], sides[1], pair.may_differ)
        )
    return found
