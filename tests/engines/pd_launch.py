"""One server of a P/D lane, as the plan would have it launched."""

from pathlib import Path
from typing import Any

from harness.engines import engine_of
from harness.engines.base import Launch
from harness.scenario.model import FlagValue


def pd_launch(engine: str, role: str, flags: dict[str, FlagValue] | None = None, **more: Any) -> Launch:
    """With every port that the engine asks for; `more` is laid over it."""
    flags = flags or {}
    names = engine_of(engine, role).ports(role, flags)
    fields: dict[str, Any] = {
        "lane": "pd",
        "role": role,
        "model_path": "/models/smol",
        "served_name": "smol",
        "flags": flags,
        "env": {},
        "ports": {name: 20300 + number for number, name in enumerate(names)},
        "folder": Path("/runs/pd"),
        "python": "/venv/bin/python",
    }
    return Launch(**{**fields, **more})
