#!/usr/bin/env python3
"""A misbehaving server that looks like llama.cpp's `llama-server` from the outside.

Same flags, same log, same HTTP; the model is a hash. `STUB_FAULT` plants faults (see `stub_faults.py`),
`STUB_ANSWERS` names a file of questions and answers as GSM8K has them, of which `STUB_ACCURACY` (1) is the
share that it gets right. Standard library only; it must start fast.
"""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # a program finds its own directory there, not ours

from tests.servers.stub_api import Api  # noqa: E402
from tests.servers.stub_faults import Faults  # noqa: E402
from tests.servers.stub_flags import BadFlag, parse  # noqa: E402
from tests.servers.stub_http import serve  # noqa: E402
from tests.servers.stub_log import Log  # noqa: E402
from tests.servers.stub_model import Model  # noqa: E402

ORPHAN_S = 600  # the planted orphan ends by itself some day
CHATTER = 4 << 20  # bytes


def main(argv: list[str]) -> int:
    faults = Faults(os.environ.get("STUB_FAULT", ""))
    if "exit-at-start" in faults:
        return int(faults.number("exit-at-start", 1))
    try:
        flags = parse(argv)
    except BadFlag as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if "ignore-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log = Log(int(flags.get("--log-verbosity", 3)))
    listener = _listen(flags, log)
    if listener is None:
        return 1
    slots = max(1, int(flags.get("--parallel", 4)))
    accuracy = float(os.environ.get("STUB_ACCURACY", "1"))
    api = Api(flags, faults, Model(faults, os.environ.get("STUB_ANSWERS"), accuracy, slots), log, slots)
    if "setsid-child" in faults:
        _orphan()
    threading.Thread(target=serve, args=(listener, api.handle), daemon=True).start()
    if not _load(flags, faults, log, slots, api.slot_context):
        return 1
    api.ready = True
    log.srv("init", "model loaded")
    log.srv("init", f"listening on http://{flags.get('--host', '127.0.0.1')}:{listener.getsockname()[1]}")
    log.srv("update_slots", "all slots are idle", verbosity=4)
    _after_ready(faults, log)
    threading.Event().wait()
    return 0


def _listen(flags: dict[str, str], log: Log) -> socket.socket | None:
    host, port = flags.get("--host", "127.0.0.1"), int(flags.get("--port", 8080))
    log.srv("init", "initializing ...")
    log.srv("init", "build_info: b0-unknown")
    log.cmn(
        "common_params_print_info",
        "common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)",
    )
    note = "security: no API key is set and CORS allows all origins (see llama.cpp/pull/25655)"
    log.srv("init", note, level="W")
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError:
        what = f"couldn't bind HTTP server socket, hostname: {host}, port: {port}"
        log.srv("start", what, level="E")
        log.srv("operator()", "operator(): cleaning up before exit...")
        log.srv("init", "exiting due to HTTP server error", level="E")
        return None


def _load(flags: dict[str, str], faults: Faults, log: Log, slots: int, slot_context: int) -> bool:
    """Load the model, slowly or never where that is planted. False when it cannot be loaded."""
    path = flags["--model"]
    log.srv("init", "loading model")
    log.srv("load_model", f"loading model '{path}'")
    if not Path(path).is_file():
        what = f"failed to open GGUF file '{path}' (No such file or directory)"
        return _failed(log, path, "gguf_init_from_file", what)
    log.line(
        "load_tensors", "loading model tensors, this can take a while... (load_mode = mmap)", verbosity=4
    )
    if "chinese-log" in faults:
        log.raw("\x1b[33m警告：显存不足时会自动降级\x1b[0m\r\n".encode() + b"\xff\xfe \x80 GBK: \xc4\xe3\r\n")
    if "chatty" in faults:
        _chat(log)
    if "die-while-loading" in faults:
        what = "error loading model: tensor 'blk.7.ffn_up.weight' data is not within the file bounds"
        return _failed(log, path, "llama_model_load", f"{what}, model is corrupted or incomplete")
    if "never-ready" in faults:
        threading.Event().wait()
    if "slow-start" in faults:
        _load_slowly(log, faults.number("slow-start", 3))
    key, value = flags.get("--cache-type-k", "f16"), flags.get("--cache-type-v", "f16")
    cells = f"{slot_context * slots:6d} cells,  30 layers,  {slots}/{slots} seqs"
    size = f"size =   90.00 MiB ({cells}), K ({key}):   45.00 MiB, V ({value}):   45.00 MiB"
    log.line("llama_kv_cache", size, verbosity=4)
    log.cmn("init", f"llama threadpool init, n_threads = {flags.get('--threads', 2)}")
    unified = "false" if "--parallel" in flags and "--kv-unified" not in flags else "true"
    what = f"initializing, n_slots = {slots}, n_ctx_slot = {slot_context}, kv_unified = '{unified}'"
    log.srv("load_model", what)
    return True


def _failed(log: Log, path: str, place: str, what: str) -> bool:
    log.line(place, what, level="E")
    log.line("llama_model_load_from_file_impl", "failed to load model", level="E")
    log.srv("load_model", f"failed to load model, '{path}'", level="E")
    log.srv("operator()", "operator(): cleaning up before exit...")
    log.srv("init", "exiting due to model loading error", level="E")
    return False


def _load_slowly(log: Log, seconds: float) -> None:
    layers = max(1, round(seconds / 0.2))
    for layer in range(layers):
        time.sleep(seconds / layers)
        log.line("load_tensors", f"layer {layer:3d} assigned to device CPU, is_swa = 0")


def _after_ready(faults: Faults, log: Log) -> None:
    if "fatal-log" in faults:
        what = "allocating 1024.00 MiB on device 0: cudaMalloc failed: out of memory"
        log.line("ggml_backend_cuda_buffer_type_alloc_buffer", what, level="E")
    if "shm-leak" in faults:
        leak = Path(f"/dev/shm/llama_stub_{os.getpid()}")
        leak.write_bytes(b"left behind")
        os.open(leak, os.O_RDWR)  # held until the process ends, as a real server holds its segments
    if "chatty" in faults:
        _chat(log)


def _chat(log: Log) -> None:
    line = (
        b"0.00.100.000 I slot launch_slot_: id  0 | task -1 | sampler chain: " + b"top-k -> " * 20 + b"dist\n"
    )
    for _ in range(CHATTER // len(line)):
        log.raw(line)


def _orphan() -> None:
    """A child in a session of its own, with the listening socket, deaf to SIGTERM."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(ORPHAN_S)
        os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
