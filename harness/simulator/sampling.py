"""Sampling parameters as LightLLM reads them: defaults, the model's own defaults, and what it refuses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GREEDY_BELOW = 1e-5
MAX_BEST_OF = 8
MAX_STOPS = 10
MAX_STOP_BYTES = 256
DEFAULT_NEW_TOKENS = 65535


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """One request's parameters, checked. `seed` is 0 for greedy decoding."""

    max_new_tokens: int
    min_new_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    n: int
    greedy: bool
    seed: int | None
    add_special_tokens: bool
    skip_special_tokens: bool
    use_cache: bool

    @classmethod
    def of(cls, given: Mapping[str, Any], model_defaults: Mapping[str, Any]) -> "Sampling":
        """Unknown names are ignored, as in the real server. Raises ValueError for a bad value, TypeError for
        one of the wrong type."""
        values = {**model_defaults, **{name: value for name, value in given.items() if value is not None}}
        temperature = _number(values, "temperature", 1.0)
        top_k = _whole(values, "top_k", -1)
        _check_distribution(values, temperature, top_k)
        most = _whole(values, "max_new_tokens", DEFAULT_NEW_TOKENS)
        least = _whole(values, "min_new_tokens", 1)
        if most < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {most}.")
        if not 1 <= least <= most:
            raise ValueError(f"min_new_tokens must <= max_new_tokens, but got min {least}, max {most}.")
        seed = values.get("seed", -1)
        return cls(
            max_new_tokens=most,
            min_new_tokens=least,
            ignore_eos=_flag(values, "ignore_eos", False),
            stop=_stops(values.get("stop_sequences")),
            n=_count(values),
            greedy=not _flag(values, "do_sample", False) or temperature < GREEDY_BELOW or top_k == 1,
            seed=seed if isinstance(seed, int) and seed >= 0 else None,
            add_special_tokens=_flag(values, "add_special_tokens", True),
            skip_special_tokens=_flag(values, "skip_special_tokens", False),
            use_cache=not _flag(values, "disable_prompt_cache", False),
        )


def _check_distribution(values: Mapping[str, Any], temperature: float, top_k: int) -> None:
    if temperature < 0:
        raise ValueError(f"temperature must >= 0, got {temperature}")
    top_p = _number(values, "top_p", 1.0)
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must in (0.0, 1.0], got {top_p}")
    if top_k < -1 or top_k == 0:
        raise ValueError(f"top_k must be -1 (disable), or at least 1, got {top_k}.")
    if _number(values, "repetition_penalty", 1.0) < 1:
        raise ValueError("repetition_penalty must >= 1.0")
    for name in ("presence_penalty", "frequency_penalty"):
        if _number(values, name, 0.0) < 0:
            raise ValueError(f"{name} must >= 0.0")


def _count(values: Mapping[str, Any]) -> int:
    n = _whole(values, "n", 1)
    best_of = _whole(values, "best_of", n)
    if not 1 <= n <= MAX_BEST_OF:
        raise ValueError(f"need 0 < n <= {MAX_BEST_OF}, but get {n}")
    if n != best_of:
        raise ValueError("current only supported n == best_of")
    return n


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > MAX_STOPS:
        raise ValueError(f"stop_sequences has {len(stops)} items, at most {MAX_STOPS} are allowed")
    for stop in stops:
        if not isinstance(stop, str):
            raise TypeError("stop_sequences must be strings")
        if len(stop.encode(errors="replace")) >= MAX_STOP_BYTES:
            raise ValueError(f"a stop sequence must be shorter than {MAX_STOP_BYTES} bytes")
    return tuple(stop for stop in stops if stop)


def _number(values: Mapping[str, Any], name: str, default: float) -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def _whole(values: Mapping[str, Any], name: str, default: int) -> int:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    return value


def _flag(values: Mapping[str, Any], name: str, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a boolean, got {type(value).__name__}")
    return value
