"""Puts the engine together from start arguments and settings."""

from dataclasses import fields

from harness.simulator.answer_key import AnswerKey
from harness.simulator.core_faults import CoreFaults
from harness.simulator.faults import ENGINE, Planted
from harness.simulator.language import Language
from harness.simulator.scheduler import Scheduler, Speed
from harness.simulator.settings import Settings
from harness.simulator.tokenizer import Tokenizer
from harness.simulator.types import Limits, Observer


def build(
    limits: Limits,
    kv_type: str,
    tokenizer: Tokenizer,
    settings: Settings,
    planted: Planted,
    observer: Observer,
) -> Scheduler:
    """Raises OSError or ValueError for an answer key that cannot be read, ValueError for an acceptance that
    this many drafted tokens cannot have."""
    answers = None
    if settings.answer_key is not None:
        answers = AnswerKey.load(settings.answer_key, settings.accuracies, settings.discordance)
    language = Language(tokenizer, answers, kv_type=kv_type, model_seed=settings.seed)
    return Scheduler(
        limits,
        language,
        observer,
        faults=core_faults(planted),
        speed=Speed(**settings.costs),
        accept_mean=settings.accept_mean if limits.mtp_step else None,
    )


def core_faults(planted: Planted) -> CoreFaults:
    """Those of `ENGINE`, under the engine's names."""
    names = {field.name for field in fields(CoreFaults)}
    wanted = {name.replace("-", "_") for name in ENGINE if name in planted}
    return CoreFaults(**dict.fromkeys(names & wanted, True))
