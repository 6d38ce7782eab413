"""Whether two plain lm-eval outputs were made alike, as far as their results files say.

Everything in them is compared except what came out, when, and where it ran. The server behind them is not
described there, so this can show a difference but never sameness.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from harness.accuracy.samples import SampleSet
from harness.evidence.fingerprint import Fingerprint, flatten, parity_findings
from harness.findings import Code, Finding

# Top-level keys that say what came out, when it ran, or what machine the evaluator stood on.
_NOT_CONDITIONS: Final = frozenset(
    {
        "results",
        "groups",
        "group_subtasks",
        "samples",
        "date",
        "start_time",
        "end_time",
        "total_evaluation_time_seconds",
        "git_hash",
        "upper_git_hash",
        "pretty_env_info",
        "transformers_version",
        "model_name_sanitized",
    }
)
# Keys at any depth that say where a thing runs or lies, or who asks.
_PLACES: Final = frozenset(
    {
        "base_url",
        "url",
        "host",
        "port",
        "output_path",
        "log_path",
        "config_source",
        "include_path",
        "cache_dir",
        "use_cache",
        "ca_cert_path",
        "verify_certificate",
        "auth_token",
        "api_key",
        "header",
    }
)
_BY_TASK: Final = ("configs", "versions", "n-shot", "n-samples", "higher_is_better", "task_hashes")
# Keys whose value may be a path or URL that names a thing: its last part is the name, the rest a place.
_THINGS: Final = frozenset(
    {"model", "model_name", "pretrained", "tokenizer", "peft", "dataset_path", "data_files", "data_dir"}
)
_PATH = re.compile(r"(~|\.{0,2})/.*|\w+://.*", re.DOTALL)
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "none": None, "null": None}


def results_parity(baseline: SampleSet, candidate: SampleSet) -> list[Finding]:
    """PARITY findings, and always PARITY_UNKNOWN: the servers' side is not known."""
    findings = []
    if baseline.results and candidate.results:
        findings = parity_findings(conditions(baseline), conditions(candidate))
    message = (
        "only the evaluator's results files were compared: nothing is known of the servers' flags, versions, "
        "weights and hardware, so the most that can be said is REPORTED"
    )
    return [*findings, Finding(code=Code.PARITY_UNKNOWN, message=message)]


def conditions(samples: SampleSet) -> Fingerprint:
    """What a results file says of how the evaluation was done, without run locations."""
    tree = {key: value for key, value in samples.results.items() if key not in _NOT_CONDITIONS}
    for key in _BY_TASK:
        if isinstance(tree.get(key), Mapping):
            tree[key] = tree[key].get(samples.task)
    config, task = tree.get("config"), tree.get("configs")
    if isinstance(config, Mapping):
        args = config.get("model_args")
        args = _parsed(args) if isinstance(args, str) else args
        tree["config"] = {**config, "model_args": args}
        if isinstance(task, Mapping) and isinstance(args, Mapping):
            tree["configs"] = {**task, "metadata": _without(task.get("metadata"), args)}
    return flatten(_placeless(tree))


def _without(metadata: Any, args: Mapping[str, Any]) -> Any:
    """A task's metadata without the model's arguments, which the evaluator copies into it."""
    if not isinstance(metadata, Mapping):
        return metadata
    return {key: value for key, value in metadata.items() if key not in args}


def _placeless(value: Any, *, names_a_thing: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _placeless(inner, names_a_thing=names_a_thing or key in _THINGS)
            for key, inner in value.items()
            if key not in _PLACES
        }
    if isinstance(value, list):
        return [_placeless(item, names_a_thing=names_a_thing) for item in value]
    if names_a_thing and isinstance(value, str) and _PATH.fullmatch(value):
        return PurePosixPath(value).name
    return value


def _parsed(model_args: str) -> dict[str, Any]:
    """`model=x,num_concurrent=4` as the evaluator itself would read it."""
    pairs = (part.partition("=") for part in model_args.split(",") if part)
    return {key.strip(): _value(text.strip()) for key, _, text in pairs}


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
