"""What the simulator reads of a model directory: config.json and generation_config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HYBRID_TYPES = ("glm5_next", "qwen3_next", "qwen3_5")  # how `model_type` begins
SAMPLING_KEYS = (
    "do_sample",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "temperature",
    "top_p",
    "top_k",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """`sampling` holds the defaults of sampling parameters that the model itself brings. `sparse`: attention
    with an index (DSA), which is what `fp8kv_dsa` is for."""

    max_length: int
    data_type: str
    eos_ids: tuple[int, ...]
    hybrid: bool
    sparse: bool
    sampling: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path) -> "Model":
        """Raises OSError where there is no config.json, ValueError where it is not one."""
        config = _object(folder / "config.json")
        text = {**config, **(config.get("text_config") or {})}
        generation = folder / "generation_config.json"
        own = _object(generation) if generation.is_file() else {}
        kind = str(text.get("model_type", ""))
        return cls(
            max_length=int(text.get("max_position_embeddings") or text.get("max_sequence_length") or 16384),
            data_type=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"),
            eos_ids=_ids(own.get("eos_token_id", text.get("eos_token_id"))),
            hybrid=kind.startswith(HYBRID_TYPES),
            sparse=bool(text.get("index_topk")) or kind.startswith(("deepseek_v32", "glm5")),
            sampling={key: own[key] for key in SAMPLING_KEYS if own.get(key) is not None},
        )


def _object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")  # noqa: TRY004 - what a file holds is a value
    return found


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(one) for one in (value if isinstance(value, list) else [value]))
