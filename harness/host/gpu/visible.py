"""GPUs as CUDA_VISIBLE_DEVICES names them: what a server is given, and what this program was given itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from harness.errors import ConfigError
from harness.host.gpu.inventory import Gpu, Inventory

By: TypeAlias = Literal["index", "uuid"]
_SHOWN = 200


def cuda_names(gpus: Sequence[Gpu], by: By) -> tuple[str, ...]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them, in the order given.

    Numbers are right only for a process that also gets CUDA_DEVICE_ORDER=PCI_BUS_ID: set it with them. They
    are the machine's, whatever CUDA_VISIBLE_DEVICES this program has itself. MIG slices, and GPUs whose
    number is uncertain, are named by UUID whatever `by` says; one list never mixes the two.

    Raises ConfigError for several MIG slices: a CUDA process can use only one.
    """
    if len(gpus) > 1 and any(gpu.mig for gpu in gpus):
        raise ConfigError(
            f"a server was to get {len(gpus)} devices, some of them MIG slices: {', '.join(map(str, gpus))}",
            fix="give each server one slice (`gpus: 1`), or switch MIG off: nvidia-smi -mig 0",
        )
    if by == "index" and all(gpu.ordinal is not None for gpu in gpus):
        return tuple(str(gpu.ordinal) for gpu in gpus)
    return tuple(gpu.uuid for gpu in gpus)


def visible(gpus: Sequence[Gpu], by: By) -> str:
    """The value of CUDA_VISIBLE_DEVICES: see `cuda_names`."""
    return ",".join(cuda_names(gpus, by))


def restricted(inventory: Inventory, environ: Mapping[str, str]) -> Inventory:
    """Only the GPUs that this program was given by its own CUDA_VISIBLE_DEVICES (by Slurm, by a person).

    Read as CUDA reads it: numbers, UUIDs or unambiguous beginnings of them, up to the first entry that names
    nothing. Numbers on a machine with different models mean nothing certain unless CUDA_DEVICE_ORDER is
    PCI_BUS_ID; then no GPU is given, and the reason says so.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None or not inventory.gpus:
        return inventory
    entries = [entry.strip() for entry in value.split(",")]
    value = value[:_SHOWN]
    by_number = any(map(_is_number, entries))
    models = {gpu.name for gpu in inventory.gpus}
    if by_number and len(models) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        reason = (
            f"CUDA_VISIBLE_DEVICES={value} names GPUs by number, and on a machine with different models "
            "(" + ", ".join(sorted(models)) + ") the numbers depend on CUDA_DEVICE_ORDER: "
            "set it to PCI_BUS_ID, or name them by UUID (nvidia-smi -L)"
        )
        return replace(inventory, gpus=(), reason=reason)
    given: dict[str, Gpu] = {}
    for entry in entries:
        gpu = _named(entry, inventory.gpus)
        if gpu is None:
            break
        given[gpu.uuid] = gpu
    kept = tuple(gpu for gpu in inventory.gpus if gpu.uuid in given)
    if not kept:
        reason = (
            f"CUDA_VISIBLE_DEVICES={value} gives this program none of the machine's {len(inventory.gpus)}"
        )
        return replace(inventory, gpus=(), reason=reason)
    note = f"CUDA_VISIBLE_DEVICES={value} gives this program {len(kept)} of {len(inventory.gpus)} GPUs"
    return replace(inventory, gpus=kept, notes=(*inventory.notes, note))


def _is_number(entry: str) -> bool:
    return entry.isascii() and entry.isdecimal() and len(entry) < 10


def _named(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if _is_number(entry):
        found = [gpu for gpu in gpus if gpu.ordinal == int(entry)]
    elif entry.upper().startswith(("GPU-", "MIG-")):
        found = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
    else:
        found = []
    return found[0] if len(found) == 1 else None
