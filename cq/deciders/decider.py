"""Deciders: functions that answer the requests of a queue, and the decisions that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cq.durations import Span, seconds_of
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.observer import check_functions, check_named

Decide = Callable[[Any, Any, Any], tuple[Any, Any]]
"""`decide(key, state, request)` returns the new state and the answer."""

KEEP_SECONDS: Final = 3600
"""How long answers can be read."""
MAX_KEEP_SECONDS: Final = 24 * 3600
KIND: Final = "kind"
"""The setting with the kind of a decider of `cq.deciders`."""


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
            were withdrawn.
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

    @property
    def keep_seconds(self) -> int:
        """`keep` in whole seconds; raises `InvalidConfiguration`."""
        return seconds_of(self.keep)


def check_decider(given: object) -> Decider:
    """The decider itself; raises `InvalidConfiguration` if it cannot be stored."""
    if not isinstance(given, Decider):
        raise InvalidConfiguration(
            f'expected a decider such as `cq.Decider("stock", 1, decide)`, got: {brief(given)}'
        )
    check_named("decider", given.name, given.version)
    if given.keep_seconds > MAX_KEEP_SECONDS:
        raise InvalidConfiguration(
            f"expected answers to be kept for 1 to {MAX_KEEP_SECONDS:,} whole seconds, got: {brief(given.keep)}"
        )
    return given
