import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.findings import Code
from harness.host import locks, ports, proc, sockets
from harness.host.ports import PortBook, listener, still_bound
from tests.host.conftest import Start, free_port

NAMES = ("http", "nccl", "bootstrap")
LEASE = """
import sys
from harness.host.ports import PortBook
book = PortBook(f"racer {sys.argv[1]}")
print("at the line", flush=True)
sys.stdin.readline()
leases = [book.lease([f"p{n}" for n in range(5)]) for _ in range(4)]
print(*[port for lease in leases for port in lease.ports.values()], flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


@pytest.fixture
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else takes or leaves a port meanwhile."""
    monkeypatch.setattr(ports, "bindable", lambda port, *, reuse: True)


@pytest.mark.usefixtures("idle_machine")
def test_lease_gives_what_peek_promised_and_never_twice() -> None:
    book = PortBook("mine")
    promised = book.peek(NAMES)
    assert book.peek(NAMES) == promised
    with book.lease(NAMES) as lease:
        assert lease.ports == promised
        assert tuple(lease.ports) == NAMES
        assert all(port in ports.PORTS for port in lease.ports.values())
        other = PortBook("other").lease(NAMES)
        assert not set(other.ports.values()) & set(lease.ports.values())
        other.release()
    again = book.lease(NAMES)
    assert not set(again.ports.values()) & set(promised.values())
    again.release()
    with PortBook("next run").lease(NAMES) as later:
        assert later.ports == promised, "a released block is free for another run"


@pytest.mark.usefixtures("idle_machine")
def test_peek_locks_nothing(lock_dir: Path) -> None:
    PortBook().peek(NAMES)
    assert list(lock_dir.glob("ports-*")) == []


@pytest.mark.usefixtures("idle_machine")
def test_more_names_than_a_block_holds() -> None:
    names = [f"port{n}" for n in range(2 * ports.BLOCK + 1)]
    book = PortBook()
    promised = book.peek(names)
    with book.lease(names) as lease:
        assert lease.ports == promised
        assert len(set(lease.ports.values())) == len(names)


def test_names_must_be_distinct() -> None:
    with pytest.raises(ValueError, match="distinct"):
        PortBook().lease(["http", "http"])


@pytest.mark.process
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "127.0.0.2"])
def test_a_taken_port_is_left_out(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral", lambda: range(0))
    monkeypatch.setattr(ports, "TAKEN_BY_LIGHTLLM", range(0))
    with socket.socket() as taken:
        taken.bind((address, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HarnessError, match="0 found"):
            PortBook(ports=range(port, port + 1)).lease(["http"])
    assert PortBook(ports=range(port, port + 1)).lease(["http"]).ports == {"http": port}


@pytest.mark.usefixtures("idle_machine")
def test_an_exhausted_range_says_who_holds_it() -> None:
    span = ports.PORTS[:20]
    first = PortBook("run alpha", span).lease([f"p{n}" for n in range(10)])
    second = PortBook("run beta", span).lease(["only"])
    with pytest.raises(HarnessError, match="2 blocks") as caught:
        PortBook("late", span).lease(["http"])
    assert caught.value.code is Code.PORT_TAKEN
    assert "run alpha" in caught.value.cause
    assert "run beta" in caught.value.cause
    first.release()
    second.release()
    assert PortBook("late", span).lease(["http"]).ports


@pytest.mark.usefixtures("idle_machine")
def test_a_failed_lease_holds_nothing() -> None:
    book = PortBook("greedy", ports.PORTS[:20])
    with pytest.raises(HarnessError):
        book.lease([f"p{n}" for n in range(21)])
    assert not locks.is_held(f"ports-{ports.PORTS.start}")
    assert len(book.lease([f"p{n}" for n in range(20)]).ports) == 20


@pytest.mark.usefixtures("idle_machine")
def test_the_kernels_and_lightllms_ranges_are_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_IPV4", tmp_path)
    (tmp_path / "ip_local_port_range").write_text("20000\t60999\n")
    with pytest.raises(HarnessError, match="no 1 free ports") as caught:
        PortBook().peek(["http"])
    assert "ip_local_reserved_ports=20000-29999" in caught.value.fix
    (tmp_path / "ip_local_reserved_ports").write_text("8080,20100-20199\n")
    assert 20100 <= PortBook().peek(["http"])["http"] <= 20199
    (tmp_path / "ip_local_port_range").write_text("40000 60999\n")
    assert PortBook(ports=range(29998, 32800)).peek(["a", "b", "c"])["c"] >= 32768


@pytest.mark.process
def test_processes_racing_for_ports_never_share_one() -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", LEASE, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(8)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "at the line\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        got = [port for racer in racers if racer.stdout for port in racer.stdout.readline().split()]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert len(got) == 8 * 4 * 5
    assert len(set(got)) == len(got)


@pytest.mark.process
def test_listener_names_the_process(server: socket.socket, start: Start) -> None:
    mine = listener(server.getsockname()[1])
    assert mine is not None
    assert (mine.pid, mine.uid, mine.address) == (os.getpid(), os.getuid(), "127.0.0.1")
    port = free_port()
    assert listener(port) is None
    process = start("serve", port)
    found = listener(port)
    assert found is not None
    assert found.pid == process.pid
    assert f"serve {port}" in found.command
    assert str(port) in str(found)


@pytest.mark.process
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_listener_sees_wildcards(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening:
        if address.startswith("::ffff"):
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listening.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        listening.listen()
        found = listener(listening.getsockname()[1])
    assert found is not None
    assert found.pid == os.getpid()


@pytest.mark.process
def test_listener_of_a_process_that_may_not_be_looked_at(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "socket_inodes", lambda pid: set())
    found = listener(server.getsockname()[1])
    assert found is not None
    assert found.pid is None
    assert f"uid {os.getuid()}" in str(found)


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_listener_asked_by_somebody_who_is_not_permitted(server: socket.socket) -> None:
    port = server.getsockname()[1]
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setuid(65534)
            server.close()  # ours only by inheritance
            os.write(writing, repr(listener(port)).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    said = os.read(reading, 1000).decode()
    os.close(reading)
    assert "pid=None" in said
    assert "uid 0 that may not be looked at" in said


@pytest.mark.process
def test_a_bound_or_listening_port_is_still_bound_and_time_wait_is_not(server: socket.socket) -> None:
    port = server.getsockname()[1]
    assert still_bound([port]) == [port]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    accepted.close()  # the side that closes first is left in TIME_WAIT, and that is the server's
    client.close()
    server.close()
    assert not sockets.bindable(port, reuse=False), "the planted TIME_WAIT is not there"
    assert still_bound([port]) == []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        assert still_bound([silent.getsockname()[1]]) == [silent.getsockname()[1]]


@pytest.mark.process
def test_a_port_held_on_ipv6_alone_is_still_bound() -> None:
    with socket.socket(socket.AF_INET6) as listening:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listening.bind(("::", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        listening.listen()
        port = listening.getsockname()[1]
        assert still_bound([port]) == [port]


def test_running_out_of_descriptors_is_not_called_a_taken_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", fail)
    with pytest.raises(OSError, match="Too many"):
        still_bound([20000])
