"""The real llama.cpp server of the `xllamacpp` wheel, in a process of its own.

A stand-in for the `llama-server` program: the same flags (those in `OPTIONS`, spelled exactly), the same
HTTP server, the same log, exit code 1 when it cannot start. Run as a script, it imports nothing of the
harness: it starts fast, and under any Python that has the wheel.
"""

import ctypes
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["int", "float", "text", "folder", "on", "off"]
Value: TypeAlias = bool | int | float | str

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SPECULATIVE = (
    *("none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"),
    *("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
)
LAST_WORDS_S = 0.5
DEFAULT_PORT = 8080
DEFAULT_SLOTS = -1  # the program's own default, "auto"; the library's is 1


class BadFlag(Exception):
    """A command line that llama-server would refuse; the text is its error line."""


@dataclass(frozen=True, slots=True)
class Option:
    """One flag: its spellings, and the field of the library's `CommonParams` that it sets.

    `on` and `off` take no value. A text option with `choices` takes one of them, or with `several` a comma
    list of them.
    """

    names: tuple[str, ...]
    field: str
    kind: Kind = "int"
    choices: tuple[str, ...] = ()
    several: bool = False

    def parse(self, text: str) -> Value:
        """The value of `text`. Raises ValueError that says what would be right."""
        if self.kind == "int":
            return int(text)
        if self.kind == "float":
            return float(text)
        if self.kind == "folder":
            if not Path(text).is_dir():
                raise ValueError(f"not a directory: {text}")
            return f"{text.rstrip('/')}/"  # the library puts a file name right behind it
        for part in text.split(",") if self.several else [text]:
            if self.choices and part not in self.choices:
                raise ValueError(f"'{part}' is not one of {', '.join(self.choices)}")
        return text


OPTIONS: tuple[Option, ...] = (
    Option(("-m", "--model"), "model.path", "text"),
    Option(("--host",), "hostnames", "text"),
    Option(("--port",), "port"),
    Option(("-a", "--alias"), "model_alias", "text"),
    Option(("--api-key",), "api_keys", "text"),
    Option(("-to", "--timeout"), "timeout_read"),
    Option(("--threads-http",), "n_threads_http"),
    Option(("-t", "--threads"), "cpuparams.n_threads"),
    Option(("-tb", "--threads-batch"), "cpuparams_batch.n_threads"),
    Option(("-c", "--ctx-size"), "n_ctx"),
    Option(("-np", "--parallel"), "n_parallel"),
    Option(("-b", "--batch-size"), "n_batch"),
    Option(("-ub", "--ubatch-size"), "n_ubatch"),
    Option(("-n", "--predict", "--n-predict"), "n_predict"),
    Option(("-s", "--seed"), "sampling.seed"),
    Option(("-ctk", "--cache-type-k"), "cache_type_k", "text", CACHE_TYPES),
    Option(("-ctv", "--cache-type-v"), "cache_type_v", "text", CACHE_TYPES),
    Option(("-fa", "--flash-attn"), "flash_attn_type", "text", ("on", "off", "auto")),
    Option(("-fit", "--fit"), "fit_params", "text", ("on", "off")),
    Option(("-kvu", "--kv-unified"), "kv_unified", "on"),
    Option(("-no-kvu", "--no-kv-unified"), "kv_unified", "off"),
    Option(("--kv-unified-per-slot",), "kv_unified_per_slot"),
    Option(("-cb", "--cont-batching"), "cont_batching", "on"),
    Option(("-nocb", "--no-cont-batching"), "cont_batching", "off"),
    Option(("--context-shift",), "ctx_shift", "on"),
    Option(("--no-context-shift",), "ctx_shift", "off"),
    Option(("--swa-full",), "swa_full", "on"),
    Option(("-cram", "--cache-ram"), "cache_ram_mib"),
    Option(("--cache-prompt",), "cache_prompt", "on"),
    Option(("--no-cache-prompt",), "cache_prompt", "off"),
    Option(("--cache-idle-slots",), "cache_idle_slots", "on"),
    Option(("--no-cache-idle-slots",), "cache_idle_slots", "off"),
    Option(("--cache-reuse",), "n_cache_reuse"),
    Option(("-ctxcp", "--swa-checkpoints", "--ctx-checkpoints"), "n_ctx_checkpoints"),
    Option(("-sps", "--slot-prompt-similarity"), "slot_prompt_similarity", "float"),
    Option(("--slot-save-path",), "slot_save_path", "folder"),
    Option(("--metrics",), "endpoint_metrics", "on"),
    Option(("--props",), "endpoint_props", "on"),
    Option(("--slots",), "endpoint_slots", "on"),
    Option(("--no-slots",), "endpoint_slots", "off"),
    Option(("--warmup",), "warmup", "on"),
    Option(("--no-warmup",), "warmup", "off"),
    Option(("--jinja",), "use_jinja", "on"),
    Option(("--no-jinja",), "use_jinja", "off"),
    Option(("-lv", "--log-verbosity", "--verbosity"), "verbosity"),
    Option(("-md", "--spec-draft-model", "--model-draft"), "speculative.draft.mparams.path", "text"),
    Option(("-td", "--spec-draft-threads", "--threads-draft"), "speculative.draft.cpuparams.n_threads"),
    Option(
        ("-ctkd", "--spec-draft-type-k", "--cache-type-k-draft"),
        "speculative.draft.cache_type_k",
        "text",
        CACHE_TYPES,
    ),
    Option(
        ("-ctvd", "--spec-draft-type-v", "--cache-type-v-draft"),
        "speculative.draft.cache_type_v",
        "text",
        CACHE_TYPES,
    ),
    Option(("--spec-type",), "speculative.types", "text", SPECULATIVE, several=True),
    Option(("--spec-draft-n-max",), "speculative.draft.n_max"),
    Option(("--spec-draft-n-min",), "speculative.draft.n_min"),
    Option(("--draft-p-min", "--spec-draft-p-min"), "speculative.draft.p_min", "float"),
)
BY_NAME: dict[str, Option] = {name: option for option in OPTIONS for name in option.names}


def parse(argv: Sequence[str]) -> dict[str, Value]:
    """Field values of a command line; the last of a repeated flag wins, as in llama-server.

    Raises BadFlag at the first flag that is unknown, lacks its value or has a bad one. Nothing is
    abbreviated and `--flag=value` is no flag.
    """
    values: dict[str, Value] = {}
    words = iter(argv)
    for name in words:
        option = BY_NAME.get(name)
        if option is None:
            raise BadFlag(f"error: invalid argument: {name}")
        if option.kind in ("on", "off"):
            values[option.field] = option.kind == "on"
            continue
        text = next(words, None)
        if text is None:
            raise BadFlag(f"error: expected value for argument: {name}")
        try:
            values[option.field] = option.parse(text)
        except ValueError as error:
            raise BadFlag(f'error while handling argument "{name}": {error}') from error
    return values


def _converters(library: Any) -> dict[str, Callable[[Any], Any]]:
    """How a flag's value becomes the library's, for the fields whose type differs."""

    def cache_type(name: str) -> Any:
        return getattr(library.ggml_type, f"GGML_TYPE_{name.upper()}")

    def flash_attention(name: str) -> Any:
        word = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[name]
        return getattr(library.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{word}")

    def speculative(names: str) -> list[Any]:
        words = (name.upper().replace("-", "_") for name in names.split(","))
        kinds = library.common_speculative_type
        return [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{word}") for word in words]

    return {
        "hostnames": lambda text: text.split(","),
        "model_alias": lambda text: set(text.split(",")),
        "api_keys": lambda text: text.split(","),
        "fit_params": lambda text: text == "on",
        "sampling.seed": lambda number: number % 2**32,  # -1 is the library's "random"
        "cache_type_k": cache_type,
        "cache_type_v": cache_type,
        "flash_attn_type": flash_attention,
        "speculative.types": speculative,
        "speculative.draft.cache_type_k": cache_type,
        "speculative.draft.cache_type_v": cache_type,
    }


def configure(library: Any, values: dict[str, Value]) -> Any:
    """The library's parameters for these field values."""
    params = library.CommonParams()
    convert = _converters(library)
    for path, value in {"port": DEFAULT_PORT, "n_parallel": DEFAULT_SLOTS, **values}.items():
        *parents, leaf = path.split(".")
        target = params
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, leaf, convert[path](value) if path in convert else value)
    params.timeout_write = params.timeout_read
    return params


def flush_log(library: Any) -> None:
    """Return when everything that llama.cpp has logged is written: a thread of its own writes it, so the
    line that says why a start failed may still be on its way when the process ends."""
    try:
        native = ctypes.CDLL(sys.modules[f"{library.__name__}.xllamacpp"].__file__)
        log, flush = native["_Z15common_log_mainv"], native["_Z16common_log_flushP10common_log"]
    except (KeyError, OSError, AttributeError):  # another build: all that can be done is to give it a moment
        time.sleep(LAST_WORDS_S)
        return
    log.restype, flush.argtypes, flush.restype = ctypes.c_void_p, [ctypes.c_void_p], None
    flush(log())


def main(argv: Sequence[str]) -> int:
    """Serve until killed. Returns 1 when the flags are wrong or the server cannot start."""
    # The default action ends the process at once, even while the library is loading; a Python handler
    # would wait for the interpreter's turn.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        values = parse(argv)
    except BadFlag as error:
        sys.stderr.write(f"{error}\n")
        return 1
    try:
        import xllamacpp
    except ImportError as error:
        sys.stderr.write(f"error: the xllamacpp wheel cannot be imported: {error}\n")
        return 1
    try:
        server = xllamacpp.Server(configure(xllamacpp, values))
    except RuntimeError as error:  # its log has said why
        flush_log(xllamacpp)
        sys.stderr.write(f"error: {error}\n")
        return 1
    while server is not None:  # it serves from threads of its own, for as long as this reference lives
        signal.pause()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
