"""`--simulate`: the same scenario on the simulator, for people without GPUs and for tests of the harness.

The lanes' commands stay what they are; only the package `lightllm` that they start is the simulator's. Every
lane says so: its version ends in `+simulator`, and its verdict is never better than REPORTED.
"""

import os
import sys
from pathlib import Path

import harness
from harness.errors import ConfigError
from harness.evidence.record import LaneRecord
from harness.scenario.model import Lane, Scenario

SITE = Path(harness.__file__).parent / "simulator" / "site"
MODEL = Path(harness.__file__).parent / "simulator" / "weights"
INVENTORY = Path(harness.__file__).parent / "simulator" / "inventory.yaml"
ENGINE = "lightllm"
MARK = "+simulator"


def simulated(scenario: Scenario) -> Scenario:
    """Every lane started from the simulator's package. Raises ConfigError where an engine has none."""
    others = sorted({lane.engine for lane in scenario.lanes.values()} - {ENGINE})
    if others:
        what = f"there is a simulator of {ENGINE} only; this scenario also has {', '.join(others)}"
        raise ConfigError(what, fix="choose the lanes with --lane, or run without --simulate")
    return scenario.model_copy(update={"lanes": {name: _lane(lane) for name, lane in scenario.lanes.items()}})


def is_simulated(lane: LaneRecord) -> bool:
    """Whether any server of the lane was the simulator's, however it came to be started."""
    return any(server.version.endswith(MARK) for server in lane.servers)


def _lane(lane: Lane) -> Lane:
    servers = []
    for server in lane.servers:
        behind = server.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        env = {**server.env, "PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), behind)))}
        servers.append(server.model_copy(update={"env": env}))
    return lane.model_copy(update={"servers": tuple(servers), "python": sys.executable})
