"""What the scenario tests share: a check with parameters, and `load` of a text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from harness.errors import ConfigError
from harness.scenario.load import load
from harness.scenario.model import Frozen, Scenario

FILES = Path(__file__).parent / "files"
ENGINES = ("lightllm", "llamacpp", "sglang", "vllm")
LANE = "engine: llamacpp, model: {pull: smol}"


class Gsm8kParams(Frozen):
    """Parameters like those of the real check."""

    num_concurrent: int = Field(16, ge=1)
    limit: int | None = Field(None, ge=1)
    dataset: str | None = None
    min_stop: float = 0.0


class LooseParams(BaseModel):
    """A check author who forgot to forbid unknown keys."""

    rounds: int = 1


CHECK_PARAMS: Mapping[str, type[BaseModel]] = {"gsm8k": Gsm8kParams, "pause-resume": LooseParams}


def load_file(
    path: Path,
    *overrides: str,
    environ: Mapping[str, str] | None = None,
    lanes: Sequence[str] = (),
    more_problems: Callable[[Scenario], Iterable[str]] = lambda _: (),
) -> Scenario:
    return load(
        str(path),
        overrides=overrides,
        environ=environ or {},
        engines=ENGINES,
        check_params=CHECK_PARAMS,
        lanes=lanes,
        more_problems=more_problems,
    )


def load_text(
    folder: Path,
    text: str | bytes,
    *overrides: str,
    environ: Mapping[str, str] | None = None,
    lanes: Sequence[str] = (),
) -> Scenario:
    path = folder / "test.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_file(path, *overrides, environ=environ, lanes=lanes)


def attempt(
    folder: Path,
    text: str | bytes,
    *overrides: str,
    environ: Mapping[str, str] | None = None,
    lanes: Sequence[str] = (),
) -> Scenario | ConfigError:
    """The scenario or the error; any other exception is a bug."""
    try:
        return load_text(folder, text, *overrides, environ=environ, lanes=lanes)
    except ConfigError as error:
        return error


def problems_of(
    folder: Path,
    text: str | bytes,
    *overrides: str,
    environ: Mapping[str, str] | None = None,
    lanes: Sequence[str] = (),
) -> list[str]:
    """The problems that loading the text raises, without the folder; none when it loads."""
    outcome = attempt(folder, text, *overrides, environ=environ, lanes=lanes)
    if isinstance(outcome, Scenario):
        return []
    return [problem.replace(f"{folder}/", "") for problem in outcome.problems]
