"""Misbehaving servers for the tests: `python child.py MODE [ARGUMENTS]`. Standard library only.

Every mode prints `ready` (and what a test must know) once it is in its final state.
"""

import os
import signal
import socket
import sys
import time


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - its output is the log


def sleep() -> None:
    time.sleep(120)


def plain() -> None:
    say("ready")
    sleep()


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("ready")
    sleep()


def polite() -> None:
    """Ends well on SIGTERM, a little later."""

    def leave(number: int, frame: object) -> None:
        say("leaving")
        time.sleep(0.2)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    say("ready")
    sleep()


def fails(code: str) -> None:
    say("about to fail")
    raise SystemExit(int(code))


def listen(port: str) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(port)))
    server.listen()
    return server


def serve(port: str) -> None:
    with listen(port):
        say("ready")
        sleep()


def orphan(port: str, *traits: str) -> None:
    """A child that leaves the session, holds the port, and outlives its parent. With `deaf` it ignores
    SIGTERM; with `bare` it has wiped its environment, and the parent stays."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if "deaf" in traits:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.set_inheritable(writing, True)
        env = {} if "bare" in traits else dict(os.environ)
        os.execve(sys.executable, [sys.executable, __file__, "hold", port, str(writing)], env)
    os.close(writing)
    pid = os.read(reading, 20).decode()
    say("ready", pid)
    if "bare" in traits:
        sleep()


def bare_orphan() -> None:
    """A child without our environment that outlives its parent, in the session it was born in."""
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, __file__, "plain"], {})


def hold(port: str, writing: str) -> None:
    with listen(port):
        os.write(int(writing), str(os.getpid()).encode())
        os.close(int(writing))
        sleep()


def tree() -> None:
    """A child and a grandchild that ignores SIGTERM."""
    if os.fork() == 0:
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("ready", os.getppid(), os.getpid())
        sleep()
    sleep()


def churn() -> None:
    """Children that die all the time, while they are being listed."""
    say("ready")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def chatty(megabytes: str) -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(int(megabytes) * 1024):
        os.write(1, line)
    say("ready")
    sleep()


def environment() -> None:
    say("mask", sorted(os.sched_getaffinity(0)))
    say("session", os.getsid(0) == os.getpid(), "input", os.read(0, 1))
    say("mark", os.environ["HARNESS_RUN_MARK"], os.environ["SPT_NOENV"])
    say("ready")


def shared_memory(held: str, closed: str, stranger: str) -> None:
    """Three files in /dev/shm, of which one is held open."""
    for path in (closed, stranger):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR))
    os.open(held, os.O_CREAT | os.O_RDWR)
    say("ready")
    sleep()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
