"""Prometheus text, as far as a harness needs it: samples, and the counters among them by a flat name."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from harness.engines.answers import strange
from harness.engines.client import Client, RequestFailed
from harness.errors import TargetError

SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)"
    r'(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"\s+(?P<value>\S+)(?:\s+-?[\d.]+)?(?:\s+#.*)?"  # then a time, then an exemplar
)
LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
ESCAPE = re.compile(r"\\(.)")
# Labels that say which process counted, not what was counted.
IDENTITY = frozenset({"model_name", "engine", "engine_type", "pid", "dp_rank", "moe_ep_rank"})
# Every rank of these counts the same tokens again: one is read, they are never added up.
REPLICAS = frozenset({"tp_rank", "pp_rank"})


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape. `kinds` maps a metric's name to `counter`, `gauge`, `histogram`, ... where it is told."""

    samples: tuple[Sample, ...]
    kinds: dict[str, str]


def scrape(engine: str, client: Client, *, remedy: str = "") -> dict[str, float]:
    """The counters of a running server, by name; see `counters`.

    Raises TargetError when there are none to read: a scrape that fails is an error, never a zero.
    """
    try:
        text = client.get_text("/metrics")
    except RequestFailed as error:
        if error.status != 404:
            raise
        what = f"{client.base_url} has no /metrics, so that nothing can be proved by its counters"
        raise TargetError(what, fix=remedy) from error
    try:
        found = counters(parse(text), f"{engine}:")
    except ValueError as error:
        raise strange(engine, client, "/metrics", text) from error
    if not found:
        raise strange(engine, client, "/metrics", text)
    return found


def parse(text: str) -> Metrics:
    """Samples in order. Raises ValueError at a line that is no Prometheus text (a page, a cut answer)."""
    samples: list[Sample] = []
    kinds: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            words = line.split()
            if words[1:2] == ["TYPE"] and len(words) == 4:
                kinds[words[2]] = words[3]
        elif line.strip():
            samples.append(_sample(number, line))
    return Metrics(tuple(samples), kinds)


def counters(metrics: Metrics, prefix: str, drop: Collection[str] = IDENTITY) -> dict[str, float]:
    """Counters, and sums and counts of histograms, whose name starts with `prefix`.

    A name is `metric{label=value,...}` without the labels that only name a process; what then has one name
    is added up over engines, and taken from rank 0 where ranks repeat one another.
    """
    found: dict[str, float] = {}
    for sample in metrics.samples:
        if not sample.name.startswith(prefix) or not _monotonic(sample.name, metrics.kinds):
            continue
        if any(sample.labels.get(label, "0") != "0" for label in REPLICAS):
            continue
        kept = sorted((k, v) for k, v in sample.labels.items() if k not in drop and k not in REPLICAS)
        labels = ",".join(f"{key}={value}" for key, value in kept)
        name = f"{sample.name}{{{labels}}}" if labels else sample.name
        found[name] = found.get(name, 0.0) + sample.value
    return found


def _sample(number: int, line: str) -> Sample:
    match = SAMPLE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"line {number} is no Prometheus sample: {line[:120]!r}")
    labels: dict[str, str] = {}
    rest = match["labels"] or ""
    while rest.strip():
        label = LABEL.match(rest)
        if label is None:
            raise ValueError(f"line {number} has a label that cannot be read: {rest[:120]!r}")
        labels[label[1]] = ESCAPE.sub(_unescape, label[2])
        rest = rest[label.end() :]
    return Sample(match["name"], labels, float(match["value"]))


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _monotonic(name: str, kinds: dict[str, str]) -> bool:
    if kinds.get(name) == "counter" or kinds.get(name.removesuffix("_total")) == "counter":
        return True
    for suffix in ("_sum", "_count"):
        if name.endswith(suffix) and kinds.get(name.removesuffix(suffix)) in ("histogram", "summary"):
            return True
    return False
