"""Deciders: the type, and those that are built in; and the combiner `clamped`, for sums within bounds without answers.

Workers make a built-in decider from its settings, which the queue's configuration has, so they need no code of the
application. Deciders read no clock: requests about time carry it, and a time before the latest one of the key counts as
that one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.combiners import Combiner
from cq.durations import Span, seconds_of, span_of
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration, InvalidData
from cq.observer import check_functions, check_named

Decide = Callable[[Any, Any, Any], tuple[Any, Any]]
"""`decide(key, state, request)` returns the new state and the answer."""

KEEP_SECONDS: Final = 3600
"""How long answers can be read."""
MAX_KEEP_SECONDS: Final = 24 * 3600
KIND: Final = "kind"
"""The setting with the kind of a built-in decider."""
_VERSION: Final = 1


class Decided(NamedTuple):
    """A decision of a pass, as an observer of decisions receives it.

    Attributes:
        key: the key.
        request: the request.
        answer: the answer.
        old, new: the state of the key before and after; None: no state.
    """

    key: Any
    request: Any
    answer: Any
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Decider:
    """A named and versioned function that decides the requests of a queue, key by key in commit order.

    Args:
        name: its name in configurations.
        version: increment it with every change of what it decides. Workers with another version leave the queue alone.
        decide: `decide(key, state, request)` returns `(new state, answer)`. The state is the value of the key in the
            queue, None at first; None as the new state deletes it. The function is pure: it reads no clock and no
            store, and it returns a new object instead of changing `state` or `request`. It is called again when a
            transaction is retried. If it raises, the state stays, the request is set aside with the error, and callers
            that wait for the answer get `DecisionFailed`.
        keep: how long answers can be read, up to a day, such as `"2h"`.
        observer: `observer(tr, decisions)` is called with a list of `Decided` in the transaction that writes their
            states and answers, in the order of the decisions of each key. It is not called for requests that failed or
            were withdrawn. If it raises, the request at fault fails. After eight of these in a row, larger and larger
            numbers of requests fail together: let `decide` refuse a request.
        refused: `refused(request, answer)` returns whether the answer refuses the request, for the share of refused
            decisions that `cq status` and metrics have. None: a request is refused if it leaves the state as it is.
        settings: of a decider of `cq.deciders`; empty for others.
    """

    name: str
    version: int
    decide: Decide
    keep: Span = field(default=KEEP_SECONDS, kw_only=True)
    observer: Callable[[Any, list[Decided]], object] | None = field(default=None, kw_only=True)
    refused: Callable[[Any, Any], bool] | None = field(default=None, kw_only=True, repr=False, compare=False)
    settings: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        check_functions(self, "decide", "observer", "refused")
        check_named("decider", self.name, self.version)
        if seconds_of(self.keep) > MAX_KEEP_SECONDS:
            raise InvalidConfiguration(
                f"expected answers to be kept for 1 to {MAX_KEEP_SECONDS:,} whole seconds, got: {brief(self.keep)}"
            )


def bounded(lo: int, hi: int, *, start: int = 0, clamp: bool = False, keep: Span = KEEP_SECONDS) -> Decider:
    """Numbers that stay within bounds, such as a stock: a request is an int, which is added, or subtracted if negative.

    The answer is the number that was added: the request, or 0 if the result would leave the bounds. The state is an
    int. One that is outside, because the bounds were changed, can come nearer to them.

    Args:
        lo: the least value.
        hi: the greatest value.
        start: the value of a new key.
        clamp: whether a request that would leave the bounds adds as much as possible instead of nothing.
        keep: as for `Decider`.

    Raises:
        InvalidConfiguration: the start is not within the bounds.
    """
    _check_ints("lo <= start <= hi", lo, start, hi)

    def decide(key: Any, state: int | None, request: Any) -> tuple[int, int]:
        value, amount = start if state is None else state, _int(request)
        new = value + amount
        least, most = min(lo, value), max(hi, value)  # a value outside of changed bounds can come nearer
        if not least <= new <= most:
            new = min(max(new, least), most) if clamp else value
        return new, new - value

    settings = {"lo": lo, "hi": hi, "start": start, "clamp": bool(clamp)}
    return _made("bounded", decide, lambda request, amount: amount == 0 != request, keep, settings)


def unique(*, keep: Span = KEEP_SECONDS) -> Decider:
    """Names that have one owner each: the key is a name, and a request is `claim(owner)` or `release_name(owner)`.

    The answer is whether the owner has the name afterwards, or to a release, whether the owner had it. The state is the
    owner, text or an int.

    Args:
        keep: as for `Decider`.
    """

    def decide(key: Any, owner: Any, request: Any) -> tuple[Any, bool]:
        match request:
            case {"claim": who, **others} if not others and type(who) in (str, int):
                owner = who if owner is None else owner
                return owner, owner == who
            case {"release": who, **others} if not others and type(who) in (str, int):
                return (None, True) if owner == who else (owner, False)
        raise _unknown(request)

    return _made("unique", decide, lambda request, has: not has, keep, {})


def bucket(capacity: float, per_second: float, *, keep: Span = KEEP_SECONDS) -> Decider:
    """Rate limits by token buckets: a request is `take(tokens)`, from the bucket of its key.

    The answer is 0 if the tokens were taken, else the seconds after which there would be as many. The state is a list
    of the tokens and the time of the latest request.

    Args:
        capacity: the tokens in a full bucket, as a new one is.
        per_second: the tokens that come in a second.
        keep: as for `Decider`.

    Raises:
        InvalidConfiguration: a number is not positive.
    """
    if not all(_is_number(each) and each > 0 for each in (capacity, per_second)):
        raise InvalidConfiguration(
            f"expected positive numbers for a bucket, got: {brief(capacity)}, {brief(per_second)}"
        )

    def decide(key: Any, state: list[float] | None, request: Any) -> tuple[list[float], float]:
        tokens, at = _number(_fields(request).get("take")), _number(request.get("at"))
        if not 0 < tokens <= capacity:
            raise InvalidData(f"expected 0 to {capacity} tokens, got: {brief(tokens)}")
        there, since = state or (capacity, at)
        now = max(at, since)
        there = min(capacity, there + (now - since) * per_second)
        if there >= tokens:
            return [there - tokens, now], 0
        return [there, now], (tokens - there) / per_second

    settings = {"capacity": capacity, "per_second": per_second}
    return _made("bucket", decide, lambda request, seconds: seconds > 0, keep, settings)


def budget(cap: int, *, keep: Span = KEEP_SECONDS) -> Decider:
    """Budgets that are reserved before they are spent: `reserve`, `settle`, `release`, `raise_cap` make the requests.

    The spent and the reserved amounts together never exceed the cap. A hold that is not settled expires after its ttl.
    An answer is a dict with "ok", and with "free", the rest of the cap; the answer to a settled hold also has
    "charged". The state is a dict with "cap", "spent", "holds" and "at", the latest time.

    Args:
        cap: the cap of a new key, in any unit; an int.
        keep: as for `Decider`.

    Raises:
        InvalidConfiguration: the cap is no int of at least 0.
    """
    _check_ints("0 <= cap", 0, cap)

    def decide(key: Any, state: dict[str, Any] | None, request: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        stored = state or {"cap": cap, "spent": 0, "holds": {}, "at": 0.0}
        now = max(_number(_fields(request).get("at")), stored["at"])
        holds = {name: hold for name, hold in stored["holds"].items() if hold[1] > now}
        book = {"cap": stored["cap"], "spent": stored["spent"], "holds": holds, "at": now}
        result = _book(book, request, now)
        return book, result | {"free": _free(book)}

    return _made("budget", decide, lambda request, answer: not answer["ok"], keep, {"cap": cap})


def _made(
    kind: str, decide: Decide, refused: Callable[[Any, Any], bool], keep: Span, settings: Mapping[str, Any]
) -> Decider:
    """The decider of a kind; `settings` are the arguments with which `built_in_decider` makes it again."""
    return Decider(kind, _VERSION, decide, keep=keep, refused=refused, settings={KIND: kind, **settings})


# Requests


def claim(owner: str | int) -> dict[str, Any]:
    """A request that makes `owner` the owner of a name, if it has none."""
    return {"claim": owner}


def release_name(owner: str | int) -> dict[str, Any]:
    """A request that takes the name from `owner`, if it has it."""
    return {"release": owner}


def take(tokens: float = 1) -> dict[str, Any]:
    """A request for `tokens` of a bucket, now."""
    return {"take": tokens, "at": runtime.time()}


def reserve(amount: int, hold: str, *, ttl: Span) -> dict[str, Any]:
    """A request that reserves an `amount` of a budget under the name of a `hold`, for the time `ttl` from now."""
    return {"reserve": amount, "hold": hold, "ttl": span_of(ttl), "at": runtime.time()}


def settle(hold: str, actual: int) -> dict[str, Any]:
    """A request that ends a `hold` and charges the `actual` amount, at most that of the hold and what is free."""
    return {"settle": hold, "actual": actual, "at": runtime.time()}


def release(hold: str) -> dict[str, Any]:
    """A request that ends a `hold` without a charge."""
    return {"release": hold, "at": runtime.time()}


def raise_cap(by: int) -> dict[str, Any]:
    """A request that raises the cap `by` a number; a negative one lowers it, at most to what is spent and reserved."""
    return {"raise_cap": by, "at": runtime.time()}


def with_time(kind: str, request: Any) -> Any:
    """A request that was written by hand, with the present time if a decider of this kind needs one."""
    if kind in ("bucket", "budget") and isinstance(request, dict):
        return {"at": runtime.time(), **request}
    return request


# Budgets


def _free(book: Mapping[str, Any]) -> int:
    return int(book["cap"] - book["spent"] - sum(amount for amount, _ in book["holds"].values()))


def _book(book: dict[str, Any], request: dict[str, Any], now: float) -> dict[str, Any]:
    """Change the new state by a request; returns the answer."""
    holds = book["holds"]
    match request:
        case {"reserve": amount, "hold": str(hold), "ttl": ttl}:
            if hold in holds:
                return {"ok": holds[hold][0] == amount}
            if _number(ttl) <= 0:
                raise InvalidData(f"expected a hold for more than 0 s, got: {brief(ttl)}")
            is_free = 0 < _int(amount) <= _free(book)
            if is_free:
                holds[hold] = [amount, now + ttl]
            return {"ok": is_free}
        case {"settle": str(hold), "actual": actual}:
            if hold not in holds or _int(actual) < 0:
                return {"ok": False, "charged": 0}
            del holds[hold]
            charged = min(actual, _free(book))
            book["spent"] += charged
            return {"ok": charged == actual, "charged": charged}
        case {"release": str(hold)}:
            return {"ok": holds.pop(hold, None) is not None}
        case {"raise_cap": by}:
            wanted = book["cap"] + _int(by)
            book["cap"] = max(wanted, book["cap"] - _free(book))
            return {"ok": book["cap"] == wanted}
    raise _unknown(request)


DECIDERS: Final[Mapping[str, tuple[Callable[..., Decider], Sequence[str]]]] = {
    "bounded": (bounded, ("int", "any")),
    "unique": (unique, ("any", "str", "int")),
    "bucket": (bucket, ("list", "any")),
    "budget": (budget, ("dict", "any")),
}
"""{kind: its function, and the value types of queues that can have it, the one of a new queue first}."""


def built_in_decider(settings: Mapping[str, Any], version: int, keep: int) -> Decider | None:
    """The built-in decider of stored settings; None if this version of cq has none of this kind and version."""
    kind = str(settings.get(KIND, ""))
    given = {what: value for what, value in settings.items() if what != KIND}
    return DECIDERS[kind][0](**given, keep=keep) if kind in DECIDERS and version == _VERSION else None


def resolve_decider(given: object) -> Decider:
    """The given decider, or that of a text such as "bounded:0:100:start=100"; raises `InvalidConfiguration`.

    Its arguments follow the name: first those in their order, then the others by their names, as JSON.
    """
    if isinstance(given, Decider):
        return given
    if not isinstance(given, str):
        raise InvalidConfiguration(
            f'expected a decider such as `cq.Decider("stock", 1, decide)`, got: {brief(given)}'
        )
    kind, *words = given.split(":")
    try:
        positional = [json.loads(each) for each in words if "=" not in each]
        named = {
            name: json.loads(value)
            for name, _, value in (each.partition("=") for each in words if "=" in each)
        }
        return DECIDERS[kind][0](*positional, **named)
    except InvalidConfiguration:
        raise
    except (KeyError, TypeError, ValueError, RecursionError):
        raise InvalidConfiguration(
            "expected a decider such as bounded:0:100, bounded:0:100:start=100:clamp=true, unique, bucket:10:2, "
            f"budget:1000 or budget:1000:keep=60, got: {brief(given)}"
        ) from None


def _check_ints(wanted: str, *numbers: int) -> None:
    """Raise `InvalidConfiguration` unless these are ints in ascending order."""
    if not all(type(each) is int for each in numbers) or [*numbers] != sorted(numbers):
        raise InvalidConfiguration(f"expected ints with {wanted}, got: {', '.join(map(brief, numbers))}")


def _fields(request: Any) -> dict[str, Any]:
    if not isinstance(request, dict):
        raise _unknown(request)
    return request


def _int(number: Any) -> int:
    if type(number) is not int:
        raise InvalidData(f"expected an int, got: {brief(number)}")
    return number


def _is_number(number: Any) -> bool:
    return type(number) in (int, float) and abs(number) < 1e15


def _number(number: Any) -> float:
    if not _is_number(number):
        raise InvalidData(f"expected a number, got: {brief(number)}")
    return number  # type: ignore[no-any-return]


def _unknown(request: object) -> InvalidData:
    return InvalidData(f"expected a request that a function of cq.deciders makes, got: {brief(request)}")


# Without answers


def clamped(lo: int, hi: int) -> Combiner:
    """A combiner of ints that are added one after the other, where each sum stays within bounds.

    For a queue with the value type `"any"`. Its values are not sums but lists, of what all updates together do to any
    number, as this is what can be combined: `clamped_value` applies them to the number before the first update.

    Args:
        lo: the least sum.
        hi: the greatest sum.

    Raises:
        InvalidConfiguration: the bounds are no ints, or in the wrong order.
    """
    _check_ints("lo <= hi", lo, hi)

    def combine(key: Any, values: Sequence[Any]) -> list[int]:
        steps = [value if isinstance(value, list) else [_int(value), lo, hi] for value in values]
        added, least, most = steps[0]
        for more, low, high in steps[1:]:
            added, least, most = added + more, *(min(max(each + more, low), high) for each in (least, most))
        return [added, least, most]

    return Combiner(f"clamped {lo} {hi}", 1, combine)


def clamped_value(value: list[int] | None, start: int = 0) -> int:
    """The sum of a key with this `value` in a queue with the combiner `clamped`; `start` is that of a new key."""
    if value is None:
        return start
    added, least, most = value
    return min(max(start + added, least), most)
