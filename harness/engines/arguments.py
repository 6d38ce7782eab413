"""What an engine's command line accepts, as data: dumped from its own parser, or from the packaged lists."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.scenario.model import Scalar

DATA = Path(__file__).parent / "data"


class Argument(BaseModel):
    """One option. `type` is empty where any text will do as far as can be told from outside; `nargs` is 0 for
    a bare flag, None for exactly one value, else a number or one of `?`, `*`, `+`. `repeats`: several values
    are given by repeating the flag. `deprecated` is the engine's own remark."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    flags: tuple[str, ...]
    type: str = ""
    nargs: int | str | None = None
    choices: tuple[str, ...] = ()
    default: Scalar | None = None
    required: bool = False
    repeats: bool = False
    deprecated: str = ""

    @property
    def bare(self) -> bool:
        return self.nargs == 0


class ArgumentList(BaseModel):
    """Every option of one engine. `source` says in words where the list is from. `dotted`: the engine takes
    `--flag.key value` for one entry of a JSON flag."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    engine: str
    version: str
    source: str
    dotted: bool
    options: tuple[Argument, ...]

    def find(self, flag: str) -> Argument | None:
        """The option that has exactly this spelling."""
        return next((option for option in self.options if flag in option.flags), None)

    @property
    def flags(self) -> tuple[str, ...]:
        """Every spelling of every option."""
        return tuple(flag for option in self.options for flag in option.flags)

    @classmethod
    def load(cls, engine: str) -> "ArgumentList":
        """The packaged list. Raises KeyError for an engine that has none."""
        return _packaged(engine)

    @classmethod
    def of(cls, engine: str, version: str, source: str, dump: dict[str, Any]) -> "ArgumentList":
        """From what `data/parse_probe.py` wrote. Raises ValueError when it is something else."""
        fields = {"engine": engine, "version": version, "source": source, "dotted": engine == "vllm"}
        return cls.model_validate({**dump, **fields})


@lru_cache
def _packaged(engine: str) -> ArgumentList:
    for path in sorted(DATA.glob(f"{engine}-*.json")):
        version = path.stem.removeprefix(f"{engine}-")
        dump = json.loads(path.read_text(encoding="utf-8"))
        return ArgumentList.of(engine, version, f"packaged list of {engine} {version}", dump)
    raise KeyError(engine)
