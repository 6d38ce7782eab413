"""Whether what is on file was asked as the parameters say. Pure.

What the evidence says of its own size must not decide what was tested: fewer requests, shorter prompts or
answers, or one request in the place of another would pass every other rule.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.checks import legs
from harness.checks.exchange import Evidence, Exchange
from harness.findings import Code, Finding


@dataclass(frozen=True, slots=True)
class Planned:
    """One leg of a check. `sizes` has the tokens of prompt and answer of each case; `like` is the leg whose
    prompts these are again; `together`: all of them ran at the same time."""

    sizes: Mapping[str, tuple[int, int]]
    use_cache: bool = True
    like: str | None = None
    together: bool = False


def sizes(cases: Iterable[object], prompt: int, output: int) -> dict[str, tuple[int, int]]:
    """The same for each case."""
    return dict.fromkeys(map(str, cases), (prompt, output))


def repeated(lengths: Iterable[int]) -> list[str]:
    """What is wrong with lengths of prompts, each of which names its case."""
    counted = Counter(lengths)
    return [f"lengths: {length} is there {n} times; once is enough" for length, n in counted.items() if n > 1]


def as_planned(evidence: Evidence, plan: Mapping[str, Planned]) -> list[Finding]:
    """Every request is one of the plan, and all of the plan are there, once each."""
    found = [one for leg, planned in plan.items() for one in legs.asked(evidence, [leg], planned.sizes)]
    like = {leg: evidence.leg(planned.like) for leg, planned in plan.items() if planned.like}
    seen: set[object] = set()
    for exchange in evidence.exchanges:
        why = [*_unlike(exchange, plan.get(exchange.leg), like.get(exchange.leg)), *_again(exchange, seen)]
        if why:
            message = f"{exchange.leg} {exchange.case} was not asked as the parameters say: {'; '.join(why)}"
            found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where))
    for leg, planned in plan.items():
        found += together(evidence, leg) if planned.together else ()
    return found


def together(evidence: Evidence, leg: str) -> Iterator[Finding]:
    """Requests of which one had its answer before another was asked were never all in the server."""
    answered = [exchange for exchange in evidence.leg(leg).values() if exchange.error is None]
    if not answered:
        return
    last = max(answered, key=lambda one: one.started_s)
    first = min(answered, key=_ended)
    if last.started_s > _ended(first):
        message = (
            f"{leg} {last.case} was asked when {first.case} had its answer: they did not run together; is "
            "this machine busy? Longer answers (`output_tokens`) overlap more"
        )
        yield Finding(code=Code.NOT_EXERCISED, message=message, where=last.where)


def _ended(exchange: Exchange) -> float:
    return exchange.started_s + exchange.latency_s


def _unlike(
    exchange: Exchange, planned: Planned | None, like: Mapping[str, Exchange] | None
) -> Iterator[str]:
    """In what a request differs from the plan, in words."""
    if planned is None or exchange.case not in planned.sizes:
        yield "they know of no such request"
        return
    prompt, output = planned.sizes[exchange.case]
    length = exchange.asked_tokens if isinstance(exchange.prompt, str) else len(exchange.prompt)
    if (exchange.asked_tokens, length) != (prompt, prompt) or not exchange.prompt:
        yield f"a prompt of {length} tokens, not {prompt}"
    if exchange.max_tokens != output:
        yield f"{exchange.max_tokens} tokens to generate, not {output}"
    if exchange.use_cache != planned.use_cache:
        yield f"{'with' if exchange.use_cache else 'without'} the cache"
    if like is not None and (exchange.case not in like or like[exchange.case].prompt != exchange.prompt):
        yield f"another prompt than {planned.like}"


def _again(exchange: Exchange, seen: set[object]) -> Iterator[str]:
    """What another request has been told of already: then one of them would stand for both."""
    prompt = exchange.prompt if isinstance(exchange.prompt, str) else tuple(exchange.prompt)
    for what, key in (
        ("it is there twice", (exchange.leg, exchange.case)),
        ("another request has its id", exchange.request_id),
        (f"another case of {exchange.leg} has its prompt", (exchange.leg, None, prompt)),
    ):
        if key in seen:
            yield what
        seen.add(key)
