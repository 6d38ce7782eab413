import pytest

from harness.host.gpu.inventory import Gpu, Inventory
from harness.host.gpu.visible import restricted

ALIKE = Inventory(
    tuple(Gpu(i, f"GPU-{i}{i}aa", "NVIDIA H200", 90, 143771, ordinal=i) for i in range(4)), "test"
)
MIXED = Inventory((*ALIKE.gpus[:1], Gpu(1, "GPU-11bb", "NVIDIA L4", 89, 23034, ordinal=1)), "test")
SLICES = Inventory(
    tuple(
        Gpu(0, uuid, "NVIDIA H200 MIG", 90, 18000, mig=True, parent="GPU-00aa") for uuid in ("MIG-a", "MIG-b")
    ),
    "test",
)


def given(inventory: Inventory, **environ: str) -> list[str]:
    return [gpu.uuid for gpu in restricted(inventory, environ).gpus]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", [0]),
        ("3,1", [1, 3]),
        (" 2 , 3 ", [2, 3]),
        ("GPU-22aa", [2]),
        ("GPU-2", [2]),
        ("gpu-22AA,0", [0, 2]),
        ("1,1", [1]),
        ("0,9,1", [0]),  # CUDA reads up to the first that names nothing
        ("0,-1,1", [0]),
        ("0,,1", [0]),
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
        ("all", []),
        ("GPU-", []),  # the beginning of several
        ("MIG-a", []),
        ("²", []),
        ("9" * 5000, []),
    ],
)
def test_read_as_cuda_reads_it(value: str, expected: list[int]) -> None:
    found = restricted(ALIKE, {"CUDA_VISIBLE_DEVICES": value})
    assert [gpu.index for gpu in found.gpus] == expected
    assert bool(found.reason) is not bool(expected)
    assert "CUDA_VISIBLE_DEVICES" in (found.reason or found.notes[0])


def test_unset_restricts_nothing() -> None:
    assert restricted(ALIKE, {}) is ALIKE
    nothing = Inventory((), "NVML", reason="no driver")
    assert restricted(nothing, {"CUDA_VISIBLE_DEVICES": "0"}) is nothing


def test_numbers_keep_their_meaning_for_servers() -> None:
    """What a server gets replaces what this program got: the machine's numbers, not those left over."""
    assert [gpu.ordinal for gpu in restricted(ALIKE, {"CUDA_VISIBLE_DEVICES": "2,3"}).gpus] == [2, 3]


def test_numbers_are_those_of_cuda() -> None:
    """GPU 1 belongs to somebody else: CUDA does not count it."""
    gpus = (ALIKE.gpus[0], Gpu(2, "GPU-22aa", "NVIDIA H200", 90, 143771, ordinal=1))
    assert given(Inventory(gpus, "test"), CUDA_VISIBLE_DEVICES="1") == ["GPU-22aa"]
    assert given(Inventory(gpus, "test"), CUDA_VISIBLE_DEVICES="2") == []


def test_numbers_on_a_mixed_machine_are_not_guessed() -> None:
    found = restricted(MIXED, {"CUDA_VISIBLE_DEVICES": "0"})
    assert found.gpus == ()
    assert "CUDA_DEVICE_ORDER" in found.reason
    assert given(MIXED, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-00aa"]
    assert given(MIXED, CUDA_VISIBLE_DEVICES="GPU-11") == ["GPU-11bb"]


def test_slices_are_named_by_their_uuid() -> None:
    assert given(SLICES, CUDA_VISIBLE_DEVICES="MIG-b") == ["MIG-b"]
    assert given(SLICES, CUDA_VISIBLE_DEVICES="0") == []
