"""The command line of llama.cpp's server, as far as tests use it: unknown flags are refused as it does."""

from collections.abc import Sequence

# Every spelling of a flag; the first one names it. Flags with a value, then bare ones.
VALUES = """
--model -m | --host | --port | --alias -a | --api-key | --timeout -to | --threads-http | --threads -t
--threads-batch -tb | --ctx-size -c | --parallel -np | --batch-size -b | --ubatch-size -ub
--predict -n --n-predict | --seed -s | --cache-type-k -ctk | --cache-type-v -ctv | --flash-attn -fa
--fit -fit | --cache-ram -cram | --cache-reuse | --ctx-checkpoints -ctxcp | --slot-save-path
--slot-prompt-similarity -sps | --kv-unified-per-slot | --log-verbosity -lv --verbosity | --log-file
--log-colors | --cpu-mask -C | --cpu-range -Cr | --prio | --poll | --numa | --n-gpu-layers -ngl --gpu-layers
--device -dev | --split-mode -sm | --tensor-split -ts | --main-gpu -mg | --spec-type
--spec-draft-model -md --model-draft | --spec-draft-n-max | --spec-draft-n-min | --spec-draft-p-min
--spec-draft-threads -td --threads-draft | --spec-draft-type-k -ctkd | --spec-draft-type-v -ctvd
--temp --temperature | --top-k | --top-p | --min-p | --chat-template | --chat-template-file
--reasoning-format | --rope-scaling | --rope-scale | --rope-freq-base | --rope-freq-scale | --lora
"""
SWITCHES = """
--kv-unified -kvu | --no-kv-unified -no-kvu | --cont-batching -cb | --no-cont-batching -nocb
--context-shift | --no-context-shift | --swa-full | --cache-prompt | --no-cache-prompt
--cache-idle-slots | --no-cache-idle-slots | --metrics | --props | --slots | --no-slots
--warmup | --no-warmup | --jinja | --no-jinja | --verbose -v | --log-prefix | --log-timestamps
--log-disable | --mlock | --no-mmap | --offline | --embeddings | --no-webui | --no-kv-offload -nkvo
--no-op-offload | --no-host | --no-repack -nr | --special | --verbose-prompt
"""
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


class BadFlag(Exception):
    """A command line that the server refuses; the text is its error line."""


def _names(table: str) -> dict[str, str]:
    groups = (group.split() for line in table.strip().splitlines() for group in line.split("|"))
    return {name: names[0] for names in groups for name in names}


def parse(argv: Sequence[str]) -> dict[str, str]:
    """Values by the first spelling of their flag; a bare flag has the value `on`. Raises BadFlag."""
    valued, bare = _names(VALUES), _names(SWITCHES)
    flags: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        if word in bare:
            flags[bare[word]] = "on"
            continue
        if word not in valued:
            raise BadFlag(f"error: invalid argument: {word}")
        value = next(words, None)
        if value is None:
            raise BadFlag('error while handling argument "' + word + '": expected value for argument')
        if valued[word].startswith("--cache-type") and value not in KV_TYPES:
            raise BadFlag(f'error while handling argument "{word}": Unsupported cache type: {value}')
        flags[valued[word]] = value
    if "--model" not in flags:
        raise BadFlag("error: --model is required")
    return flags
