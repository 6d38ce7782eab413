"""A machine's GPUs described in a YAML file, for plans and tests where the GPUs are elsewhere.

They are always idle, and nothing about them can be measured; leases and locks are as real as with NVML.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harness.errors import ConfigError
from harness.host.gpu.inventory import Gpu, Inventory, Link, Usage
from harness.scenario.problems import Place, Problems
from harness.scenario.validate import validate
from harness.scenario.yaml_source import read_file

MOST_GPUS = 64
_LINK_NAMES = {link.name.lower(): link for link in Link}


def _link(value: object) -> object:
    found = _LINK_NAMES.get(value) if isinstance(value, str) else value
    if not isinstance(found, Link):
        raise ValueError(f"{value!r} is no link; known: {', '.join(_LINK_NAMES)}")  # noqa: TRY004 - pydantic's
    return found


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _DescribedGpus(_Strict):
    name: str = Field(min_length=1)
    sm: int = Field(ge=10, le=999)
    memory_mib: int = Field(gt=0)
    count: int = Field(1, ge=1, le=MOST_GPUS)
    numa: int | None = Field(None, ge=0)


class _DescribedLink(_Strict):
    between: list[int] = Field(min_length=2)
    link: Annotated[Link, BeforeValidator(_link)]


class _Described(_Strict):
    description: str = ""
    gpus: list[_DescribedGpus] = Field(min_length=1)
    links: list[_DescribedLink] = []


class DescribedSource:
    """A `GpuSource` that was written down."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def inventory(self) -> Inventory:
        return self._inventory

    def usage(self, gpu: Gpu) -> Usage:  # noqa: ARG002 - all are idle
        return Usage()


def load_inventory(path: Path) -> DescribedSource:
    """The machine that the file describes. Raises ConfigError with every problem of the file at its place.

    `gpus` is a list of `name`, `sm` and `memory_mib`, with `count` of such GPUs and their `numa` node; they
    are numbered in this order. `links` says how the GPUs `between` are joined, each with each; pairs that it
    does not name are as far apart as their NUMA nodes say.
    """
    problems = Problems()
    tree = read_file(path, problems)
    described = None
    if tree is not None:
        described = validate(_Described, tree, Place(str(path), 1, 1), problems, what="the inventory")
    if described is not None and not len(problems):
        gpus = tuple(_gpus(described, path.stem))
        for sentence in _misfits(described, gpus):
            problems.add(Place(str(path)), sentence)
        if not len(problems):
            links = {**dict(_by_numa(gpus)), **dict(_by_description(described, gpus))}
            return DescribedSource(Inventory(gpus, f"described by {path.name}", links, measurable=False))
    raise ConfigError(
        f"the inventory {path} cannot be used; nothing was started.",
        problems=problems.texts(),
        fix="labs/inventory-8xh200.yaml is an example",
    )


def _gpus(described: _Described, stem: str) -> Iterator[Gpu]:
    """UUIDs are made of the file's name: two programs with the same file mean the same machine."""
    machine = re.sub(r"[^A-Za-z0-9.-]+", "-", stem)[:60]
    alike = [group for group in described.gpus for _ in range(group.count)]
    for index, group in enumerate(alike):
        yield Gpu(
            index=index,
            uuid=f"GPU-{machine}-{index}",
            name=group.name,
            sm=group.sm,
            memory_mib=group.memory_mib,
            ordinal=index,
            numa=group.numa,
        )


def _misfits(described: _Described, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    if len(gpus) > MOST_GPUS:
        yield f"{len(gpus)} GPUs are described; a machine has at most {MOST_GPUS}."
    for joined in described.links:
        for index in joined.between:
            if not 0 <= index < len(gpus):
                yield f"`links` names GPU {index}; the GPUs are 0 to {len(gpus) - 1}."
        if len(set(joined.between)) < len(joined.between):
            yield f"`links` names a GPU twice in {joined.between}."


def _by_numa(gpus: tuple[Gpu, ...]) -> Iterator[tuple[frozenset[str], Link]]:
    for one, other in combinations(gpus, 2):
        if one.numa is not None and other.numa is not None:
            yield frozenset((one.uuid, other.uuid)), Link.NODE if one.numa == other.numa else Link.SYSTEM


def _by_description(described: _Described, gpus: tuple[Gpu, ...]) -> Iterator[tuple[frozenset[str], Link]]:
    for joined in described.links:
        for one, other in combinations(joined.between, 2):
            yield frozenset((gpus[one].uuid, gpus[other].uuid)), joined.link
