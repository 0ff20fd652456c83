"""Observers of a queue, and the changes that they receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.type_variables import K, V

UPDATES: Final = "updates"
PURGE: Final = "purge"
EXPIRY: Final = "expiry"
CONVERSION: Final = "conversion"
_LONGEST_NAME: Final = 200

ObserverFunction = Callable[[Any, list["Change"]], object]
"""The function of an observer: `function(tr, changes)`, called in the transaction of the pass."""


@dataclass(frozen=True, slots=True)
class Change(Generic[K, V]):
    """A change of the value of one key, as an observer receives it.

    Attributes:
        key: the key.
        old: the value that the observer last received; None if it had none.
        new: the new value; None if the key is deleted. Never equal to `old`.
        complete: whether `new` includes all updates committed before the reporting transaction started. It is False
            only in three cases: for a bucket in overload, and for a bucket of a former shape, which report a prefix of
            the commit order; and for backfills, purges and conversions of keys that may have later queued updates.
        cause: "updates"; or "purge" or "expiry" if a purge or the expiry of the queue has deleted the key; or
            "conversion" if a new version of the combiner has converted its value. Also "updates" for a value that is
            reported for the first time, or again.
    """

    key: K
    old: V | None
    new: V | None
    complete: bool = True
    cause: str = UPDATES


@dataclass(frozen=True, slots=True)
class Observer(Generic[K, V]):
    """A named and versioned function that passes call with their changes, in their own transaction.

    Args:
        name: its name in configurations.
        version: increment it with every change of what it writes.
        function: called as `function(tr, changes)` with a list of `Change`. Its writes through `tr` commit together
            with the reported values, or not at all. It is called again when the transaction is retried.
        clear: `clear(tr)` clears all that the observer has written, in any version, such as by `tr.clear_range(...)`
            or `cq.admin.purge(tr, "other queue")`. It is called in the transaction that adds the observer to a queue,
            raises its version or rebuilds it: after the last report of the former version, before the first one of the
            new version, and together with the new configuration or not at all.
    """

    name: str
    version: int
    function: Callable[[Any, list[Change[K, V]]], object]
    clear: Callable[[Any], object] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_functions(self, "function", "clear")

    @classmethod
    def of(cls, observer: object) -> Observer:
        """The given observer, or a named function as an observer of version 1; raises `InvalidConfiguration`."""
        if isinstance(observer, Observer):
            return observer
        name = getattr(observer, "__name__", None)
        if not callable(observer) or name is None or name == "<lambda>":
            raise InvalidConfiguration(
                "expected an observer to be a named function or a cq.Observer, and a link to be one that a function of "
                f"cq.links returns, got: {brief(observer)}"
            )
        if str(getattr(observer, "__module__", "")).startswith("cq.observers."):
            raise InvalidConfiguration(
                f"expected an observer, got the function that makes it: write `{name}(...)`"
            )
        return cls(name, 1, observer)


def observers_of(given: object) -> list[Observer | ObserverSpec]:
    """The observers of a list, in which named functions are of version 1; raises `InvalidConfiguration`."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidConfiguration(f"expected a list of observers or links, got: {brief(given)}")
    return [each if isinstance(each, ObserverSpec) else Observer.of(each) for each in given]


def kind_of(name: str) -> str:
    """The kind of a built-in observer of this name: the name up to the first colon."""
    return name.partition(":")[0]


def check_functions(given: Any, needed: str, *optional: str) -> None:
    """Raise `InvalidConfiguration` unless these attributes of an observer, a combiner or a decider are functions.

    The optional ones may be None.
    """
    for part in (needed, *optional):
        function = getattr(given, part)
        if not callable(function) and (part == needed or function is not None):
            what = f"{type(given).__name__} {brief(given.name)}"
            raise InvalidConfiguration(
                f"expected `{part}` of {what} to be a function, got: {brief(function)}"
            )


def check_named(what: str, name: object, version: object) -> None:
    """Raises `InvalidConfiguration` unless name and version are valid for a combiner or an observer."""
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
    """An observer whose function is created from settings, which are stored with the queue.

    Enabling it, and each change of its version or settings, begins a new generation of its data. Workers backfill the
    new generation with all values, and then switch readers to it.

    Args:
        name: name of the observer. A built-in one has the name of its kind, and links have `link:NAME`.
        version: increment it with every change of the result of `factory`, including the code of the functions.
        settings: stored in CBOR; must not contain secrets.
        factory: `factory(config, settings, generation)` returns the function; None for a built-in kind.
        check: `check(tr, config)` raises an error if the observer does not suit the queue. It is called with snapshot
            reads and the new configuration before this is stored, for whoever configures the queue.
        clear: as in `Observer`, for data that the generations share.
    """

    name: str
    version: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[[Any, Mapping[str, Any], int], ObserverFunction] | None = None
    check: Callable[[Any, Any], object] | None = field(default=None, compare=False)
    clear: Callable[[Any], object] | None = field(default=None, compare=False)


def check_spec(spec: ObserverSpec) -> ObserverSpec:
    """The spec itself; raises `InvalidConfiguration` if it cannot be stored."""
    check_named("observer", spec.name, spec.version)
    if not isinstance(spec.settings, Mapping) or not all(type(what) is str for what in spec.settings):
        raise InvalidConfiguration(
            f"expected the settings of observer {spec.name!r} to be a dict with keys of str, "
            f"got: {brief(spec.settings)}"
        )
    return spec
