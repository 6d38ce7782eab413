"""Leases of GPUs within one program, on a made-up machine; tests/nvml has those between programs."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from harness.errors import ConfigError, HarnessError
from harness.findings import Code
from harness.host import locks
from harness.host.gpu import Gpu, GpuBook, GpuProcess, Inventory, Link, Usage, busy_reason, visible
from harness.host.gpu import book as module


@dataclass
class Source:
    """GPUs joined by NVLink two by two: 0 with 1, 2 with 3, ..."""

    gpus: tuple[Gpu, ...]
    used: dict[int, Usage] = field(default_factory=dict)
    looks: int = 0

    def inventory(self) -> Inventory:
        links: Mapping[frozenset[str], Link] = {
            frozenset((a.uuid, b.uuid)): Link.NVLINK
            for a in self.gpus
            for b in self.gpus
            if a is not b and a.index // 2 == b.index // 2
        }
        return Inventory(self.gpus, "made up", links)

    def usage(self, gpu: Gpu) -> Usage:
        self.looks += 1
        return self.used.get(gpu.index, Usage())


def h200(index: int) -> Gpu:
    return Gpu(index, f"GPU-{index}", "NVIDIA H200", 90, 143771, ordinal=index, numa=0)


def l4(index: int) -> Gpu:
    return Gpu(index, f"GPU-{index}", "NVIDIA L4", 89, 23034, ordinal=index, numa=0)


@pytest.fixture
def source() -> Source:
    return Source(tuple(map(h200, range(4))))


@pytest.fixture
def book(source: Source, monkeypatch: pytest.MonkeyPatch) -> GpuBook:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    return GpuBook(source, "run fp8-mtp")


def indices(gpus: tuple[Gpu, ...]) -> list[int]:
    return [gpu.index for gpu in gpus]


def test_a_lease_excludes_until_it_is_released(book: GpuBook, source: Source) -> None:
    with book.lease(2, deadline_s=0) as first:
        assert indices(first.gpus) == [0, 1]
        other = GpuBook(source, "run other")
        with other.lease(2, deadline_s=0) as second:
            assert indices(second.gpus) == [2, 3]
            assert other.try_lease(1) is None
        first.release()  # twice does no harm
        assert indices(book.peek(4)) == [0, 1, 2, 3]
    assert not any(locks.is_held(f"gpu-GPU-{index}") for index in range(4))


def test_a_lease_of_nothing_needs_no_gpu() -> None:
    with GpuBook(Source(())).lease(0, deadline_s=0) as lease:
        assert lease.gpus == ()


def test_peek_locks_nothing(book: GpuBook, source: Source) -> None:
    assert indices(book.peek(2)) == [0, 1]
    source.used[0] = Usage(used_mib=50_000)
    assert indices(book.peek(2)) == [2, 3]
    assert indices(book.peek(4)) == [0, 1, 2, 3]  # busy now, but that is what there will be
    assert book.peek(5) == ()
    assert not any(locks.is_held(f"gpu-GPU-{index}") for index in range(4))


def test_the_deadline_names_every_gpu_and_what_is_in_the_way(book: GpuBook, source: Source) -> None:
    source.used = {
        0: Usage(unreadable="GPU is lost"),
        1: Usage(80_000, (GpuProcess(77, "python train.py", 79_000),)),
        2: Usage(12_345),
    }
    book.quarantine(source.gpus[3], "still holds 5 MiB")
    with pytest.raises(HarnessError) as caught:
        book.lease(1, deadline_s=0.05)
    text = str(caught.value)
    assert caught.value.code is Code.GPU_BUSY
    assert "1 idle GPUs were not to be had within 0.05 s: 0 of 4 are idle" in text
    assert "GPU 0 (NVIDIA H200): cannot be read: GPU is lost" in text
    assert "GPU 1 (NVIDIA H200): used by pid 77 (python train.py, 79,000 MiB)" in text
    assert "GPU 2 (NVIDIA H200): 12,345 MiB used by nobody visible" in text
    assert "GPU 3 (NVIDIA H200): quarantined: still holds 5 MiB" in text


def test_waiting_ends_when_told_to(book: GpuBook, source: Source) -> None:
    source.used = {index: Usage(50_000) for index in range(4)}

    def stop() -> None:
        if source.looks > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        book.lease(1, deadline_s=60, stop=stop)


def test_it_waits_for_a_gpu_to_become_idle(book: GpuBook, source: Source) -> None:
    source.used = {index: Usage(50_000) for index in range(4)}

    def stop() -> None:
        if source.looks > 10:
            source.used.clear()

    with book.lease(4, deadline_s=60, stop=stop) as lease:
        assert len(lease.gpus) == 4


def test_more_than_the_machine_has_is_told_at_once(book: GpuBook) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"8 GPUs are asked for; this machine has 4 NVIDIA H200 \(sm 90"):
        book.lease(8, deadline_s=60)
    with pytest.raises(ConfigError, match=r"no 4 of 4 NVIDIA H200 .* are joined by NVLINK"):
        book.lease(4, deadline_s=60, link=Link.NVLINK)
    with pytest.raises(ConfigError, match="of which 0 meet the lane's conditions"):
        book.lease(1, deadline_s=60, suitable=lambda gpu: gpu.sm == 100)
    assert time.monotonic() - began < 5


def test_too_many_quarantines_end_the_wait_at_once(book: GpuBook, source: Source) -> None:
    book.quarantine(source.gpus[2], "still holds 5 MiB")
    began = time.monotonic()
    with pytest.raises(HarnessError, match="will not be free in this run"):
        book.lease(4, deadline_s=60)
    assert time.monotonic() - began < 5
    assert indices(book.lease(3, deadline_s=0).gpus) == [0, 1, 3]


def test_a_group_has_one_model_where_the_machine_has_enough_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    source = Source((l4(0), h200(1), h200(2), l4(3), l4(4)))
    book = GpuBook(source)
    assert indices(book.peek(3)) == [0, 3, 4]
    assert indices(book.peek(2, suitable=lambda gpu: gpu.family == "hopper")) == [1, 2]
    assert indices(book.peek(5)) == [0, 1, 2, 3, 4]
    source.used[3] = Usage(20_000)
    assert book.try_lease(3) is None  # not two L4 and an H200


def test_threads_of_one_program_share_without_a_clash(book: GpuBook) -> None:
    mine: set[str] = set()
    clashes: list[str] = []

    def lane() -> None:
        for count in (1, 4, 2, 3, 1):
            with book.lease(count, deadline_s=60) as lease:
                uuids = {gpu.uuid for gpu in lease.gpus}
                clashes.extend(uuids & mine)
                mine.update(uuids)
                time.sleep(0.002)
                mine.difference_update(uuids)

    threads = [threading.Thread(target=lane) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert clashes == []


def test_memory_is_compared_with_what_it_was(book: GpuBook, source: Source) -> None:
    source.used = {0: Usage(900), 1: Usage(4)}
    with book.lease(2, deadline_s=0) as lease:
        assert lease.before == {"GPU-0": 900, "GPU-1": 4}
        source.used = {0: Usage(1100), 1: Usage(255)}
        assert book.verify_released(lease, frozenset(), patience_s=0) == []
        source.used = {0: Usage(1100), 1: Usage(270)}
        findings = book.verify_released(lease, frozenset({5}), patience_s=0)
        assert [finding.code for finding in findings] == [Code.RELEASE_GPU, Code.GPU_QUARANTINED]
        assert "still holds 270 MiB (4 MiB before the lane)" in findings[0].message
        assert book.verify_released(lease, frozenset(), {"GPU-0": 900, "GPU-1": 100}, patience_s=0) == []


def test_a_quarantine_outlasts_its_cause(book: GpuBook, source: Source) -> None:
    """What came back after the patience is not trusted in this run; the next run looks for itself."""
    with book.lease(1, deadline_s=0) as lease:
        source.used[0] = Usage(5_000)
        book.verify_released(lease, frozenset(), patience_s=0)
    source.used.clear()
    assert "quarantined: still holds 5,000 MiB" in book.in_the_way(source.gpus[0])
    assert indices(book.lease(1, deadline_s=0).gpus) == [1]
    assert indices(GpuBook(source).lease(1, deadline_s=0).gpus) == [0]


def test_a_lock_taken_in_between_gives_the_whole_group_back(
    book: GpuBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = locks.try_lock("gpu-GPU-1", "run other")
    assert held is not None
    with monkeypatch.context() as patch:
        patch.setattr(locks, "is_held", lambda name: False)
        assert book.try_lease(2) is None
    assert not locks.is_held("gpu-GPU-0")
    held.release()


def test_a_process_counts_even_without_memory(book: GpuBook, source: Source) -> None:
    with book.lease(1, deadline_s=0) as lease:
        source.used[0] = Usage(4, (GpuProcess(9, "Xorg", 4, graphics=True),))
        assert book.verify_released(lease, frozenset({5}), patience_s=0) == []
        findings = book.verify_released(lease, frozenset({9}), patience_s=0)
        assert "pid 9 (Xorg, 4 MiB), of this lane" in findings[0].message


@pytest.mark.parametrize(("used", "idle"), [(1436, True), (1437, False)])
def test_the_idle_limit_is_a_hundredth_of_a_large_gpu(used: int, *, idle: bool) -> None:
    assert (busy_reason(h200(0), Usage(used)) == "") is idle


@pytest.mark.parametrize(("used", "idle"), [(1023, True), (1024, False)])
def test_the_idle_limit_of_a_small_gpu_leaves_room_for_the_driver(used: int, *, idle: bool) -> None:
    assert (busy_reason(l4(0), Usage(used)) == "") is idle


@pytest.mark.parametrize(
    ("sm", "family"),
    [
        (70, "volta"),
        (75, "turing"),
        (80, "ampere"),
        (86, "ampere"),
        (89, "ada"),
        (90, "hopper"),
        (100, "blackwell"),
        (103, "blackwell"),
        (120, "blackwell"),
        (0, ""),
        (61, ""),
        (200, ""),
    ],
)
def test_families(sm: int, family: str) -> None:
    assert Gpu(0, "GPU-0", "x", sm, 1).family == family


def test_names_for_cuda() -> None:
    assert visible([h200(2), h200(5)], "index") == "2,5"
    assert visible([h200(2), h200(5)], "uuid") == "GPU-2,GPU-5"
    uncertain = Gpu(1, "GPU-1", "NVIDIA H200", 90, 143771)
    assert visible([h200(0), uncertain], "index") == "GPU-0,GPU-1"
    part = Gpu(0, "MIG-a", "NVIDIA H200 MIG 1g.18gb", 90, 18000, mig=True)
    assert visible([part], "index") == "MIG-a"
    with pytest.raises(ConfigError, match="MIG"):
        visible([part, part], "uuid")
