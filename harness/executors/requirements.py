"""`requires:` of a lane: hardware conditions. Unmet ones give SKIPPED with the reason, never a guess.

Conditions on GPUs also restrict which ones the lane may lease: see `matches` and `link`.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.host.gpu.inventory import Gpu, Inventory, Link
from harness.host.gpu.topology import choose
from harness.host.hardware import cpu_features, cpu_model

# A "80 GB" GPU shows 79.6 GiB, one of "141 GB" 140.4: sizes are meant as they are sold.
NOMINAL = 0.97


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) and item for item in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_wholes(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_whole, value))


def _is_size(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


# What each condition must be: a test, and the words for it.
_SHAPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "cpu_any_of": (_is_texts, "a list of processor features, such as [avx512f]"),
    "gpu": (
        lambda value: (isinstance(value, str) and bool(_words(value))) or _is_texts(value),
        "a GPU family or model or a list of them, such as hopper or [h200, blackwell]",
    ),
    "count": (_is_whole, "a whole number of GPUs, such as 8"),
    "sm": (
        lambda value: _is_whole(value) or _is_wholes(value),
        "a compute capability as a whole number or a list of them, such as 90 or [100, 103]",
    ),
    "min_sm": (_is_whole, "a compute capability as a whole number, such as 90"),
    "gpu_memory_gib": (_is_size, "the memory of one GPU in GiB, such as 80"),
    "nvlink": (lambda value: isinstance(value, bool), "true or false"),
}
KNOWN = tuple(_SHAPES)
FAMILIES = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")
# Processor features as Linux names them, besides those of this machine; the usual one of a family first. All
# of AVX-512 and AMX stand here: a real name that is missing would be taken for a slip of the pen.
_FEATURES = """
sse sse2 pni ssse3 sse4_1 sse4_2 sse4a avx avx2 avx_vnni avx_vnni_int8 avx_ifma fma f16c bmi1 bmi2 gfni vaes
avx512f avx512cd avx512dq avx512bw avx512vl avx512er avx512pf avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni
avx512_bitalg avx512_vpopcntdq avx512_vp2intersect avx512_4vnniw avx512_4fmaps avx512_bf16 avx512_fp16
amx_tile amx_int8 amx_bf16 amx_fp16 amx_complex amx_fp8 amx_tf32 amx_avx512 amx_movrs
asimd asimdhp asimdrdm asimddp asimdfhm fp fphp bf16 i8mm neon vfpv4
sve sve2 sve2p1 svebf16 svei8mm svef32mm svef64mm sme sme2
"""
FEATURES = tuple(_FEATURES.split())


def problems(requires: Mapping[str, Any]) -> list[str]:
    """Conditions that are misspelt or malformed, one sentence each."""
    found = []
    for key, value in requires.items():
        if key not in _SHAPES:
            near = difflib.get_close_matches(key, KNOWN, 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(KNOWN)}"
            found.append(f"requires: there is no condition `{key}`{hint}")
        elif not _SHAPES[key][0](value):
            found.append(f"requires.{key} must be {_SHAPES[key][1]}")
        elif key == "gpu":
            found += _misspelt(value if isinstance(value, list) else [value])
        elif key == "cpu_any_of":
            found += _misspelt_features(value)
    return found


def _misspelt(names: Sequence[str]) -> list[str]:
    """A family that is nearly one: it would make a lane SKIPPED for ever, without anybody wondering."""
    return [
        f"requires.gpu: there is no family `{name}`; did you mean {near[0]}?"
        for name in names
        if name.lower() not in FAMILIES
        and (near := difflib.get_close_matches(name.lower(), FAMILIES, 1, 0.8))
    ]


def _misspelt_features(names: Sequence[str]) -> Iterator[str]:
    """Features that no processor has and one of which is nearly meant: `avx512`, `AMX-tile`. Others may be
    real."""
    known = (*FEATURES, *sorted(cpu_features()))
    for name in names:
        if name in known:
            continue
        word = name.lower().replace("-", "_")
        near = [feature for feature in known if sorted(feature) == sorted(word)]
        near += (feature for feature in known if len(word) > 2 and feature.startswith(word))
        near += difflib.get_close_matches(word, known, 1, 0.85)
        if near:
            yield f"requires.cpu_any_of: no processor feature is called `{name}`; did you mean {near[0]}?"


def unmet(requires: Mapping[str, Any], gpus: int, inventory: Inventory | None = None) -> str:
    """Why the machine cannot run a lane that leases `gpus` GPUs, as a sentence; empty when it can.

    `inventory` None means that nothing is known about GPUs: then a lane that needs any cannot run.
    """
    if problems(requires):  # told as such; nothing can be said about the hardware
        return ""
    wanted = requires.get("cpu_any_of", [])
    if wanted and not cpu_features() & set(wanted):
        return f"needs a processor with {' or '.join(wanted)}; this one ({cpu_model()}) has none of them"
    needed = max(gpus, requires.get("count", 0), 1 if _conditions(requires) else 0)
    if not needed:
        return ""
    if inventory is None:
        return f"needs {_description(requires, needed)}; nothing is known about this machine's GPUs"
    fitting = [gpu for gpu in inventory.gpus if matches(requires, gpu)]
    if len(fitting) < needed:
        return f"needs {_description(requires, needed)}; this machine has {_present(inventory)}"
    if gpus > 1 and not choose(inventory, fitting, gpus, link(requires)):
        return (
            f"needs {_description(requires, needed)}; this machine has {_present(inventory)}, "
            f"but no {gpus} of them are joined by NVLink"
        )
    return ""


def matches(requires: Mapping[str, Any], gpu: Gpu) -> bool:
    """Whether the lane may run on this GPU, whatever else the machine has."""
    sms = requires.get("sm", gpu.sm)
    return (
        ("gpu" not in requires or any(_is_called(name, gpu) for name in _names(requires)))
        and gpu.sm in (sms if isinstance(sms, list) else [sms])
        and gpu.sm >= requires.get("min_sm", 0)
        and gpu.memory_mib >= requires.get("gpu_memory_gib", 0) * 1024 * NOMINAL
    )


def link(requires: Mapping[str, Any]) -> Link:
    """How close the lane's GPUs must be to each other."""
    return Link.NVLINK if requires.get("nvlink") else Link.UNKNOWN


def _conditions(requires: Mapping[str, Any]) -> bool:
    return bool(requires.keys() & {"gpu", "sm", "min_sm", "gpu_memory_gib"}) or link(requires) > Link.UNKNOWN


def _names(requires: Mapping[str, Any]) -> Sequence[str]:
    names = requires["gpu"]
    return [names] if isinstance(names, str) else names


def _is_called(name: str, gpu: Gpu) -> bool:
    """By family, or by whole words of the model's name: an H20 is no H200, an L4 no L40S."""
    words, model = _words(name), _words(gpu.name)
    starts = range(len(model) - len(words) + 1)
    return bool(words) and (
        words == [gpu.family] or any(model[start : start + len(words)] == words for start in starts)
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", text.lower())


def _description(requires: Mapping[str, Any], count: int) -> str:
    """`8 hopper GPUs (sm 90, at least 80 GiB each, joined by NVLink)`."""
    kind = f"{' or '.join(_names(requires))} " if "gpu" in requires else ""
    sms = requires.get("sm", [])
    details = [f"sm {' or '.join(map(str, sms if isinstance(sms, list) else [sms]))}"] if sms else []
    details += [f"sm {requires['min_sm']} or newer"] if "min_sm" in requires else []
    details += [f"at least {requires['gpu_memory_gib']:g} GiB each"] if "gpu_memory_gib" in requires else []
    details += ["joined by NVLink"] if link(requires) and count > 1 else []
    text = f"{count} {kind}GPU{'s' if count > 1 else ''}"
    return f"{text} ({', '.join(details)})" if details else text


def _present(inventory: Inventory) -> str:
    notes = f" ({'; '.join(inventory.notes)})" if inventory.gpus and inventory.notes else ""
    return inventory.summary() + notes
