"""What LightLLM leaves outside its process: names in /dev/shm, a System V segment, sockets and locks in /tmp.

All of it is made small, mapped while the server lives, removed on a clean stop and left behind by a kill.
"""

import ctypes
import mmap
import os
import socket
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108 - where LightLLM has them
TMP = Path("/tmp")  # noqa: S108 - likewise
NAMES = (
    *("shm_port_args", "req_shm_total", "req_alloc_states", "req_linked_states", "array_reqs_lock"),
    *("shm_reqs_manager_lock", "mem_manager_0", "mem_manger_can_use_token_num_0", "shared_token_load"),
    *("latest_success_infer_time_mark", "run_reqs_count_mark", "shm_max_total_token_num", "req_id_gen"),
)
PAGE = 4096
IPC_PRIVATE, IPC_CREAT, IPC_RMID = 0, 0o1000, 0


class Leftovers:
    """Everything of one server. `uniq` is its unique name, which all names carry."""

    def __init__(self, uniq: str) -> None:
        self._uniq = uniq
        self._maps: list[mmap.mmap] = []
        self._files: list[Path] = []
        self._sockets: list[socket.socket] = []
        self._segment: int | None = None

    def make(self, router_port: int) -> None:
        """The names in /dev/shm and /tmp."""
        for name in NAMES:
            self._map(SHM / f"{self._uniq}_{name}")
        lock = TMP / f"{self._uniq}_shm.lock"
        lock.touch()
        path = TMP / f"_{self._uniq}_127.0.0.1:{router_port}"
        pipe = socket.socket(socket.AF_UNIX)
        pipe.bind(str(path))
        self._sockets.append(pipe)
        self._files += [lock, path]

    def make_segment(self) -> int:
        """A System V segment, attached; its id. Raises OSError."""
        libc = _libc()
        segment = libc.shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0o600)
        if segment < 0 or libc.shmat(segment, None, 0) in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._segment = int(segment)
        return self._segment

    def remove(self, *, shm: bool = True, segment: bool = True) -> None:
        """A clean stop; what is False stays."""
        for pipe in self._sockets:
            pipe.close()
        for path in self._files:
            if shm or path.parent != SHM:
                path.unlink(missing_ok=True)
        if segment and self._segment is not None:
            _libc().shmctl(self._segment, IPC_RMID, None)

    def _map(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, PAGE)
            self._maps.append(mmap.mmap(descriptor, PAGE))
        finally:
            os.close(descriptor)
        self._files.append(path)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    return libc
