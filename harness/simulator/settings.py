"""What the simulator is told beside its command line: a JSON file named by `HARNESS_SIMULATOR`.

Faults and the model's ability are planted here and not by flags, which the real server would refuse.
"""

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FilePath, ValidationError, field_validator, model_validator

from harness import datasets
from harness.simulator.faults import FAULTS, PD, RUNNING
from harness.simulator.scheduler import Speed

VARIABLE = "HARNESS_SIMULATOR"
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class BadSettings(Exception):
    """The file of `HARNESS_SIMULATOR` is missing or wrong; the text says where."""


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean `{near[0]}`?" if near else f"; there are {', '.join(names)}"


class Fault(BaseModel):
    """One planted fault: its name in `FAULTS`, and where it strikes.

    `when`: only if these resolved start arguments have these values. `to`: a replacement, where the fault has
    one. `factor`: how much worse, where it has a degree. Of the faults in `RUNNING` and `PD`, `share` is the
    share of the prompts, and `after_requests` the number of prompts that are still served well.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fault: str
    when: Mapping[str, Any] = Field(default_factory=dict)
    share: Share = 1.0
    after_requests: Annotated[int, Field(ge=0)] = 0
    to: str = ""
    factor: Annotated[float, Field(gt=0)] | None = None

    @field_validator("fault")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in FAULTS:
            raise ValueError(f"there is no fault `{name}`{_nearest(name, FAULTS)}")
        return name

    @model_validator(mode="after")
    def _aimed(self) -> Self:
        if self.fault not in {**RUNNING, **PD} and (self.share != 1 or self.after_requests):
            raise ValueError(f"'{self.fault}' is there or not: it takes no share and no after_requests")
        return self


class Settings(BaseModel):
    """All of it. Without a file: a model without an answer key, in real time, without faults.

    `accuracy` is the share of right answers, for all KV types or by `--llm_kv_type`; `discordance` the share
    of questions on which the KV types differ. `capacity` is the KV pool in tokens when the command line
    leaves it to be profiled. `speed`: wall seconds per simulated second, 0 for as fast as possible. `costs`
    are simulated seconds, by the names of `scheduler.Speed`. `accept_mean`: tokens per decode step of a
    server that speculates. `pd_speed`: as `speed`, for heartbeats, retries and time-outs between the servers
    of P/D; `allow_loopback_nodes`: its nodes may be on 127.0.0.1, where the real ones end themselves.
    `parent_poll_seconds`: how often the router looks whether its launcher still lives.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    answer_key: FilePath | None = None
    accuracy: Share | dict[str, Share] = 0.6
    discordance: Share = 0.0
    seed: int = 0
    capacity: Annotated[int, Field(ge=64)] = 1_403_772
    load_seconds: Annotated[float, Field(ge=0)] = 1.0
    speed: Annotated[float, Field(ge=0)] = 1.0
    costs: Mapping[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    accept_mean: Annotated[float, Field(ge=1)] | None = None
    pd_speed: Annotated[float, Field(gt=0)] = 1.0
    allow_loopback_nodes: bool = False
    parent_poll_seconds: Annotated[float, Field(gt=0)] = 10.0
    faults: tuple[Fault, ...] = ()

    @field_validator("costs")
    @classmethod
    def _costs(cls, costs: Mapping[str, float]) -> Mapping[str, float]:
        known = {field.name for field in fields(Speed)}
        if unknown := costs.keys() - known:
            one = min(unknown)
            raise ValueError(f"there is no cost `{one}`{_nearest(one, known)}")
        return costs

    @property
    def accuracies(self) -> Mapping[str, float]:
        """By KV type; the first is the one that the discordance is measured against."""
        return self.accuracy if isinstance(self.accuracy, Mapping) else {"None": self.accuracy}


def _usual_answers() -> Path | None:
    """The test questions that a run without settings is most likely to ask."""
    folder = os.environ.get("HARNESS_GSM8K_DIR")
    files = [Path(folder) / "test.jsonl"] if folder else []
    files.append(Path(datasets.__file__).parent / "arithmetic" / "test.jsonl")
    return next((file for file in files if file.is_file()), None)


def load() -> Settings:
    """From the environment. Without `HARNESS_SIMULATOR`: the answers of GSM8K, or of the shipped set, and ten
    times as fast as simulated. Raises BadSettings."""
    name = os.environ.get(VARIABLE)
    if not name:
        return Settings(answer_key=_usual_answers(), speed=0.1)
    try:
        return Settings.model_validate(json.loads(Path(name).read_text(encoding="utf-8")))
    except ValidationError as error:
        raise BadSettings(f"{VARIABLE}={name}: {'; '.join(map(_sentence, error.errors()))}") from error
    except (OSError, ValueError) as error:  # not there, or no JSON
        raise BadSettings(f"{VARIABLE}={name}: {error}") from error


def _sentence(error: Mapping[str, Any]) -> str:
    """`faults.0.share: Input should be ...`, without the library's own marks."""
    place = ".".join(map(str, error["loc"]))
    told = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = Fault.model_fields if "faults" in error["loc"] else Settings.model_fields
        told = f"there is no such setting{_nearest(str(error['loc'][-1]), known)}"
    return f"{place}: {told}" if place else "it holds no JSON object"
