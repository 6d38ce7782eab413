"""GSM8K through the lab's own lm-eval command, behind the recording proxy.

Collected into the check's folder: `dataset.json`, `evaluator.json`, `requests.jsonl`,
`raw_responses.jsonl`, and lm-eval's own `lm_eval/` output; `eval.log` lies in the lane's folder.
"""

import time
from pathlib import Path

from pydantic import BaseModel, Field, StrictInt

from harness.accuracy.audit import audit
from harness.accuracy.pairing import pair_samples, write_disagreements
from harness.accuracy.parity import conditions
from harness.accuracy.samples import load_samples
from harness.checks import dataset, lm_eval
from harness.checks.base import Begun, CheckContext
from harness.checks.evaluation import Evaluation
from harness.errors import ConfigError, HarnessError, TargetError
from harness.evidence.files import read_bytes, write_json
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult, PairResult
from harness.evidence.recorder import Recorder
from harness.findings import Code, Finding, verdict_of
from harness.scenario.model import Frozen, Pair, Seconds
from harness.verdict import Verdict

# What the server calls its model. That it serves the right one is proven elsewhere, by digest.
_SERVED_NAME = frozenset({"model_name", "config.model_args.model"})


class Gsm8kParams(Frozen):
    """Parameters of the `gsm8k` check; the defaults are the lab's command."""

    dataset: str | None = Field(
        None, description="folder with train.jsonl and test.jsonl, or a shipped set; default: the real GSM8K"
    )
    num_concurrent: int = Field(16, ge=1, description="HTTP requests in flight")
    batch_size: int = Field(16, ge=1, description="prompts in one HTTP request")
    max_gen_toks: int = Field(512, ge=1, description="output limit in tokens")
    max_retries: int = Field(3, ge=1, description="attempts per request; a retry is found and makes INVALID")
    eos_string: str | None = Field("<|endoftext|>", description="extra stop string")
    timeout_s: Seconds = Field(600, description="of one request")
    stall_s: Seconds = Field(
        300, description="no request answered for so long while some are waiting: STALLED"
    )
    limit: int | None = Field(None, ge=1, description="only the first N documents: always INVALID")
    min_natural_stop: float | None = Field(
        None, ge=0, le=1, description="least share of answers that must stop by themselves"
    )


class Evaluator(BaseModel):
    """`evaluator.json`: the command as it was run, and how it ended."""

    argv: list[str]
    exit_code: StrictInt


class Gsm8k:
    """See the module's docstring."""

    kind = "gsm8k"
    pairable = True
    params: type[BaseModel] = Gsm8kParams

    def problems(self, params: Gsm8kParams) -> list[str]:
        found = []
        try:
            dataset.manifest(dataset.resolve(params.dataset))
        except (ConfigError, HarnessError) as error:
            found.append(f"{error.what}; {error.fix}")
        if (reason := lm_eval.missing()) is not None:
            found.append(reason)
        return found

    def requests(self, params: Gsm8kParams) -> tuple[tuple[int, int], ...]:
        """None whose prompts it makes."""
        del params
        return ()

    def command(self, params: Gsm8kParams, *, base_url: str, served_name: str, folder: Path) -> list[str]:
        source = dataset.resolve(params.dataset)
        return lm_eval.command(
            base_url=base_url,
            served_name=served_name,
            output=folder / "lm_eval",
            concurrency=params.num_concurrent,
            batch_size=params.batch_size,
            max_tokens=params.max_gen_toks,
            retries=params.max_retries,
            timeout_s=params.timeout_s,
            eos=params.eos_string,
            task_folder=folder / "task" if source.folder else None,
            limit=params.limit,
        )

    def begin(self, params: Gsm8kParams, context: CheckContext) -> Evaluation:
        evaluation = self._evaluation(params, context)
        try:
            evaluation.start(held=True)
        except BaseException:
            evaluation.close()
            raise
        return evaluation

    def collect(self, params: Gsm8kParams, context: CheckContext, begun: Begun | None) -> None:
        with begun if isinstance(begun, Evaluation) else self._evaluation(params, context) as evaluation:
            if begun is None:
                evaluation.start(held=False)
            docs = dataset.manifest(dataset.resolve(params.dataset)).docs
            watch = _Watch(context, params.limit or docs, params.stall_s)
            code = evaluation.finish(watch)
        write_json(context.folder / "evaluator.json", {"argv": evaluation.argv, "exit_code": code})
        if evaluation.recorder is not None and evaluation.recorder.lost_evidence:
            what = f"the recording proxy lost evidence: {evaluation.recorder.lost_evidence}"
            raise HarnessError(what, fix="free disk space and run again", code=Code.DISK_FULL)

    def _evaluation(self, params: Gsm8kParams, context: CheckContext) -> Evaluation:
        source = dataset.resolve(params.dataset)

        def prepare() -> None:
            write_json(context.folder / "dataset.json", dataset.manifest(source).model_dump())
            if source.folder is not None:
                lm_eval.write_task(source, context.folder / "task")

        return Evaluation(
            context,
            prepare=prepare,
            command=lambda base_url: self.command(
                params, base_url=base_url, served_name=context.served_name, folder=context.folder
            ),
            env=lm_eval.ENVIRONMENT,
            patience_s=params.timeout_s,
        )

    def judge(self, params: Gsm8kParams, folder: Path) -> CheckResult:
        try:
            manifest = dataset.Manifest.model_validate_json(read_bytes(folder / "dataset.json"))
            evaluator = Evaluator.model_validate_json(read_bytes(folder / "evaluator.json"))
        except (OSError, ValueError) as error:
            finding = Finding(
                code=Code.EVIDENCE_MISSING,
                message=f"the check's own evidence is missing or broken: {error}",
                where=str(folder),
            )
            return CheckResult(verdict=verdict_of([finding], Verdict.REPORTED), findings=[finding])
        result = audit(
            load_samples(folder / "lm_eval"),
            expected_docs=manifest.docs,
            expected_questions=manifest.questions or None,
            requests=folder / "requests.jsonl",
        )
        findings = [*_evaluator_findings(evaluator, folder), *_dataset_findings(manifest)]
        findings += [*_lost(folder), *result.findings]
        findings += _natural_stop_findings(params, result)
        return result.model_copy(
            update={
                "findings": findings,
                "verdict": verdict_of(findings, result.verdict),
                "told": _told(result),
            }
        )

    def pair(
        self, params: Gsm8kParams, pair: Pair, baseline: Path, candidate: Path, out: Path | None
    ) -> PairResult:
        del params  # equal on both sides, or parity says so
        result, disagreements = pair_samples(
            load_samples(baseline / "lm_eval"), load_samples(candidate / "lm_eval"), pair.max_drop_pp
        )
        if out is not None:
            write_disagreements(out / "disagreements.jsonl", disagreements)
        return result

    def fingerprint(self, params: Gsm8kParams, folder: Path) -> Fingerprint:
        """Parameters, digests of the data (its name or place is no difference), and what the evaluator's
        results file says of how it was done: version, task hash, shots, seeds, generation arguments."""
        keys: Fingerprint = {name: value for name, value in params.model_dump().items() if name != "dataset"}
        try:
            digests = dataset.Manifest.model_validate_json(read_bytes(folder / "dataset.json")).sha256
        except (OSError, ValueError):
            digests = {}
        keys |= {f"sha256.{name}": digest for name, digest in digests.items()} or {"dataset": "unknown"}
        done = conditions(load_samples(folder / "lm_eval")) or {"conditions": "unknown"}
        return keys | {f"lm_eval.{key}": value for key, value in done.items() if key not in _SERVED_NAME}


class _Watch:
    """Called a few times a second while the evaluator runs: progress, and an end to silent stalls."""

    def __init__(self, context: CheckContext, total: int, patience_s: float) -> None:
        self._context = context
        self._total = total
        self._patience_s = patience_s
        self._last = (0, time.monotonic())

    def __call__(self, recorder: Recorder) -> None:
        counts = recorder.counts
        done = counts.finished + counts.failed
        self._context.progress(done, self._total)
        now = time.monotonic()
        if counts.finished != self._last[0] or counts.seen == done:
            self._last = (counts.finished, now)
        elif now - self._last[1] > self._patience_s:
            raise TargetError(
                f"no request was answered for {self._patience_s:.0f} s, {counts.seen - done} are waiting",
                cause="the server's scheduler or engine loop hangs while its HTTP side is alive",
                fix="look at the last lines of the server's log, and at the requests without an answer",
                evidence=str(self._context.server_log),
                code=Code.STALLED,
            )


def _told(result: CheckResult) -> str:
    shown = [f"{result.metrics.get('n')} documents"]
    names = {"strict": "accuracy.strict-match", "flexible": "accuracy.flexible-extract"}
    for name, metric in {**names, "natural stop": "natural_stop_rate"}.items():
        value = result.metrics.get(metric)
        shown.append(f"{name} {value:.2%}" if isinstance(value, float) else f"{name} not known")
    return ", ".join(shown)


def _lost(folder: Path) -> list[Finding]:
    """Raw evidence that judging does not read, but a person who doubts the verdict will."""
    return [
        Finding(code=Code.EVIDENCE_MISSING, message=f"{path.name} is gone", where=str(path))
        for path in (folder / "raw_responses.jsonl", folder.parent / "eval.log")
        if not path.is_file()
    ]


def _evaluator_findings(evaluator: Evaluator, folder: Path) -> list[Finding]:
    if evaluator.exit_code == 0:
        return []
    message = f"the evaluator ended with exit code {evaluator.exit_code}"
    return [Finding(code=Code.EVALUATOR_FAILED, message=message, where=str(folder.parent / "eval.log"))]


def _dataset_findings(manifest: dataset.Manifest) -> list[Finding]:
    if manifest.sha256:
        return []
    message = "dataset.json holds no digest: which documents were asked cannot be proven"
    return [Finding(code=Code.EVIDENCE_MISSING, message=message, where="dataset.json")]


def _natural_stop_findings(params: Gsm8kParams, result: CheckResult) -> list[Finding]:
    """Nothing where the rate is not known: then no request was answered, and the audit says so."""
    rate = result.metrics.get("natural_stop_rate")
    if params.min_natural_stop is None or not isinstance(rate, float) or rate >= params.min_natural_stop:
        return []
    message = f"natural-stop rate {rate} is below the scenario's {params.min_natural_stop}"
    return [Finding(code=Code.STOP_RATE, message=message, where="gsm8k")]
