"""Sound evidence of each check, damaged in every small way: no judge may raise, and none may pass what was
damaged where it matters. What may be damaged without an effect is listed, so that nothing joins it unseen.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.checks.cache_boundary import CacheBoundaryParams
from harness.checks.cpu_reload import CpuReloadParams
from harness.checks.exchange import EXCHANGES, FACTS, MARKS
from harness.checks.pause_resume import PauseResume
from harness.checks.pd_parity import PdParityParams
from harness.evidence.record import CheckResult
from harness.verdict import Verdict
from tests.checks import test_accept_length as accept_length
from tests.checks import test_cache_boundary as cache_boundary
from tests.checks import test_cpu_reload as cpu_reload
from tests.checks import test_pd_parity as pd_parity
from tests.checks.evidence_files import Story
from tests.checks.mutating import mutants
from tests.checks.pause_evidence import PARAMS, lightllm

Judge = Callable[[], CheckResult]


def texts(made: Story) -> Story:
    """With prompts that are quickly read."""
    for one in made.exchanges:
        one["prompt"] = f"{one['case']} {one['leg'] if one['leg'] == 'unrelated' else ''}"
    return made


def boundary(root: Path) -> tuple[Path, Judge]:
    params = CacheBoundaryParams(lengths=cache_boundary.LENGTHS)
    folder = texts(cache_boundary.story()).write(root / "lane" / "cache-boundary")
    return folder, lambda: cache_boundary.CHECK.judge(params, folder)


def pause(root: Path) -> tuple[Path, Judge]:
    lightllm(paused=False).write(root / "large" / "pause-resume")
    folder = lightllm().write(root / "small" / "pause-resume")
    return folder, lambda: PauseResume().judge(PARAMS, folder)


def reload(root: Path) -> tuple[Path, Judge]:
    params = CpuReloadParams(length=600, control="off")
    folder = cpu_reload.write(root, texts(cpu_reload.story()), texts(cpu_reload.off()))
    return folder, lambda: cpu_reload.CHECK.judge(params, folder)


def accept(root: Path) -> tuple[Path, Judge]:
    accept_length.write(root, texts(accept_length.story()), "base")
    folder = accept_length.write(root, texts(accept_length.story()))
    return folder, lambda: accept_length.CHECK.judge(accept_length.params(reference="base"), folder)


def pd(root: Path) -> tuple[Path, Judge]:
    lane = pd_parity.lightllm()
    texts(lane.story), texts(lane.reference)
    lane.judged(root)
    params = PdParityParams(reference="one/cache-boundary", lengths=(600,))
    folder = root / "pd" / "pd-parity"
    return folder, lambda: pd_parity.CHECK.judge(params, folder)


# What only says where and when, is told beside the ids that are judged, or is the default where it is gone.
TOLD = r".*\.(seq|at_s|started_s|latency_s|text|min_tokens|logprobs|logprobs\.0|first_token_s|request_id) .*"
GONE = r".*\.(use_cache|error|cached|pauses|accept|paused|recovered|transfers|host_loads|node_id) gone"
BESIDE = r"(begin.*|config.*|log gone|log.normal gone|(reloaded|warm|end)\.lines\.normal = 10+)"
# Of requests whose answers are not compared, and of tiers where the total is judged, or the other way round.
IDS, TIERS = r"\.ids\.0 = .*", r"\.cached\.(device|host|storage) .*"


@pytest.mark.parametrize(
    ("made", "harmless"),
    [
        (
            boundary,
            (
                f"(control|control-together|single|unrelated){IDS}",
                r"(single|unrelated)\.cached.*",
                r"unrelated\.prompt.*",
            ),
        ),
        (
            pause,
            (
                *(
                    r"short.*",
                    f"(together|alone){TIERS}",
                    r"(together|alone)\.pauses.*",
                    r"together\.cached\.total.*",
                ),
                *(
                    r"log\.normal\.requests\.long-0\.(cached|node_id|line).*",
                    r"log\.normal\.output_estimate.*",
                ),
                *(r"before-together\.lines\.normal = -1", r"notes\.pausing\.(word|counter|hint) .*"),
                r"notes\.(kv_tokens|output_estimate).*",  # advice
            ),
        ),
        (
            reload,
            (
                *(f"(cold|warm-again|evict){IDS}", f"(cold|warm|warm-again|warm-after){TIERS}"),
                *(r"(cold|warm-after|reload)\.cached\.total (gone|= None)", r"warm-after\.cached\.total.*"),
                *(r"reload\.cached\.device (gone|= None)", r"(cold|evict|warm-again|warm-after)\.accept.*"),
                *(
                    r"(warm|reload)\.accept\.(proposed|steps|accepted = 10+).*",  # too many are not refused
                    r"notes\.(device|host)_tokens .*",
                    r"evict\.prompt.*",
                ),
            ),
        ),
        (accept, (f"(cold|warm){IDS}", r"(cold|warm)\.accept\.(proposed .*|accepted = 10+)")),
        (
            pd,
            (
                r"warm\.cached\.total.*",
                r"notes\.agree:.*",
                r"idle\.lines\.\w+ = -1",
                r"log\.\w+\.transfers\.16\.line.*",
            ),
        ),
    ],
)
def test_every_damage(
    tmp_path: Path, made: Callable[[Path], tuple[Path, Judge]], harmless: tuple[str, ...]
) -> None:
    folder, judge = made(tmp_path)
    assert judge().verdict is Verdict.PASS
    passed = [
        what
        for name in (EXCHANGES, MARKS, FACTS)
        for what in mutants(folder / name)
        if judge().verdict is Verdict.PASS
    ]
    assert judge().verdict is Verdict.PASS
    known = re.compile("|".join((TOLD, GONE, BESIDE, *harmless)))
    assert [what for what in passed if not known.fullmatch(what)] == []
