"""Placeholders and matrix keys in texts."""

from pathlib import Path

import pytest

from tests.scenario.tools import LANE, load_text, problems_of

ENVIRON = {"A": "env", "EMPTY": "", "NESTED": "${A}", "BRACES": "{kv}"}


def flag(folder: Path, value: str, *overrides: str, params: str = "{}") -> object:
    text = f"params: {params}\nlanes: {{a: {{{LANE}, flags: {{--x: {value}}}}}}}"
    return load_text(folder, text, *overrides, environ=ENVIRON).lanes["a"].servers[0].flags["--x"]


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ('"${A}"', "env"),
        ('"a/${A}/b/${A}"', "a/env/b/env"),
        ('"${NOPE:-fallback}"', "fallback"),
        ('"${NOPE:-}"', ""),
        ('"${A:-fallback}"', "env"),
        ('"${EMPTY}"', ""),
        ('"${EMPTY:-fallback}"', "fallback"),
        ('"$$"', "$"),
        ('"$${A}"', "${A}"),
        ('"$$${A}"', "$env"),
        ('"${NESTED}"', "${A}"),
        ('"$HOME costs $5"', "$HOME costs $5"),
        ('["${A}", 0.90]', ["env", "0.90"]),
        ("'{\"json\": 1}'", '{"json": 1}'),
        ('"${A:-a b:c}"', "env"),
        ('"${NOPE:-a b:-c}"', "a b:-c"),
    ],
)
def test_filled(tmp_path: Path, value: str, filled: object) -> None:
    assert flag(tmp_path, value) == filled


@pytest.mark.parametrize(
    ("overrides", "params", "filled"),
    [
        ((), "{A: file}", "env"),
        (("params.A=set",), "{A: file}", "set"),
        (("params.A=set",), "{}", "set"),
        (("params.A=0.90",), "{}", "0.90"),
        (("params.A=on",), "{}", "on"),
        (("params.A=",), "{}", "env"),
        (("params.A=1", "params.A=2"), "{}", "2"),
        (("params={A: flow}",), "{}", "flow"),
    ],
)
def test_set_wins_over_environment_over_params(
    tmp_path: Path, overrides: tuple[str, ...], params: str, filled: str
) -> None:
    assert flag(tmp_path, '"${A}"', *overrides, params=params) == filled


def test_params_win_over_the_default_and_over_an_empty_variable(tmp_path: Path) -> None:
    assert flag(tmp_path, '"${P:-default}"', params="{P: file}") == "file"
    assert flag(tmp_path, '"${EMPTY:-default}"', params="{EMPTY: file}") == "file"


def test_a_parameter_may_use_the_environment_but_no_other_parameter(tmp_path: Path) -> None:
    assert flag(tmp_path, '"${P}"', params='{P: "${A}/x"}') == "env/x"
    text = f'params:\n  Q: q\n  P: "${{Q}}"\nlanes: {{a: {{{LANE}}}}}'
    assert "test.yaml:3:6: `${Q}` is set nowhere" in problems_of(tmp_path, text)[0]


def test_the_scenario_says_what_its_parameters_were(tmp_path: Path) -> None:
    text = f"params: {{A: file, B: 0.90, C: '', D: set}}\nlanes: {{a: {{{LANE}}}}}"
    scenario = load_text(tmp_path, text, "params.D=given", environ=ENVIRON)
    assert scenario.params == {"A": "env", "B": "0.90", "C": "", "D": "given"}


def test_number_fields_read_numbers_from_text(tmp_path: Path) -> None:
    text = (
        'lanes: {a: {engine: llamacpp, model: {pull: x}, gpus: "${G:-4}", cpus: "${C}", '
        'required: "${R:-false}", timeouts: {start_s: "${T:-1.5}"}, checks: {gsm8k: {limit: "${L:-7}"}}}}'
    )
    lane = load_text(tmp_path, text, environ={"C": "3"}).lanes["a"]
    assert (lane.servers[0].gpus, lane.servers[0].cpus) == (4, 3)
    assert lane.required is False
    assert lane.timeouts.start_s == 1.5
    assert lane.checks["gsm8k"]["limit"] == "7"  # the check's own model reads it


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("${MODEL_DRI}", "`${MODEL_DRI}` is set nowhere: not by --set params.MODEL_DRI=..., not in the"),
        ("${MODEL_DRI}", "Did you mean `${MODEL_DIR}`?"),
        ("${", "`${` starts no placeholder"),
        ("${A", "`${` starts no placeholder"),
        ("${1A}", "`${` starts no placeholder"),
        ("${A:+x}", "`${` starts no placeholder"),
        ("${NOPE:-{kv}}", "`${` starts no placeholder"),
        ("${BAD}", "the value of `${BAD}` is not UTF-8 text."),
        ("${BIG}" * 100, "too much text once the placeholders are filled in."),
    ],
)
def test_broken_placeholders_are_found_at_their_place(tmp_path: Path, value: str, problem: str) -> None:
    text = f"lanes:\n  a:\n    engine: vllm\n    model: {{path: '{value}'}}\n"
    environ = {**ENVIRON, "MODEL_DIR": "x", "BAD": "\udcff", "BIG": "x" * 100_000}
    found = problems_of(tmp_path, text, environ=environ)
    assert len(found) == 1
    assert found[0].startswith("test.yaml:4:19: ")
    assert problem in found[0]


def test_a_wrong_type_is_found_at_the_placeholder(tmp_path: Path) -> None:
    text = f"lanes:\n  a: {{{LANE},\n    gpus: '${{G:-four}}'}}\n"
    assert problems_of(tmp_path, text) == ["test.yaml:3:11: `gpus`: expected a whole number, got `four`."]


def test_templates_and_lanes_left_out_may_lack_values(tmp_path: Path) -> None:
    text = (
        "lanes: {_t: {gpus: '${G}', engine: '{e}'}, "
        f"a: {{{LANE}}}, b: {{engine: '${{E}}', model: {{path: '${{DIR}}'}}, cpus: '${{C}}'}}}}"
    )
    assert list(load_text(tmp_path, text, lanes=["a"]).lanes) == ["a"]
    assert len(problems_of(tmp_path, text)) == 3


def test_matrix_keys_are_filled_once(tmp_path: Path) -> None:
    text = (
        f"lanes: {{'a-{{kv}}': {{{LANE}, matrix: {{kv: [x]}}, "
        "env: {A: '{kv}', B: '${BRACES}', C: '${kv:-d}', D: '{other}', E: '{kv}{kv}'}}}"
    )
    lane = load_text(tmp_path, text, environ=ENVIRON).lanes["a-x"]
    assert lane.servers[0].env == {"A": "x", "B": "{kv}", "C": "d", "D": "{other}", "E": "xx"}


def test_a_slip_in_a_matrix_key_is_found(tmp_path: Path) -> None:
    text = f"lanes:\n  a: {{{LANE}, matrix: {{dtype: [x]}},\n    env: {{A: '{{dtpe}}'}}}}"
    assert problems_of(tmp_path, text) == [
        "test.yaml:3:14: `{dtpe}` is no key of the lane's matrix. Did you mean `{dtype}`?"
    ]
