"""Prometheus text: parsed exactly, counters named and added up without lying."""

import pytest
from hypothesis import given as every
from hypothesis import strategies as st

from harness.engines.client import Client
from harness.engines.metrics import counters, parse, scrape
from harness.errors import TargetError

VLLM = """\
# HELP vllm:prefix_cache_hits_total Tokens found in the cache.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="smol"} 896.0
vllm:prefix_cache_hits_total{engine="1",model_name="smol"} 4.0
# TYPE vllm:prefix_cache_hits_created gauge
vllm:prefix_cache_hits_created{engine="0",model_name="smol"} 1.7960347664189827e+09
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="smol",source="local_compute"} 94.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="smol",source="external_kv_transfer"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.25
# TYPE vllm:request_num_preemptions histogram
vllm:request_num_preemptions_bucket{engine="0",le="1.0",model_name="smol"} 3.0
vllm:request_num_preemptions_bucket{engine="0",le="+Inf",model_name="smol"} 3.0
vllm:request_num_preemptions_count{engine="0",model_name="smol"} 3.0
vllm:request_num_preemptions_sum{engine="0",model_name="smol"} 2.0
# TYPE http_requests_total counter
http_requests_total{handler="/v1/models",method="GET",status="2xx"} 1.0
"""
SGLANG = """\
# TYPE sglang:evicted_tokens_total counter
sglang:evicted_tokens_total{cache_type="UnifiedRadixCache",dp_rank="0",pp_rank="0",tp_rank="0"} 100.0
sglang:evicted_tokens_total{cache_type="UnifiedRadixCache",dp_rank="0",pp_rank="0",tp_rank="1"} 100.0
sglang:evicted_tokens_total{cache_type="UnifiedRadixCache",dp_rank="1",pp_rank="0",tp_rank="0"} 7.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",engine_type="unified",model_name="m"} 38.0
sglang:cached_tokens_total{cache_source="host",engine_type="unified",model_name="m"} 2.0
# TYPE sglang:num_retracted_reqs gauge
sglang:num_retracted_reqs{engine_type="unified",pid="30325",tp_rank="0"} 1.0
"""


def test_counters_of_vllm() -> None:
    assert counters(parse(VLLM), "vllm:") == {
        "vllm:prefix_cache_hits_total": 900.0,
        "vllm:prompt_tokens_by_source_total{source=local_compute}": 94.0,
        "vllm:prompt_tokens_by_source_total{source=external_kv_transfer}": 0.0,
        "vllm:request_num_preemptions_count": 3.0,
        "vllm:request_num_preemptions_sum": 2.0,
    }


def test_ranks_that_count_the_same_tokens_are_not_added_up() -> None:
    found = counters(parse(SGLANG), "sglang:")
    assert (
        found["sglang:evicted_tokens_total{cache_type=UnifiedRadixCache}"] == 107.0
    )  # two engines, one rank
    assert found["sglang:cached_tokens_total{cache_source=host}"] == 2.0
    assert "sglang:num_retracted_reqs" not in found


def test_names_in_the_newer_text_form() -> None:
    text = '# TYPE x:hits counter\nx:hits_total{a="b"} 2 # {trace="1"} 1.0\n# EOF\n'
    assert counters(parse(text), "x:") == {"x:hits_total{a=b}": 2.0}


def test_values_and_labels_as_the_format_allows() -> None:
    text = 'a 1\nb{} +Inf\nc{l="x\\"y,}{\\\\ \\n",m="",} -1.5e-3 1700000000\nd NaN\n'
    samples = parse(text).samples
    assert [sample.name for sample in samples] == ["a", "b", "c", "d"]
    assert samples[1].value == float("inf")
    assert samples[2].labels == {"l": 'x"y,}{\\ \n', "m": ""}
    assert samples[2].value == -0.0015


@pytest.mark.parametrize(
    "text",
    [
        "<html>502 Bad Gateway</html>",
        '{"detail":"Not Found"}',
        'a{l="x} 1',
        "a{l=1} 1",
        "a{",
        "a one",
        "a 1 2 3 4",
    ],
)
def test_what_is_not_prometheus_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"line 2|could not convert"):
        parse("ok 1\n" + text)


@every(st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), st.text(max_size=8), max_size=3))
def test_any_label_value_survives(labels: dict[str, str]) -> None:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    text = ",".join(f'{key}="{escape(value)}"' for key, value in labels.items())
    assert parse(f"m{{{text}}} 1").samples[0].labels == labels


def client_of(text: str) -> Client:
    class Canned(Client):
        def _send(self, method: str, path: str, *rest: object) -> tuple[int, str]:
            return 200, text

    return Canned("http://127.0.0.1:1")


def test_a_scrape_without_counters_is_an_error_not_a_zero() -> None:
    assert scrape("vllm", client_of(VLLM))["vllm:prefix_cache_hits_total"] == 900.0
    for text in ("", "# nothing\n", SGLANG, "<html>"):
        with pytest.raises(TargetError, match="does not use"):
            scrape("vllm", client_of(text))
