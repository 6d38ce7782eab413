"""Planted faults, named in STUB_FAULT: `name`, `name:argument`, several separated by commas."""

import hashlib
import threading

# What each fault does; a number stands for its argument.
FAULTS = {
    "exit-at-start": "ends before it prints anything, with that exit code (1)",
    "die-while-loading": "ends with code 1 while it loads the model",
    "never-ready": "stays at 503 for ever, without a word",
    "slow-start": "takes that many seconds to load, and shows progress",
    "fatal-log": "prints an out-of-memory line after it got ready, and answers on",
    "wrong-model": "serves under another name",
    "ignore-sigterm": "does so",
    "setsid-child": "leaves a child in a session of its own that holds the port and ignores SIGTERM",
    "die-after": "kills itself when that many prompts were answered and one more comes",
    "hang-after": "answers no more prompts after that many",
    "slow-answers": "takes that many seconds for each request",
    "error-share": "500 for that share of the prompts",
    "error-once-share": "500 for that share of the prompts, the first time only",
    "null-answers": "null text for that share of the prompts",
    "empty-answers": "empty text for that share",
    "cut-answers": "half of the text and finish reason length for that share",
    "loop-answers": "the same words over and over for that share",
    "drop-choice": "no choice for that share",
    "swap-answers": "the answers of a batch in each other's places",
    "garbage-json": "JSON that breaks off, everywhere but at /health",
    "warmup-fails": "500 for every generation",
    "shm-leak": "leaves a file in /dev/shm",
    "chatty": "prints megabytes",
    "chinese-log": "prints Chinese, colours, carriage returns and bytes that are no UTF-8",
}


class Faults:
    """The faults of one server. Raises ValueError for one that does not exist."""

    def __init__(self, spec: str) -> None:
        self._arguments: dict[str, str] = {}
        for word in filter(None, spec.split(",")):
            name, _, argument = word.partition(":")
            if name not in FAULTS:
                raise ValueError(f"STUB_FAULT: there is no fault '{name}'")
            self._arguments[name] = argument
        self._seen: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._arguments

    def number(self, name: str, default: float = 0.0) -> float:
        """The argument of a fault; infinity for one that is not planted."""
        return float(self._arguments[name] or default) if name in self._arguments else float("inf")

    def hits(self, name: str, prompt: str) -> bool:
        """Whether a fault for a share of the prompts is planted and falls on this one."""
        return name in self._arguments and fraction(name + prompt) < self.number(name, 1.0)

    def hits_once(self, name: str, prompt: str) -> bool:
        """As `hits`, but only the first time that this prompt comes."""
        if not self.hits(name, prompt):
            return False
        with self._lock:
            first = (name, prompt) not in self._seen
            self._seen.add((name, prompt))
        return first


def fraction(text: str) -> float:
    """A number from 0 to 1 that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6], "big") / 2**48
