"""A small stand-in for SGLang's compiled ``sgl_kernel`` package, for CPU labs only.

SGLang imports ``sgl_kernel`` as soon as it runs in CPU mode, but no published
package carries the CPU build.  For a dense bf16 model with the ``torch_native``
attention backend nearly every layer has a plain PyTorch path, so only two
functions are really called.  They are written here in plain Python.

Everything else can be imported by name (SGLang does so at module level) and fails
with ``NotImplementedError`` when called, so that a feature this lab cannot run
stops with a clear message instead of giving a wrong answer.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["assign_req_to_token_pool_cpu", "copy_all_layer_kv_cache_cpu"]

HARNESS_LAB_STAND_IN = True  # lets a script see that this is not the real package


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Note in each request's row which cache slots its next tokens live in.

    ``out_cache_loc`` holds the new slots of all requests one after another; a
    request takes as many of them as lie between its start and its end column.
    """
    if req_to_token.shape[1] != pool_len:
        raise ValueError(f"row length {req_to_token.shape[1]} is not pool_len {pool_len}")
    starts = start_offset.tolist()
    ends = end_offset.tolist()
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    pieces = out_cache_loc[: sum(lengths)].to(req_to_token.dtype).split(lengths)
    for row, start, end, piece in zip(req_pool_indices.tolist(), starts, ends, pieces, strict=True):
        req_to_token[row, start:end] = piece


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy whole cache rows from ``src_loc`` to ``tgt_loc`` in every layer's buffer.

    ``data_ptrs`` are raw addresses, ``strides`` the bytes of one row.  Source and
    target rows may overlap, so all sources of a buffer are read before any target
    is written.
    """
    pairs = list(zip(src_loc.tolist(), tgt_loc.tolist(), strict=True))
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        saved = [ctypes.string_at(address + src * row_bytes, row_bytes) for src, _ in pairs]
        for (_, tgt), row in zip(pairs, saved, strict=True):
            ctypes.memmove(address + tgt * row_bytes, row, row_bytes)


def __getattr__(name: str) -> Callable[..., Any]:
    """Give any other name a function that refuses to run."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} does not exist in the CPU lab stand-in")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


# The rest adapts torch, not sgl_kernel.  SGLang's prefill/decode transfer code calls
# three CUDA helpers without asking for the device first.  On a machine without CUDA
# they raise; the replacements below mean the same thing where all work is synchronous.


class _FinishedEvent:
    """An event on a device that never has work in flight."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._recorded_at = time.perf_counter()

    def record(self, *_args: Any, **_kwargs: Any) -> None:
        self._recorded_at = time.perf_counter()

    def query(self) -> bool:
        return True

    def wait(self, *_args: Any, **_kwargs: Any) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end_event: _FinishedEvent) -> float:
        return (end_event._recorded_at - self._recorded_at) * 1000.0


def _without_pinning(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def unpinned(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return unpinned


def _adapt_torch_to_cpu() -> None:
    # Pinned memory only exists next to an accelerator.
    for name in (
        "arange",
        "empty",
        "empty_like",
        "empty_strided",
        "full",
        "ones",
        "tensor",
        "zeros",
    ):
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self  # type: ignore[method-assign]
    torch.cuda.Event = _FinishedEvent  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda *_args, **_kwargs: torch.cpu.current_stream()  # type: ignore[assignment]


if not torch.cuda.is_available():
    _adapt_torch_to_cpu()
