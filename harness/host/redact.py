"""Secrets out of what is kept as evidence: command lines, environments, excerpts of logs.

A secret is known by the name of the flag, variable or field that carries it. `key` and `token` are also
ordinary words of this trade (`max_total_token_num`, `eos_token`, `cache_key`), so they count only as the last
word of a name, and not after a word that gives them their other meaning.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

MASK = "***"
_Setting = TypeVar("_Setting")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = _words(
    "secret secrets password passwords passwd passphrase credential credentials auth authorization apikey "
    "apikeys accesskey secretkey privatekey accesstoken authtoken apitoken hftoken hft pgpassword"
)
_AT_THE_END = _words("key keys token pat")
_ORDINARY = _words(
    # tokens of a text
    "max min num new per pad eos bos unk sep cls mask stop image video audio think draft next first last "
    "special prompt output input chat handle end start begin text total each "
    # keys of a table
    "cache sort primary foreign partition hash group public metric doc dict route routing shm kv query"
)
_ACCESS_KEY_ID = ["access", "key", "id"]
_SHORT_FOR_PASSWORD = ("pwd", "pass")
_LOGINS = _words("user db admin root login smtp mail email http proxy ssh mysql redis pg")

# Values that hide nothing; clients of vLLM call "no key" EMPTY.
_WORDS = "0 1 true false yes no on off none null empty enabled disabled required default"
_HARMLESS = _words(_WORDS) | {"", MASK}
_SCHEMES = _words("bearer basic token")
SHORTEST = 6
_SHORT = 8  # a shorter secret is replaced only where it stands as a word of its own

_FLAG = re.compile(r"--[A-Za-z]|-[A-Za-z]{1,6}$")
# --hf-token, HF_TOKEN, lanes.a.flags."--hf-token"
_WHOLE = re.compile(r"-[\w.-]*|[A-Z_0-9]+|\w+\.[\w.\"'-]+")
# A name is tried only where it begins, and none is endless: a giant line must not take quadratic time.
_BEGIN = r"(?<![\w.-])"
_NAME = r"(?P<name>[A-Za-z][\w.-]{0,80})"
_VALUE = r"""(?P<value>\[[^\]]*\]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&'")\]}]+)"""
_COLON = re.compile(rf"(?P<front>{_BEGIN}{_NAME}:\s+){_VALUE}")
_PATTERNS = (
    # https://user:password@host
    re.compile(rf"(?P<front>{_BEGIN}[A-Za-z][\w+.-]{{0,20}}://)(?P<value>[^\s/'\"]+)(?=@)"),
    re.compile(
        r"(?P<front>\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer\s+|basic\s+|token\s+)?)"
        r"(?P<value>[^\s'\",;]+)",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<front>\bbearer\s+)(?P<value>[\w.~+/=-]{6,})", re.IGNORECASE),
    # --api-key xyz, --api-key: xyz, api_key=xyz, "api_key": "xyz", "--api-key"=xyz, api-key: xyz
    re.compile(rf"(?P<front>{_BEGIN}--?{_NAME}(?:=|:\s*|\s+))(?!--){_VALUE}"),
    re.compile(rf"(?P<front>{_BEGIN}{_NAME}=){_VALUE}"),
    re.compile(rf"(?P<front>['\"]-{{0,2}}{_NAME}['\"]\s*[:=]\s*){_VALUE}"),
    _COLON,
)


def is_secret(name: str) -> bool:
    """Whether a flag, variable or field of this name carries a secret: `--api-key`, `HF_TOKEN`, `hfToken`."""
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1].isdecimal():
        words.pop()
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _SHORT_FOR_PASSWORD:
        return before in _LOGINS
    return (
        not _ALWAYS.isdisjoint(words)
        or words[-3:] == _ACCESS_KEY_ID
        or (last in _AT_THE_END and before not in _ORDINARY)
    )


def redact_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """The command line with the values of secret flags masked, in whichever of the usual spellings, and the
    given secrets wherever they stand."""
    known = tuple(secrets)
    return [
        front + (redact_text(rest, known) if not secret else _mask(rest))
        for front, rest, secret in _parts(argv)
    ]


def redact_env(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """The environment with the values of secret variables masked, and the given secrets wherever they are."""
    known = tuple(secrets)
    return {
        name: _mask(value) if is_secret(name) else redact_text(value, known) for name, value in env.items()
    }


def redact_settings(settings: Mapping[str, _Setting], secrets: Iterable[str] = ()) -> dict[str, _Setting]:
    """Flags or resolved settings by name (dots inside are fine), the values of secret ones masked, and the
    given secrets masked in all others. Numbers and switches under an ordinary name stay what they are."""
    known = tuple(secrets)
    return {name: _setting(is_secret(name), value, known) for name, value in settings.items()}


def secret_values(argv: Sequence[str], env: Mapping[str, str]) -> frozenset[str]:
    """The secrets themselves, of any length, for what a program that knows them has written."""
    found = [rest for _, rest, secret in _parts(argv) if secret]
    found += [value for name, value in env.items() if is_secret(name)]
    return frozenset(value for value in found if value.lower() not in _HARMLESS)


def telling(secrets: Iterable[str]) -> frozenset[str]:
    """Those of at least SHORTEST characters: a shorter one stands in other programs' text by chance."""
    return frozenset(secret for secret in secrets if len(secret) >= SHORTEST)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets, and without what looks like one: assignments and fields with a
    secret name, authorization headers, user information in URLs."""
    text = mask_known(text, secrets)
    for pattern in _PATTERNS:
        text = pattern.sub(_replacement, text)
    return text


def mask_known(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets; nothing else is looked for, so that it is quick on every line."""
    for secret in sorted((each for each in secrets if each and each in text), key=len, reverse=True):
        exact = re.escape(secret)
        text = re.sub(rf"(?<!\w){exact}(?!\w)" if len(secret) < _SHORT else exact, MASK, text)
    return text


def _setting(secret: bool, value: Any, known: tuple[str, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [_setting(secret, item, known) for item in value]
    if secret:
        return _mask(str(value))
    return redact_text(value, known) if isinstance(value, str) else value


def _replacement(match: re.Match[str]) -> str:
    name, value = match.groupdict().get("name"), match["value"]
    if name is not None:
        word = name.lower()
        scheme_alone = word == "authorization" and value.lower() in _SCHEMES  # what follows it was dealt with
        said_by_every_log = match.re is _COLON and word in _AT_THE_END  # `token: 17`
        if scheme_alone or said_by_every_log or not is_secret(name):
            return match.group()
    return match["front"] + _mask(value)


def _mask(value: str) -> str:
    if len(value) > 1 and value[0] in ("'", '"') and value[-1] == value[0]:
        return value[0] + _mask(value[1:-1]) + value[0]
    scheme, _, rest = value.partition(" ")
    if rest and scheme.lower() in _SCHEMES:
        return f"{scheme} {MASK}"
    return value if value.lower() in _HARMLESS else MASK


def _parts(argv: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Each word as its harmless front, its rest, and whether the rest is a secret.

    A secret flag may take several values (vLLM's `--api-key`), and the first one may begin with a dash.
    """
    expected = False
    for word in argv:
        if expected and not _FLAG.match(word):
            yield "", word, True
            continue
        expected = "=" not in word and word.startswith("-") and is_secret(word)
        front, rest = "", word
        name, equals, value = rest.partition("=")
        if equals and word.startswith("--") and not is_secret(name):
            front, rest = name + equals, value  # --set=lanes.a.env.HF_TOKEN=xyz
            name, equals, value = rest.partition("=")
        if equals and _WHOLE.fullmatch(name) and is_secret(name):
            yield front + name + equals, value, True
        else:
            yield front, rest, False
