"""Flags of a scenario: rendered exactly as written, and checked against what the engine accepts.

argparse is kind: it takes abbreviations, underscores (vLLM), two spellings of one option, and lets the last
one win. A regression harness must not be: what the scenario says is what has to be running.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping

from harness.engines.arguments import Argument, ArgumentList
from harness.scenario.model import FlagValue

NUMBER = {
    "int": re.compile(r"[+-]?\d+(_\d+)*"),
    "float": re.compile(r"[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE),
    "human_readable_int": re.compile(r"[+-]?\d+|\d+(\.\d+)?[kKmMgGtT]i?"),
    "human_readable_int_or_auto": re.compile(r"[+-]?\d+|\d+(\.\d+)?[kKmMgGtT]i?|auto|AUTO"),
}
WORD = {
    "int": "a whole number",
    "float": "a number",
    "human_readable_int": "a whole number such as 4096 or 4k",
    "human_readable_int_or_auto": "a whole number such as 4096 or 4k, or auto",
}
NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # the only values with a dash that argparse takes for values


def render(flags: Mapping[str, FlagValue]) -> list[str]:
    """Command-line words: `true` is a bare flag, a scalar one value, a list several; `false` and null are
    left out. The order is kept."""
    return [word for flag, value in flags.items() if _is_set(value) for word in (flag, *_texts(value))]


def given(flags: Mapping[str, FlagValue], *names: str) -> FlagValue:
    """The value of the first of these spellings that is set; None when none is."""
    return next((flags[name] for name in names if _is_set(flags.get(name))), None)


def check(flags: Mapping[str, FlagValue], arguments: ArgumentList, owned: Collection[str]) -> list[str]:
    """Everything that is wrong with these flags, one sentence each; empty when the engine's parser will take
    them as written. `owned` are flags that the harness sets itself, in any one spelling."""
    mine = [option for flag in owned if (option := arguments.find(flag)) is not None]
    problems: list[str] = []
    spelt: dict[int, list[str]] = {}
    for flag, value in flags.items():
        option = _lookup(flag, arguments)
        if option is None:
            problems.append(_unknown(flag, arguments))
            continue
        if any(option is own for own in mine):
            problems.append(f"{flag} is set by the harness; take it out of the scenario")
            continue
        problems += _value_problems(flag, value, option)
        if _is_set(value) and flag in option.flags:
            spelt.setdefault(id(option), []).append(flag)
        elif _is_set(value):
            problems += _dotted_problems(flag, flags, option)
    problems += (_twice(names) for names in spelt.values() if len(names) > 1)
    return [*problems, *_missing(flags, arguments, mine)]


def unknown_flags(flags: Mapping[str, FlagValue], arguments: ArgumentList) -> Iterator[str]:
    """One sentence for each flag that the engine does not have, or not in this spelling."""
    return (_unknown(flag, arguments) for flag in flags if _lookup(flag, arguments) is None)


def _is_set(value: FlagValue) -> bool:
    return value is not None and value is not False  # 0 is set, and equals False


def _texts(value: FlagValue) -> list[str]:
    if isinstance(value, bool) or value is None:
        return []
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _lookup(flag: str, arguments: ArgumentList) -> Argument | None:
    option = arguments.find(flag)
    if option is None and arguments.dotted and "." in flag:
        option = arguments.find(flag.partition(".")[0])
    return option


def _unknown(flag: str, arguments: ArgumentList) -> str:
    """Why there is no such flag: a slip of spelling, an abbreviation, or a name from elsewhere."""
    bare = flag.partition("=")[0]
    if bare != flag and arguments.find(bare):
        return f"{flag}: write the value behind a colon, as `{bare}: {flag.partition('=')[2]}`"
    same = [known for known in arguments.flags if _letters(known) == _letters(bare)]
    if same:
        return f"{flag} is spelled {same[0]}"
    longer = [option for option in arguments.options if any(name.startswith(bare) for name in option.flags)]
    if longer and bare.startswith("--") and len(bare) > len("--"):
        names = [next(name for name in option.flags if name.startswith(bare)) for option in longer]
        if len(names) == 1:
            return f"{flag} is an abbreviation of {names[0]}; write it out"
        return f"{flag} is an abbreviation of more than one flag ({_few(names)}); write the one that is meant"
    by_letters = {_letters(name): name for name in reversed(arguments.flags)}
    near = difflib.get_close_matches(_letters(bare), by_letters, n=1)
    hint = f"; the nearest is {by_letters[near[0]]}" if near else ""
    return f"{arguments.engine} has no flag {flag}{hint} ({arguments.source})"


def _letters(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-").strip().lower()


def _value_problems(flag: str, value: FlagValue, option: Argument) -> Iterator[str]:
    opposite = next((name for name in option.flags if name == f"--no-{flag.removeprefix('--')}"), None)
    if value is False and opposite:
        yield f"{flag}: false only takes the flag out; to switch it off write `{opposite}: true`, else null"
    if not _is_set(value):
        return
    texts = _texts(value)
    if flag not in option.flags:  # one entry of a JSON flag: any one value
        if len(texts) != 1:
            yield f"{flag} takes one value"
        return
    if option.bare:
        if value is not True:
            yield f"{flag} takes no value; write `{flag}: true` (given: {_short(value)})"
        return
    yield from _count_problems(flag, texts, option)
    for text in texts:
        yield from _text_problems(flag, text, option)


def _count_problems(flag: str, texts: list[str], option: Argument) -> Iterator[str]:
    count = len(texts)
    if option.repeats and count > 1:
        yield f"{flag} takes one value each time it is given, and a scenario can give it once"
    elif option.nargs is None and count != 1:
        yield f"{flag} takes one value{', and has none' if not count else f', and is given {count}'}"
    elif option.nargs == "+" and not count:
        yield f"{flag} takes one or more values, and has none"
    elif option.nargs == "?" and count > 1:
        yield f"{flag} takes at most one value, and is given {count}"
    elif isinstance(option.nargs, int) and count != option.nargs:
        yield f"{flag} takes {option.nargs} values, and is given {count}"


def _text_problems(flag: str, text: str, option: Argument) -> Iterator[str]:
    if text.startswith("-") and not NEGATIVE_NUMBER.fullmatch(text):
        yield f"{flag}: a value that begins with a dash ({text}) would be read as a flag"
        return
    kind = option.type.removeprefix("optional ")
    if kind != option.type and text in ("", "None"):
        return
    if option.choices and text not in option.choices:
        near = difflib.get_close_matches(text, option.choices, n=1, cutoff=0.5)
        hint = f"; the nearest is {near[0]}" if near else ""
        yield f"{flag} has no choice `{text}`{hint} (choices: {_few(option.choices)})"
    elif kind in NUMBER and not NUMBER[kind].fullmatch(text.strip()):
        yield f"{flag} takes {WORD[kind]}, not `{text}`"
    elif kind == "json" and not _is_json(text):
        yield f"{flag} takes JSON, and this is none: {_short(text)}"


def _dotted_problems(flag: str, flags: Mapping[str, FlagValue], option: Argument) -> Iterator[str]:
    whole = [name for name in option.flags if _is_set(flags.get(name))]
    if option.bare:
        yield f"{flag}: {option.flags[0]} takes no value, so it has no entries"
    elif whole:
        yield f"{flag} would replace all of {whole[0]}, which is given too; put the entry into its JSON"


def _missing(flags: Mapping[str, FlagValue], arguments: ArgumentList, mine: list[Argument]) -> Iterator[str]:
    for option in arguments.options:
        owned = any(option is own for own in mine)
        if option.required and not owned and given(flags, *option.flags) is None:
            yield f"{option.flags[0]} is required by {arguments.engine}"


def _twice(names: list[str]) -> str:
    return f"{' and '.join(names)} are the same option, and the last would win; give it once"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _few(names: Collection[str], limit: int = 12) -> str:
    shown = ", ".join(list(names)[:limit])
    return shown if len(names) <= limit else f"{shown}, … {len(names) - limit} more"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "…"
