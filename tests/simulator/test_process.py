"""Ends: signals, deaths, and what is left of the server afterwards."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from harness.simulator.leftovers import NAMES
from tests.simulator.launched import Launched, fault, launched, names_of, until

pytestmark = pytest.mark.process
SYSV = Path("/proc/sysvipc/shm")


def _uniq(server: Launched) -> str:
    found = re.search(r"zmq mode head: ipc:///tmp/_(\w+)_$", server.log, re.MULTILINE)
    assert found
    return found[1]


def _segment(server: Launched) -> str:
    found = re.search(r"Shared memory ID: (\d+)", server.log)
    assert found
    return found[1]


def _segments() -> set[str]:
    return {line.split()[1] for line in SYSV.read_text().splitlines()[1:]}


def _router(server: Launched) -> int:
    pid = server.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_clean_stop_leaves_nothing(tmp_path: Path, number: int) -> None:
    with launched(tmp_path, "--enable_cpu_cache", settings={"load_seconds": 0}) as server:
        uniq, segment, router = _uniq(server.ready()), _segment(server), _router(server)
        assert len(list(Path("/dev/shm").glob(f"{uniq}_*"))) == len(NAMES)
        assert len(names_of(uniq)) > len(NAMES)
        assert segment in _segments()
        assert server.end(number) == 0
        assert not names_of(uniq)
        assert segment not in _segments()
        assert not _alive(router)


def test_names_in_shm_are_mapped_while_it_lives(tmp_path: Path) -> None:
    with launched(tmp_path) as server:
        uniq = _uniq(server.ready())
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert all(f"/dev/shm/{uniq}_{name}" in maps for name in NAMES)


def test_running_requests_get_their_answer_before_the_end(tmp_path: Path) -> None:
    with launched(tmp_path, settings={"speed": 1}) as server:
        server.ready()
        server.generate()
        answers = []
        client = threading.Thread(target=lambda: answers.append(server.generate("long", 100).status_code))
        client.start()
        until(lambda: server.log.count("received req") == 2, "the second request")
        assert server.end() == 0
        client.join()
    assert answers == [200]
    assert server.log.index("POST /generate 200") < server.log.index("HTTP server exited gracefully")


def test_a_kill_leaves_its_names_and_the_router_follows(tmp_path: Path) -> None:
    with launched(tmp_path, "--enable_cpu_cache") as server:
        uniq, router = _uniq(server.ready()), _router(server)
        segment = _segment(server)
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not _alive(router), "the router follows its launcher")
        assert "parent is dead, kill self" in server.log
        assert len(names_of(uniq)) > len(NAMES)
        assert segment in _segments()


def test_router_death_is_noticed(tmp_path: Path) -> None:
    with launched(tmp_path) as server:
        server.ready()
        os.kill(_router(server), signal.SIGKILL)
        assert server.process.wait(20) == 1
        assert re.search(r"Critical LightLLM submodule exited unexpectedly: name=.*exitcode=-9", server.log)


def test_router_killed_by_fault(tmp_path: Path) -> None:
    with launched(tmp_path, settings=fault("router-killed", after_requests=1)) as server:
        server.ready()
        assert server.generate().status_code == 200
        assert server.process.poll() is None
        with pytest.raises(Exception, match=r"disconnected|reset"):
            server.generate()
        assert server.process.wait(20) == 1


def test_killed(tmp_path: Path) -> None:
    with launched(tmp_path, settings=fault("killed", after_requests=2)) as server:
        server.ready()
        assert [server.generate().status_code for _ in range(2)] == [200, 200]
        with pytest.raises(Exception, match=r"disconnected|reset"):
            server.generate()
        assert server.process.wait(20) == -signal.SIGKILL
        uniq = _uniq(server)
        assert names_of(uniq)


def test_ignores_sigterm(tmp_path: Path) -> None:
    with launched(tmp_path, settings=fault("ignores-sigterm")) as server:
        server.ready().process.send_signal(signal.SIGTERM)
        assert server.generate().status_code == 200
        assert server.process.poll() is None
        assert server.end(signal.SIGKILL) == -signal.SIGKILL


def test_orphan_holds_port(tmp_path: Path) -> None:
    with launched(tmp_path, settings=fault("orphan-holds-port")) as server:
        server.ready()
        until(lambda: server.log.count("start process pid") == 2, "the orphan's pid")
        orphan = int(re.findall(r"start process pid (\d+)", server.log)[-1])
        try:
            assert server.end() == 0
            assert _alive(orphan)
            assert os.getsid(orphan) == orphan
            with pytest.raises(Exception, match="timed out"):
                server.post("/generate", {}, timeout=0.5)  # it listens, and nobody answers
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_leaves_shm(tmp_path: Path) -> None:
    with launched(tmp_path, settings=fault("leaves-shm")) as server:
        uniq = _uniq(server.ready())
        assert server.end() == 0
        assert len(names_of(uniq)) == len(NAMES)


def test_leaves_sysv(tmp_path: Path) -> None:
    with launched(tmp_path, settings=fault("leaves-sysv")) as server:
        segment, uniq = _segment(server.ready()), _uniq(server)
        assert server.end() == 0
        assert segment in _segments()
        assert not names_of(uniq)
