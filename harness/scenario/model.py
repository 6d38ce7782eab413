"""The scenario as frozen data. Pure: no file, no process, no clock.

Flags are written exactly as the server spells them (`--kv-cache-dtype: fp8`): a scalar is one value, a
list is one flag with several values, `true` is a bare flag, and `false` or `null` takes an inherited flag
out again.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Scalar: TypeAlias = bool | int | float | str
FlagValue: TypeAlias = Scalar | list[int | float | str] | None
WEEK_S = 7 * 24 * 3600  # a longer limit is none, and more than some clocks can wait for
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=WEEK_S, allow_inf_nan=False)]
Role: TypeAlias = Literal["normal", "prefill", "decode", "master", "router"]


class Frozen(BaseModel):
    """Base of all scenario types: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSpec(Frozen):
    """Which weights are served, and under which name the server must say so."""

    path: str | None = Field(None, description="model file or directory on this machine")
    pull: str | None = Field(None, description="name of a model that `harness models pull` knows")
    served_name: str = Field("model", description="the name clients send; the server must report it")


class ServerSpec(Frozen):
    """One server process of a lane; its flags and environment are laid over the lane's. A `router` is another
    program than the servers behind it: it takes nothing but its own flags."""

    role: Role = "normal"
    flags: dict[str, FlagValue] = Field(default_factory=dict, description="exactly as the server spells them")
    env: dict[str, str] = Field(default_factory=dict)
    expect: dict[str, Scalar] = Field(
        default_factory=dict, description="values the running server's own configuration must show"
    )
    gpus: int = Field(0, ge=0, description="GPUs leased for this server")
    cpus: int | None = Field(None, ge=1, description="CPU cores leased for this server alone")
    host: str = Field("127.0.0.1", description="address of this machine that the server listens on")


class Timeouts(Frozen):
    """Seconds. `start_s` counts since the last visible progress; `start_cap_s` is the hard limit."""

    start_s: Seconds = 300
    start_cap_s: Seconds = 3600
    request_s: Seconds = 600
    check_s: Seconds = 6 * 3600
    stop_s: Seconds = 30


class Lane(Frozen):
    """One deployment and the checks that run against it."""

    name: str
    description: str = ""
    engine: str
    python: str | None = Field(None, description="interpreter that has the engine installed")
    binary: str | None = Field(None, description="server program, for engines that are one (llama-server)")
    model: ModelSpec
    servers: tuple[ServerSpec, ...] = Field(
        min_length=1, description="the last is the one that clients talk to"
    )
    checks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    timeouts: Timeouts = Timeouts()
    required: bool = Field(True, description="false: a SKIPPED lane does not worsen the run")
    requires: dict[str, Any] = Field(default_factory=dict, description="hardware conditions")
    skip: str = Field("", description="why the lane is SKIPPED wherever it is run; none: it runs")
    minutes: float = Field(
        10, gt=0, description="expected duration; lanes are packed on the GPUs by it, longest first"
    )


class Pair(Frozen):
    """Baseline against candidate on one check, and the settings that may differ between them."""

    name: str
    baseline: str
    candidate: str
    check: str = "gsm8k"
    may_differ: tuple[str, ...] = Field(
        (), description="fingerprint keys (wildcards allowed) exempt from parity, e.g. flags.--kv-cache-dtype"
    )
    max_drop_pp: float | None = Field(
        None, ge=0, lt=100, description="accepted accuracy drop in percentage points; none: REPORTED"
    )


class Scenario(Frozen):
    """What `harness run NAME` runs."""

    name: str
    description: str = ""
    source: Path
    params: dict[str, str] = Field(default_factory=dict)
    lanes: dict[str, Lane]
    pairs: dict[str, Pair] = Field(default_factory=dict)
    left_out: tuple[str, ...] = Field((), description="lanes that were not chosen with --lane")
