"""The scenario file as it is written: which keys exist, what they hold, and what they mean.

These types check a lane or pair once `extends`, `matrix` and placeholders are resolved, and the JSON Schema
for editors is made of them (`schema.py`), so that both always agree. Nearly everything is optional here,
since a value may be inherited; what a lane must have in the end is checked in `build.py`.
"""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from harness.scenario.model import Role, Scalar
from harness.scenario.model import Seconds as Limit

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TEXTS: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def one_line(text: str) -> str:
    if any(char in text for char in "\0\r\n"):
        raise ValueError("contains a line break or NUL character, which no command line can carry")
    return text


def _word(text: str | None) -> str | None:
    # Empty is not given, so that `python: ${VLLM_PYTHON:-}` means the default.
    return one_line(text) if text else None


def _reason(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise ValueError("an empty text is no reason: say why the lane is SKIPPED; null: it runs")
    return None if text is None else one_line(text)


def _no_bool(value: object) -> object:
    # Python counts true as 1; a person who writes `gpus: true` means something else.
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got `{str(value).lower()}`")  # noqa: TRY004 - for pydantic
    return value


def _variable(name: str) -> str:
    if not VARIABLE.fullmatch(name):
        raise ValueError("no name for a variable: letters, digits and _ only, no digit first")
    return name


def _flag(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    items = value if isinstance(value, list) else [value]
    if value == []:
        raise ValueError("an empty list says nothing: `true` is a bare flag, `false` leaves the flag out")
    if not all(isinstance(item, str) for item in items):
        raise ValueError("expected text, a number, `true`, `false`, or a list of text and numbers")
    for item in items:
        one_line(str(item))
    return value


def _scalar(value: object) -> object:
    if isinstance(value, (dict, list)):
        raise ValueError("expected text, a number, `true` or `false`")  # noqa: TRY004 - for pydantic
    return value


_FLAG_SCHEMA: Final = {
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean"]}},
    ]
}

Word = Annotated[str | None, AfterValidator(_word)]
Reason = Annotated[str | None, AfterValidator(_reason)]
Gpus = Annotated[int, Field(ge=0), BeforeValidator(_no_bool)]
Cores = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
Points = Annotated[float, Field(ge=0, lt=100, allow_inf_nan=False), BeforeValidator(_no_bool)]
Seconds = Annotated[Limit, BeforeValidator(_no_bool)]
Minutes = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
FlagName = Annotated[str, AfterValidator(one_line)]
Flag = Annotated[Any, BeforeValidator(_flag), WithJsonSchema(_FLAG_SCHEMA)]
VariableName = Annotated[str, AfterValidator(_variable)]
EnvValue = Annotated[
    str | None,
    AfterValidator(lambda value: value if value is None else one_line(value)),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]
Expected = Annotated[Scalar | None, BeforeValidator(_scalar)]
Param = Annotated[str | None, WithJsonSchema({"type": ["string", "number", "boolean", "null"]})]
Extends = Annotated[Any, WithJsonSchema(TEXTS)]
Matrix = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "additionalProperties": {
                "type": "array",
                "minItems": 1,
                "items": {"type": ["string", "number", "boolean"]},
            },
        }
    ),
]


class Written(BaseModel):
    """Base: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WrittenModel(Written):
    """The served weights: either `path` or `pull`."""

    path: Word = Field(None, description="Model file or directory on this machine.")
    pull: Word = Field(None, description="Name of a model that `harness models pull` knows.")
    served_name: Word = Field(
        None, description="The name that clients send and the server must report. Default: model."
    )


class WrittenServer(Written):
    """One server process of a lane; what it says is laid over what the lane says."""

    role: Role = Field("normal", description="normal alone, or prefill, decode and master (or router).")
    flags: dict[FlagName, Flag] | None = Field(
        None, description="Laid over the lane's flags; a router, another program, has its own alone."
    )
    env: dict[VariableName, EnvValue] | None = Field(None, description="Laid over the lane's env.")
    expect: dict[str, Expected] | None = Field(
        None, description="Laid over the lane's expect; a master or router has its own alone."
    )
    gpus: Gpus | None = Field(
        None, description="GPUs of this server. Default: the lane's; 0 for a master or router."
    )
    cpus: Cores | None = Field(
        None, description="CPU cores of this server alone. Default: the lane's; any for a master or router."
    )
    host: Word = Field(
        None,
        description="IPv4 address of this machine that the server listens on. Default: 127.0.0.1. LightLLM's "
        "prefill and decode nodes need a network card's; who else can reach them there is yours to judge.",
    )


class WrittenTimeouts(Written):
    """Limits in seconds."""

    start_s: Seconds | None = Field(None, description="Longest silence while starting. Default: 300.")
    start_cap_s: Seconds | None = Field(None, description="Longest start altogether. Default: 3600.")
    request_s: Seconds | None = Field(None, description="One request. Default: 600.")
    check_s: Seconds | None = Field(None, description="One check. Default: 21600.")
    stop_s: Seconds | None = Field(None, description="From SIGTERM to SIGKILL. Default: 30.")


class WrittenLane(Written):
    """One deployment and the checks that run against it. A name starting with _ makes it a template."""

    description: str | None = Field(None, description="One sentence; not inherited.")
    extends: Extends = Field(
        None, description="Lane or lanes of this scenario to start from; later ones win, this one most."
    )
    matrix: Matrix = Field(
        None,
        description="Lists of values; the lane is made once for each combination. {key} is replaced in the "
        "lane's name and in every text of the lane; values of keys not in the name are appended to it.",
    )
    engine: Word = Field(None, description="The inference server's adapter.")
    python: Word = Field(None, description="Interpreter that has the engine installed.")
    binary: Word = Field(None, description="Server program, for engines that are one (llama-server).")
    model: WrittenModel | None = Field(None, description="The served weights.")
    flags: dict[FlagName, Flag] | None = Field(
        None,
        description="Server flags exactly as the server spells them, handed over exactly as written (0.90 "
        "stays 0.90). A list is one flag with several values, true a bare flag; false or null takes out "
        "an inherited flag.",
    )
    env: dict[VariableName, EnvValue] | None = Field(
        None,
        description="Environment of the servers, exactly as written; null takes out an inherited variable.",
    )
    expect: dict[str, Expected] | None = Field(
        None, description="What the running server's own configuration must show, e.g. kv_dtype: bf16."
    )
    gpus: Gpus | None = Field(None, description="GPUs of each server. Default: 0.")
    cpus: Cores | None = Field(None, description="CPU cores of each server alone.")
    servers: list[WrittenServer] | None = Field(
        None, description="The server processes. Default: one with the role normal."
    )
    checks: dict[str, dict[str, Any] | None] | None = Field(
        None,
        description="Checks by name, with their parameters. `kind` runs a check under a name of its own; "
        "false or null takes out an inherited check.",
    )
    timeouts: WrittenTimeouts | None = Field(None, description="Limits in seconds.")
    required: bool | None = Field(
        None, description="false: a lane that could not run here does not worsen the run. Default: true."
    )
    requires: dict[str, Any] | None = Field(None, description="Hardware conditions of the lane.")
    skip: Reason = Field(None, description="Why the lane is SKIPPED wherever it is run. Default: it runs.")
    minutes: Minutes | None = Field(
        None, description="Expected duration; lanes are packed on the GPUs by it, longest first. Default: 10."
    )


class WrittenPair(Written):
    """Baseline lane against candidate lane on one check."""

    baseline: str = Field(description="Lane that sets the standard.")
    candidate: str = Field(description="Lane that must live up to it.")
    check: str = Field("gsm8k", description="Check that both lanes have. Default: gsm8k.")
    may_differ: list[str] | None = Field(
        None, description="Settings that may differ, wildcards allowed: flags.--cache-type-*."
    )
    max_drop_pp: Points | None = Field(
        None, description="Accepted accuracy drop in percentage points; without it nothing is claimed."
    )


class WrittenScenario(Written):
    """What `harness run NAME` runs."""

    name: str | None = Field(None, description="Default: the file's name. Not inherited.")
    description: str | None = Field(None, description="One sentence for `harness list`. Not inherited.")
    extends: Extends = Field(
        None, description="File or files to start from, relative to this one; later ones win, this one most."
    )
    params: dict[VariableName, Param] | None = Field(
        None,
        description="Defaults of the placeholders ${NAME}; --set params.NAME=VALUE and the environment "
        "win over them. ${NAME:-text} has a default of its own, $$ is a dollar.",
    )
    lanes: dict[str, WrittenLane] | None = Field(None, description="Lanes by name.")
    pairs: dict[str, WrittenPair] | None = Field(None, description="Pairs by name.")
