"""What a pass tells change observers, and what a change observer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration

_LONGEST_NAME: Final = 200

ObserverFunction = Callable[[Any, list["Change"]], object]
"""Called as `function(tr, changes)` in the pass's transaction."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a pass tells observers of one key.

    Attributes:
        key: the key.
        old: the value that the observer last received, None when there was none.
        new: the value now, None when the key is deleted. Never equal to `old`.
        complete: whether `new` derives from all updates committed before the reporting transaction started. False only
            for a bucket in overload, or of a shape that is being drained, which report from a prefix of the commit
            order; and for first reports and purges of keys of which later updates may be queued.
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
    function: ObserverFunction

    @classmethod
    def of(cls, observer: object) -> Observer:
        """Itself, or an observer of version 1 named as the callable is; raises `InvalidConfiguration`."""
        if isinstance(observer, Observer):
            return observer
        name = getattr(observer, "__name__", None)
        if not callable(observer) or name is None or name == "<lambda>":
            raise InvalidConfiguration(
                f"expected an observer to be a named function or a cq.Observer, got: {brief(observer)}"
            )
        return cls(name, 1, observer)


def check_named(what: str, name: object, version: object) -> None:
    """Raises `InvalidConfiguration` unless a combiner or an observer can be called so."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise InvalidConfiguration(
            f"expected the name of {what} to be 1 to {_LONGEST_NAME} printable characters, got: {brief(name)}"
        )
    if type(version) is not int or not 0 <= version < 1 << 63:
        raise InvalidConfiguration(
            f"expected the version of {what} {name!r} to be an int, got: {brief(version)}"
        )


@dataclass(frozen=True, slots=True)
class ObserverSpec:
    """An observer that is made from settings, which are stored with the queue: the built-in kinds are.

    Each enabling, and each change of version or settings, makes a new generation of the observer's data, which is
    backfilled with all values before readers are switched to it.

    Args:
        name: of the kind, and of the observer: a queue has one of each kind.
        version: to be raised with every change of what `factory` makes, its functions included.
        settings: stored in CBOR; no secrets.
        factory: `factory(config, settings, generation)` makes the function; None for a built-in kind.
    """

    name: str
    version: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[[Any, Mapping[str, Any], int], ObserverFunction] | None = None


def check_spec(spec: ObserverSpec) -> ObserverSpec:
    """The spec itself; raises `InvalidConfiguration` unless it can be stored."""
    check_named("observer", spec.name, spec.version)
    if not isinstance(spec.settings, Mapping) or not all(type(what) is str for what in spec.settings):
        raise InvalidConfiguration(
            f"expected the settings of observer {spec.name!r} to be a dict with keys of str, "
            f"got: {brief(spec.settings)}"
        )
    return spec
