#!/usr/bin/env python3
"""Turn the small SmolLM2 GGUF file into a Hugging Face model directory (bf16).

vLLM and SGLang both want a directory with ``config.json``, ``model.safetensors``
and a tokenizer.  The labs only have a GGUF file, so this script de-quantises it
once and writes such a directory.  The weights are the GGUF's 4-bit values written
as bf16: they are not the original weights, which is fine for regression work
because every run uses the same ones.

Run it with the python of one of the lab environments (needs torch, transformers,
gguf and accelerate).  It never uses the network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Set before transformers is imported, so that a missing local file is an error
# here instead of a silent download.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

ORIGIN_FILE = "gguf_origin.json"
NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json", ORIGIN_FILE)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in NEEDED_FILES)


def convert(gguf: Path, out: Path) -> None:
    """Write the model directory next to ``out`` and move it there when it is whole."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    transformers.utils.logging.disable_progress_bar()
    folder, name = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        dtype=torch.bfloat16,
        # Without this the weights stay packed and cannot be saved again.
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.model_max_length = model.config.max_position_embeddings  # a GGUF does not say

    # A config that still says "quantised" makes a server look for GGUF kernels.
    for attribute in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, attribute):
            delattr(model.config, attribute)

    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        model.save_pretrained(staging)
        (staging / "model.safetensors").chmod(0o644)  # saved readable by its owner only
        tokenizer.save_pretrained(staging)
        origin = {
            "gguf": gguf.name,
            "gguf_sha256": sha256_of(gguf),
            "safetensors_sha256": sha256_of(staging / "model.safetensors"),
            "dtype": "bfloat16",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        }
        (staging / ORIGIN_FILE).write_text(json.dumps(origin, indent=2) + "\n")
        if not is_complete(staging):
            missing = [n for n in NEEDED_FILES if not (staging / n).is_file()]
            raise SystemExit(f"conversion left out {', '.join(missing)}")
        staging.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="GGUF file -> bf16 Hugging Face directory")
    parser.add_argument("--gguf", type=Path, required=True, help="the GGUF file to read")
    parser.add_argument("--out", type=Path, required=True, help="the directory to write")
    parser.add_argument("--force", action="store_true", help="replace a directory that is there")
    args = parser.parse_args(argv)

    gguf, out = args.gguf.expanduser().resolve(), args.out.expanduser().resolve()
    if not gguf.is_file():
        print(f"no such file: {gguf}", file=sys.stderr)
        return 2
    if out.exists() and not args.force:
        if is_complete(out):
            print(f"already there: {out}")
            return 0
        print(f"{out} exists but is not a whole model; use --force to replace it", file=sys.stderr)
        return 2
    convert(gguf, out)
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
