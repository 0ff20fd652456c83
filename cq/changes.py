"""What a pass tells change observers, and what a change observer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cq.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class Change:
    """What a pass tells observers of one key.

    Attributes:
        key: the key.
        old: the value reported before, None when there was none.
        new: the value now, None when the key is deleted. Never equal to `old`.
        complete: whether `new` derives from all updates committed before the reporting transaction started; False
            only for a bucket in overload, which reports from a prefix of the commit order.
    """

    key: Any
    old: Any
    new: Any
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Observer:
    """A named and versioned callable that a pass tells of its changes, in the pass's own transaction.

    Args:
        name: what the queue's configuration calls it.
        version: to be raised with every change of what it writes.
        function: called as `function(tr, changes)` with a list of `Change`. What it writes through `tr` commits
            with the values reported, or not at all; it may be called again when a transaction is retried.
    """

    name: str
    version: int
    function: Callable[[Any, list[Change]], object]

    @classmethod
    def of(cls, observer: object) -> Observer:
        """Itself, or an observer of version 1 named as the callable is; raises `InvalidConfiguration`."""
        if isinstance(observer, Observer):
            return observer
        name = getattr(observer, "__name__", None)
        if not callable(observer) or name is None or name == "<lambda>":
            raise InvalidConfiguration(
                f"expected an observer to be a named function or a cq.Observer, got: {observer!r}"
            )
        return cls(name, 1, observer)
