"""`requires:` of a lane: hardware conditions. Unmet ones give SKIPPED with the reason, never a guess."""

import difflib
from collections.abc import Mapping
from typing import Any

from harness.host.hardware import cpu_features, cpu_model

KNOWN = ("cpu_any_of",)


def problems(requires: Mapping[str, Any]) -> list[str]:
    """Conditions that are misspelt or malformed, one sentence each."""
    found = []
    for key, value in requires.items():
        if key not in KNOWN:
            near = difflib.get_close_matches(key, KNOWN, 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(KNOWN)}"
            found.append(f"requires: there is no condition `{key}`{hint}")
        elif not isinstance(value, list) or not all(isinstance(item, str) for item in value) or not value:
            found.append(f"requires.{key} must be a list of processor features, such as [avx512f]")
    return found


def unmet(requires: Mapping[str, Any], gpus: int) -> str:
    """Why this machine cannot run the lane; empty when it can. GPU lanes need GPU leases, which this version
    does not have."""
    if gpus:
        return f"needs {gpus} GPU(s); this version leases no GPUs yet"
    if problems(requires):  # told as such; nothing can be said about the hardware
        return ""
    wanted = requires.get("cpu_any_of", [])
    if wanted and not cpu_features() & set(wanted):
        return f"needs a processor with {' or '.join(wanted)}; this one ({cpu_model()}) has none of them"
    return ""
