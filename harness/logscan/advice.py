"""What to do next, by the cause that a log names."""

from harness.engines.log_rules import PORT_IN_USE

ADVICE = {
    "unknown flag": "compare the command with the `--help` of the installed version; flags come and go",
    "bad flag or flag value": "correct the flag named in the line",
    "two flags name the same port": "give every port of the command a number of its own",
    PORT_IN_USE: "find who listens there (`ss -ltnp`), or choose another port; after a restart, connections "
    "in TIME_WAIT can hold it for a minute",
    "GPU out of memory": "look for other processes on the GPU (`nvidia-smi`); else lower the memory "
    "fraction, the batch or the maximum length",
    "memory already taken": "end the other process on that device (`nvidia-smi`), or lower the fraction",
    "host out of memory": "free memory, or load with fewer processes; `dmesg` tells what the kernel killed",
    "shared memory too small": "enlarge /dev/shm (containers: --shm-size); remove what crashed servers left",
    "disk full": "free the disk named in the line",
    "model directory not found": "check the model path; a server takes a missing directory for a name on the "
    "hub, so that the message may speak of repositories",
    "model file not found": "check the model path",
    "model files damaged or incomplete": "compare sizes and checksums with the source; copy the files again",
    "model file damaged or not a GGUF": "compare its size and checksum with the source; copy it again",
    "model architecture not supported": "use a version of the engine that knows this model",
    "no usable CUDA on this host": "check `nvidia-smi`, the driver and the CUDA build of the engine",
    "Python package missing or broken": "install it into the engine's own environment",
    "feature not supported on this host": "leave the feature out, or run where it exists",
    "KV cache too small for max length": "lower the maximum length, or give the KV cache more memory",
    "max length beyond what the model allows": "lower the maximum length to the model's",
    "KV cache exhausted": "lower concurrency or lengths, or give the KV cache more memory",
    "KV cache leak detected": "an engine bug: keep the log and the requests before it, and report it",
    "killed by signal": "look into `dmesg` for the kernel's out-of-memory killer; else somebody sent SIGKILL",
    "worker process died": "without an exception of its own before it, it was killed or crashed: see `dmesg`",
    "NCCL failure": "look at the other ranks first: the first one to die is the cause; then at the network",
    "P/D node has no network address": "start the node with --host and the address of its network card",
    "P/D nodes differ in max_req_total_len": "give master, prefill and decode one --max_req_total_len",
    "P/D peer lost": "read the log of the peer: it died or was stopped first",
    "inference thread died, requests hang": "restart the server: nothing supervises that thread, and health "
    "stays green for minutes",
}
