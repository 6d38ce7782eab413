from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.host.gpu import GpuBook, Link, busy_reason, visible
from harness.host.gpu.described import load_inventory

EXAMPLE = Path(__file__).parents[2] / "labs" / "inventory-8xh200.yaml"
GPUS = """gpus:
  - {name: NVIDIA H200, sm: 90, memory_mib: 143771, count: 2, numa: 0}
  - {name: NVIDIA L4, sm: 89, memory_mib: 23034, numa: 1}
"""


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "lab.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_example() -> None:
    source = load_inventory(EXAMPLE)
    found = source.inventory()
    assert found.summary() == "8 NVIDIA H200 (sm 90, 140 GiB)"
    assert found.source == "described by inventory-8xh200.yaml"
    assert not found.measurable
    assert set(found.links.values()) == {Link.NVLINK}
    assert len(found.links) == 28
    assert [gpu.numa for gpu in found.gpus] == [0] * 4 + [1] * 4
    assert not any(busy_reason(gpu, source.usage(gpu)) for gpu in found.gpus)


def test_links_follow_the_numa_nodes_unless_they_are_given(tmp_path: Path) -> None:
    found = load_inventory(written(tmp_path, GPUS)).inventory()
    one, two, three = found.gpus
    assert found.link(one, two) is found.link(two, one) is Link.NODE
    assert found.link(one, three) is Link.SYSTEM
    given = load_inventory(written(tmp_path, GPUS + "links: [{between: [0, 2], link: switch}]\n")).inventory()
    assert given.link(one, three) is Link.SWITCH
    assert given.link(one, two) is Link.NODE


def test_an_odd_file_name_makes_plain_uuids(tmp_path: Path) -> None:
    odd = tmp_path / ("my, lab é" + "x" * 200 + ".yaml")
    written(tmp_path, GPUS).rename(odd)
    book = GpuBook(load_inventory(odd))
    with book.lease(2, deadline_s=0) as lease:
        assert visible(lease.gpus, "uuid").count(",") == 1
        assert lease.gpus[0].uuid.startswith("GPU-my-lab-x")


def test_leases_are_real_but_nothing_is_verified(tmp_path: Path) -> None:
    path = written(tmp_path, GPUS)
    book, other = (GpuBook(load_inventory(path), name) for name in ("run one", "run other"))
    with book.lease(2, deadline_s=0) as lease:
        assert visible(lease.gpus, "index") == "0,1"
        assert not lease.measurable
        assert other.try_lease(2) is None
        assert "run one" in other.in_the_way(lease.gpus[0])
        assert book.verify_released(lease, frozenset({1}), {"GPU-lab-0": 5}) == []


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("gpus: [{nme: X, sm: 90, memory_mib: 1}]", ["Did you mean `name`?", "`name` is missing"]),
        (
            "gpus: [{name: X, sm: 90, memory_mib: 1}]\nlink: []",
            ["Unknown key `link`", "Did you mean `links`?"],
        ),
        ("gpus: [{name: X, sm: '90', memory_mib: 1}]", ["`gpus.0.sm`: expected a whole number"]),
        ("gpus: [{name: X, sm: true, memory_mib: 0}]", ["got `true`", "must be more than 0"]),
        ("gpus: [{name: X, sm: 90, memory_mib: 1, count: 65}]", ["must be at most 64"]),
        ("gpus: []", ["`gpus`"]),
        ("gpus: {}", ["`gpus`: expected a list"]),
        ("{}", ["`gpus` is missing"]),
        ("[]", ["expected a mapping"]),
        ("", ["empty"]),
        (b"\xff\xfe\x00", ["not UTF-8"]),
        ("gpus: [", ["not valid YAML"]),
        (GPUS + "links: [{between: [0, 1], link: nvlnk}]", ["'nvlnk' is no link; known: unknown, system"]),
        (GPUS + "links: [{between: [0, 1], link: 7}]", ["7 is no link"]),
        (GPUS + "links: [{between: [0, 3], link: nvlink}]", ["`links` names GPU 3; the GPUs are 0 to 2"]),
        (GPUS + "links: [{between: [1, -1], link: nvlink}]", ["`links` names GPU -1"]),
        (GPUS + "links: [{between: [1, 1], link: nvlink}]", ["twice"]),
        (GPUS + "links: [{between: [1], link: nvlink}]", ["`links.0.between`"]),
        (
            "gpus:\n" + "  - {name: X, sm: 90, memory_mib: 1, count: 40}\n" * 2,
            ["80 GPUs are described; a machine has at most 64"],
        ),
    ],
)
def test_every_problem_is_told(tmp_path: Path, text: str | bytes, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inventory(written(tmp_path, text))
    assert caught.value.problems
    for problem in problems:
        assert problem in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a file"):
        load_inventory(tmp_path / "none.yaml")
