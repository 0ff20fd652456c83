"""A queue's configuration: its shape, how it is stored, and how every process knows it without a round trip.

The shape lies in one key for each queue. Every process caches it, per database, under the value of
`\\xff/metadataVersion`, which comes with a transaction's read version and so costs nothing to read. Whoever changes a
shape sets that key; an add reads it for real, so no add commits under an outdated shape. Other layers may set the
key too: then the configuration is read again, no more.

Pauses lie in a key of their own, the flags, which only workers read: a change of them disturbs no add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from cq import codec, keys
from cq.changes import Observer, ObserverFunction, ObserverSpec
from cq.codec import KeyType, ValueType
from cq.combiners import Combiner, resolve
from cq.errors import (
    CodeMismatch,
    ConfigurationConflict,
    CorruptData,
    InvalidConfiguration,
    QueueNotConfigured,
)
from cq.keys import QueueKeys
from cq.store.api import METADATA_VERSION, Database, Transaction, TransactionRead
from cq.store.transact import transact

FORMAT: Final = 1
"""The version of the key layout and of what is stored; a higher one is refused."""
MAX_BUCKETS: Final = 4096
DEFAULT_BUCKETS: Final = 16
_SHAPE: Final = ("key", "value", "combiner", "buckets")


@dataclass(frozen=True, slots=True)
class Named:
    """Name and version of a piece of code, as the configuration holds them."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class ObserverConfig:
    """An observer, as the configuration holds it.

    Attributes:
        name, version, settings: as in `ObserverSpec`.
        generation: of its data; no two observers that a queue has ever had share one.
    """

    name: str
    version: int
    settings: dict[str, Any]
    generation: int

    def __str__(self) -> str:
        settings = ", ".join(f"{what}={value!r}" for what, value in sorted(self.settings.items()))
        return f"{self.name}@{self.version}" + (f"({settings})" if settings else "")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The shape of a queue, as stored.

    Attributes:
        name: the queue's name.
        key, value: the declared types of its keys, and of its updates and values.
        combiner: name and version of its combiner.
        observers: its change observers, in the order in which they are told.
        buckets: the number of buckets over which its keys are spread.
        generation: counts the changes of `buckets`, from 1.
        observer_generations: how many generations of observers there have been.
        takes_delete: whether `DELETE` is an update of the queue.
    """

    name: str
    key: KeyType
    value: ValueType
    combiner: Named
    observers: tuple[ObserverConfig, ...]
    buckets: int
    generation: int = 1
    observer_generations: int = 0
    takes_delete: bool = False

    def to_bytes(self) -> bytes:
        """As stored under the queue's `config` key."""
        return codec.encode(
            {
                "format": FORMAT,
                "key": str(self.key),
                "value": str(self.value),
                "combiner": [self.combiner.name, self.combiner.version],
                "observers": [
                    [each.name, each.version, each.settings, each.generation] for each in self.observers
                ],
                "buckets": self.buckets,
                "generation": self.generation,
                "observer_generations": self.observer_generations,
                "takes_delete": self.takes_delete,
            }
        )

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> QueueConfig:
        """The inverse of `to_bytes`; raises `CodeMismatch` for a newer format and `CorruptData`."""
        stored = codec.decode(data)
        if isinstance(stored, dict) and isinstance(stored.get("format"), int) and stored["format"] > FORMAT:
            raise CodeMismatch(
                f"queue {name!r} was configured by a newer version of cq (format {stored['format']}, "
                f"this version knows {FORMAT}): upgrade cq"
            )
        try:
            return cls(
                name,
                KeyType.parse(stored["key"]),
                ValueType.parse(stored["value"]),
                Named(*stored["combiner"]),
                tuple(ObserverConfig(*observer) for observer in stored["observers"]),
                stored["buckets"],
                stored["generation"],
                stored["observer_generations"],
                stored["takes_delete"],
            )
        except (KeyError, TypeError, InvalidConfiguration) as error:
            raise CorruptData(
                f"the configuration of queue {name!r} is not one that cq wrote: {error!r}"
            ) from error

    def settings(self) -> dict[str, object]:
        """What a user sets, as the CLI shows it."""
        return {
            "key": str(self.key),
            "value": str(self.value),
            "combiner": str(self.combiner),
            "buckets": self.buckets,
            "observers": [str(observer) for observer in self.observers],
        }


@dataclass(frozen=True, slots=True)
class Flags:
    """What operators and workers tell the workers of a queue."""

    paused: bool = False
    reason: str = ""


def configure(
    db: Database,
    name: str,
    *,
    key: object = str,
    value: object = int,
    combiner: str | Combiner = "sum",
    buckets: int = DEFAULT_BUCKETS,
    observers: Sequence[Observer | ObserverSpec | ObserverFunction] | None = None,
) -> QueueConfig:
    """Store a queue's configuration; the same settings again change nothing.

    Observers can be changed at any time, also on a queue that holds values: those that are new or of a new version are
    first told of all values there are, by the passes that go on meanwhile.

    Args:
        db: a database of either store.
        name: 1 to 100 letters, digits, `_`, `.` or `-`.
        key: `str`, `int`, `bytes`, or a tuple of these such as `(str, int)`; names of types do as well.
        value: the type of updates and values: `int`, `float`, `Decimal`, `str`, `bytes`, `bool`, `list`, `dict`, `set`,
            `datetime` or `"any"`.
        combiner: the name of a built-in combiner, or one of your own.
        buckets: 1 to 4,096; as many passes can run at once. Small transactions want few: an add writes one row and one
            notification for each bucket that its keys touch.
        observers: told of every change, in this order, in the transaction that makes it; None for those stored.

    Raises:
        InvalidConfiguration: a setting is not one that cq knows.
        ConfigurationConflict: the queue has other settings; nothing is changed.
    """
    code = resolve(combiner)
    shape = QueueConfig(
        keys.check_name(name),
        KeyType.parse(key),
        ValueType.parse(value),
        Named(code.name, code.version),
        (),
        buckets,
        takes_delete=code.takes_delete,
    )
    _check(shape, code)
    specs = None if observers is None else _specs(observers)
    return transact(db, lambda tr: _configure(tr, shape, specs))


def rebuild_observer(db: Database, name: str, observer: str) -> QueueConfig:
    """Give an observer a new generation of its data, made from all values by the passes.

    Raises `QueueNotConfigured`, and `InvalidConfiguration` when the queue has no such observer.
    """

    def rebuild(tr: Transaction) -> QueueConfig:
        current = read_config(tr, name)
        if observer not in (each.name for each in current.observers):
            raise InvalidConfiguration(f"queue {name!r} has no observer {observer!r}")
        specs = [ObserverSpec(each.name, each.version, each.settings) for each in current.observers]
        kept = tuple(each for each in current.observers if each.name != observer)
        return _change_observers(tr, replace(current, observers=kept), specs)

    return transact(db, rebuild)


def _check(config: QueueConfig, combiner: Combiner) -> None:
    if type(config.buckets) is not int or not 1 <= config.buckets <= MAX_BUCKETS:
        raise InvalidConfiguration(f"expected buckets to be 1 to {MAX_BUCKETS:,}, got: {config.buckets!r}")
    if combiner.value_types and config.value.name not in combiner.value_types:
        raise InvalidConfiguration(
            f"expected a value type of {', '.join(combiner.value_types)} for the combiner "
            f"{combiner.name!r}, got: {config.value}"
        )


def _specs(observers: Sequence[object]) -> list[ObserverSpec]:
    specs = []
    for each in observers:
        if isinstance(each, ObserverSpec):
            specs.append(each)
        else:
            observer = Observer.of(each)
            specs.append(ObserverSpec(observer.name, observer.version))
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise InvalidConfiguration(f"expected observers of different names, got: {', '.join(names)}")
    return specs


def _configure(tr: Transaction, shape: QueueConfig, specs: list[ObserverSpec] | None) -> QueueConfig:
    """Store a new queue, or the observers of one that there is."""
    name = shape.name
    stored = tr.get(QueueKeys(name).config).value
    if stored is None:
        tr.set(keys.queue_entry(name), b"")
        created = _with_observers(shape, specs or [])
        for observer in created.observers:  # there are no values yet: nothing to tell them first
            tr.set(QueueKeys(name).observer_current(observer.name), codec.encode(observer.generation))
        _write(tr, created)
        return created
    current = QueueConfig.from_bytes(name, stored)
    before, after = current.settings(), shape.settings()
    differences = {what: (before[what], after[what]) for what in _SHAPE if before[what] != after[what]}
    if differences:
        raise ConfigurationConflict(name, differences)
    return current if specs is None else _change_observers(tr, current, specs)


def _change_observers(tr: Transaction, current: QueueConfig, specs: list[ObserverSpec]) -> QueueConfig:
    """Store other observers, and have every bucket looked at by a pass if some must be told of all values."""
    changed = _with_observers(current, specs)
    if changed == current:
        return current
    queue = QueueKeys(current.name)
    names = {observer.name for observer in changed.observers}
    for observer in current.observers:
        if observer.name not in names:
            tr.clear(queue.observer_current(observer.name))
            data = queue.observer_data(observer.generation)
            tr.clear_range(data, keys.prefix_end(data))
    for bucket in range(current.buckets):
        tr.set_versionstamped_value(
            queue.notification(current.generation, bucket), keys.INCOMPLETE_VERSIONSTAMP
        )
    _write(tr, changed)
    return changed


def _with_observers(current: QueueConfig, specs: list[ObserverSpec]) -> QueueConfig:
    """The configuration with these observers; those that were there as they are keep their generation."""
    generations = current.observer_generations
    observers = []
    for spec in specs:
        same = [
            each
            for each in current.observers
            if (each.name, each.version, each.settings) == (spec.name, spec.version, dict(spec.settings))
        ]
        if not same:
            generations += 1
        observers += same or [ObserverConfig(spec.name, spec.version, dict(spec.settings), generations)]
    return replace(current, observers=tuple(observers), observer_generations=generations)


def _write(tr: Transaction, config: QueueConfig) -> None:
    tr.set(QueueKeys(config.name).config, config.to_bytes())
    tr.set_versionstamped_value(METADATA_VERSION, keys.INCOMPLETE_VERSIONSTAMP)
    tr.set_versionstamped_value(keys.CHANGED, keys.INCOMPLETE_VERSIONSTAMP)


class _Cache:
    """The configurations that one database's transactions have read, under one metadata version."""

    __slots__ = ("configs", "version")

    def __init__(self, version: bytes | None) -> None:
        self.version = version
        self.configs: dict[str, QueueConfig] = {}


_caches: WeakKeyDictionary[Any, _Cache] = WeakKeyDictionary()


def read_config(tr: TransactionRead, name: str) -> QueueConfig:
    """The queue's configuration at the transaction's read version.

    Costs no round trip while no shape has changed. Through a transaction it adds a read conflict on the metadata
    version, so that the transaction fails when a shape changes under it; through `tr.snapshot` it adds none. Raises
    `QueueNotConfigured`.
    """
    version = tr.get(METADATA_VERSION).value
    cache = _caches.get(tr.db)
    if cache is None or cache.version != version:
        cache = _caches[tr.db] = _Cache(version)
    config = cache.configs.get(name)
    if config is None:
        stored = tr.get(QueueKeys(name).config).value
        if stored is None:
            raise QueueNotConfigured(name)
        config = cache.configs[name] = QueueConfig.from_bytes(name, stored)
    return config


def queue_names(tr: TransactionRead) -> list[str]:
    """The names of all configured queues, sorted."""
    return [keys.queue_of_entry(row.key) for row in tr.get_range(keys.QUEUES, keys.prefix_end(keys.QUEUES))]


def read_flags(tr: TransactionRead, name: str) -> Flags:
    """Whether the queue is paused, and why."""
    stored = tr.get(QueueKeys(name).flags).value
    if stored is None:
        return Flags()
    flags = codec.decode(stored)
    return Flags(bool(flags["paused"]), str(flags["reason"]))


def pause(db: Database, name: str, reason: str = "by hand") -> None:
    """Keep workers from combining the queue until it is resumed; adds and reads go on as before."""
    flags = codec.encode({"paused": True, "reason": reason})
    transact(db, lambda tr: _set_flags(tr, name, flags))


def resume(db: Database, name: str) -> None:
    """Undo a pause; workers notice at once."""
    transact(db, lambda tr: _set_flags(tr, name, None))


def _set_flags(tr: Transaction, name: str, flags: bytes | None) -> None:
    read_config(tr, name)  # raises unless there is such a queue
    if flags is None:
        tr.clear(QueueKeys(name).flags)
    else:
        tr.set(QueueKeys(name).flags, flags)
    tr.set_versionstamped_value(keys.CHANGED, keys.INCOMPLETE_VERSIONSTAMP)
