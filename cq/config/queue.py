"""A queue's configuration: its shape, how it is stored, and how every process knows it without a round trip.

The shape lies in one key for each queue, and every process caches it, see `cq.config.cache`: an add knows it without a
round trip, and does not commit under an outdated one.

Pauses lie in a key of their own, the flags, which only workers read: a change of them disturbs no add.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from cq import keys
from cq.config.cache import ConfigCache, invalidate_configs
from cq.config.features import check_features, stored_features
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.encoding.codec import KeyType, ValueType
from cq.errors import (
    CorruptData,
    NotNow,
    QueueNotConfigured,
)
from cq.keys import QueueKeys
from cq.store.api import Transaction, TransactionRead

DEFAULT_PRIORITY: Final = 10
MAX_PRIORITY: Final = 100
MAX_BUCKETS: Final = 4096
DEFAULT_BUCKETS: Final = 8
"""Of a new queue on a cluster."""
LOCAL_BUCKETS: Final = 1
"""Of a new queue in an embedded store, where passes of a worker come one after the other."""
MAX_GENERATIONS: Final = (1 << 32) - 2
"""What a key has room for, with the next one behind it."""


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
        is_built_in: whether it needs no code of the application.
    """

    name: str
    version: int
    settings: dict[str, Any]
    generation: int
    is_built_in: bool = False

    def __str__(self) -> str:
        settings = ", ".join(f"{what}={codec.brief(value)}" for what, value in sorted(self.settings.items()))
        return f"{self.name}@{self.version}" + (f"({settings})" if settings else "")


class Shape(NamedTuple):
    """Over how many buckets a queue is spread, and the generation of that."""

    generation: int
    buckets: int


class Audit(NamedTuple):
    """An audit of a queue, see `cq.queue.ledger`.

    `generation` counts how often it has begun anew, `buckets` is into how many the range of hashes is cut for it, and
    `whole` says that all that the queue holds was added under it.
    """

    generation: int
    buckets: int
    whole: bool


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
        former: the shape before, while what was added under it is being drained; else None.
        backfilled_until: observers of generations up to this one had been told of all values when the shape began.
        limited: whether there are limits of what may wait, so that adds are to look whether it is full.
        audit: None when the queue has none.
        audits: how many generations of the audit there have been.
        purges: how often the queue has been purged, the latest time in the shape of `purge_generation`.
        window: the window over it, None when it has none.
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
    former: Shape | None = None
    backfilled_until: int = 0
    limited: bool = False
    audit: Audit | None = None
    audits: int = 0
    purges: int = 0
    purge_generation: int = 0
    window: WindowSpec | None = None

    def under_former_shape(self) -> QueueConfig | None:
        """The configuration by which passes drain the shape before; None when there is nothing to drain."""
        if self.former is None:
            return None
        return replace(self, generation=self.former.generation, buckets=self.former.buckets, former=None)

    def has_bucket(self, generation: int, number: int) -> bool:
        """Whether there is such a bucket, now or in the shape before while that is being drained."""
        shapes = (Shape(self.generation, self.buckets), self.former)
        return any(shape and shape.generation == generation and number < shape.buckets for shape in shapes)

    @property
    def features(self) -> list[str]:
        """The features that a process must have to work with the queue, see `cq.config.features`."""
        needed = {"audit": self.audit is not None, "window": self.window is not None}
        return [feature for feature, is_needed in needed.items() if is_needed]

    def to_bytes(self) -> bytes:
        """As stored under the queue's `config` key; raises `InvalidData` for settings that cannot be."""
        return codec.encode_value(
            {
                **stored_features(self.features),
                "key": str(self.key),
                "value": str(self.value),
                "combiner": [self.combiner.name, self.combiner.version],
                "observers": [
                    [each.name, each.version, each.settings, each.generation, each.is_built_in]
                    for each in self.observers
                ],
                "buckets": self.buckets,
                "generation": self.generation,
                "observer_generations": self.observer_generations,
                "takes_delete": self.takes_delete,
                "former": self.former,
                "told_before": self.backfilled_until,
                "purges": [self.purges, self.purge_generation],
                "limited": self.limited,
                "audit": self.audit,
                "audits": self.audits,
                "window": self.window,
            }
        )

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> QueueConfig:
        """The inverse of `to_bytes`; raises `CodeMismatch` for what this version cannot use, and `CorruptData`."""
        stored = codec.decode(data)
        check_features(name, stored)
        try:
            return _from_stored(name, stored)
        except (KeyError, TypeError, ValueError) as error:
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
            "audit": self.audit is not None,
            "window": None if self.window is None else str(self.window),
        }


def _from_stored(name: str, stored: Any) -> QueueConfig:
    """The configuration that was stored; raises `KeyError`, `TypeError` or `ValueError` when it was not by cq."""
    purges, purge_generation = stored["purges"]
    former, audit, window = stored["former"], stored["audit"], stored.get("window")
    config = QueueConfig(
        name,
        KeyType.parse(stored["key"]),
        ValueType.parse(stored["value"]),
        Named(*stored["combiner"]),
        tuple(ObserverConfig(*observer) for observer in stored["observers"]),
        stored["buckets"],
        stored["generation"],
        stored["observer_generations"],
        stored["takes_delete"],
        None if former is None else Shape(*former),
        stored["told_before"],
        stored["limited"],
        None if audit is None else Audit(*audit),
        stored["audits"],
        purges,
        purge_generation,
        None if window is None else WindowSpec(*window).checked(),
    )
    shapes = [(config.generation, config.buckets), *([config.former] if config.former else [])]
    shapes += [(config.audit.generation, config.audit.buckets)] if config.audit else []
    numbers = [config.observer_generations, config.backfilled_until, config.purges, config.purge_generation]
    numbers.append(config.audits)
    numbers += [observer.generation for observer in config.observers] + [
        generation for generation, _ in shapes
    ]
    named: list[Named | ObserverConfig] = [config.combiner, *config.observers]
    if not (
        all(type(number) is int and 0 <= number <= MAX_GENERATIONS for number in numbers)
        and all(type(buckets) is int and 0 < buckets <= MAX_BUCKETS for _, buckets in shapes)
        and all(
            type(each.name) is str and type(each.version) is int and abs(each.version) < 1 << 63
            for each in named
        )
        and all(type(each.settings) is dict and type(each.is_built_in) is bool for each in config.observers)
        and all(type(what) is str for each in config.observers for what in each.settings)
        and type(config.takes_delete) is type(config.limited) is bool
        and (config.audit is None or type(config.audit.whole) is bool)
    ):
        raise ValueError("a part of it is of another type or size")
    return config


@dataclass(frozen=True, slots=True)
class Flags:
    """What operators and workers tell the workers of a queue; changing it disturbs no add.

    Attributes:
        paused, reason: whether workers leave the queue alone, and why.
        until: when a pause ends by itself, in seconds since 1970; None for not at all.
        max_seconds, max_bytes, when_full: the limits of what may wait, see `cq.limit`.
        priority: the queue's share of the workers' time, as compared with other queues that have work; 1 to 100.
    """

    paused: bool = False
    reason: str = ""
    until: float | None = None
    priority: int = DEFAULT_PRIORITY
    max_seconds: float | None = None
    max_bytes: int | None = None
    when_full: str = "raise"

    def is_paused(self, now: float) -> bool:
        """Whether workers are to leave the queue alone at this time, in seconds since 1970."""
        return self.paused and (self.until is None or now < self.until)

    @property
    def is_limited(self) -> bool:
        """Whether there are limits of what may wait."""
        return self.max_seconds is not None or self.max_bytes is not None

    def to_bytes(self) -> bytes:
        """As stored under the queue's `flags` key."""
        return codec.encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Flags:
        """The inverse; None is a queue of which nobody has said anything. Raises `CorruptData`."""
        if data is None:
            return cls()
        stored = codec.decode(data)
        if (
            type(stored) is not dict
            or not all(what in _FLAGS and _is_flag(what, value) for what, value in stored.items())
            or not 1 <= stored.get("priority", DEFAULT_PRIORITY) <= MAX_PRIORITY
        ):
            raise CorruptData(f"the flags of a queue are not such as cq writes: {data[:40]!r}")
        return cls(**stored)


def _is_flag(what: str, value: object) -> bool:
    kinds = _FLAGS[what]
    return type(value) in kinds or (type(value) is int and float in kinds and abs(value) < 1 << 63)


_FLAGS: Final = {what: get_args(kind) or (kind,) for what, kind in get_type_hints(Flags).items()}


def read_config(tr: TransactionRead, name: str) -> QueueConfig:
    """The queue's configuration at the transaction's read version.

    Costs no round trip while no configuration in the store has changed. Through a transaction it adds a read conflict
    on the queue's `config` key, so that the transaction fails when this queue's configuration changes before the
    commit; through `tr.snapshot` it adds none. Raises `QueueNotConfigured`.
    """
    return _known.get(tr, name)


def _parse(name: str, stored: bytes | None) -> QueueConfig:
    if stored is None:
        raise QueueNotConfigured(name)
    return QueueConfig.from_bytes(name, stored)


_known: Final = ConfigCache(lambda name: QueueKeys(name).config, _parse)


def write_config(tr: Transaction, config: QueueConfig) -> None:
    """Store a configuration, so that no add commits under the one before, and workers read the new one."""
    tr.set(QueueKeys(config.name).config, config.to_bytes())
    invalidate_configs(tr)


def queue_names(tr: TransactionRead) -> list[str]:
    """The names of all configured queues, sorted; entries that no queue can have are left out."""
    entries = tr.get_range(keys.QUEUES, keys.prefix_end(keys.QUEUES))
    return [name for row in entries if (name := keys.queue_of_entry(row.key)) is not None]


def read_flags(tr: TransactionRead, name: str) -> Flags:
    """Whether the queue is paused and why, and its priority."""
    return Flags.from_bytes(tr.get(QueueKeys(name).flags).value)


def refuse_while_rebucketing(config: QueueConfig) -> None:
    """Raises `NotNow` while a shape before is being drained."""
    if config.former is not None:
        raise NotNow(
            f"queue {config.name!r} is still being rebucketed from {config.former.buckets:,} to {config.buckets:,} "
            "buckets: run workers, and this again later"
        )


def notify_all(tr: Transaction, config: QueueConfig) -> None:
    """Have every bucket looked at by a pass."""
    queue = QueueKeys(config.name)
    for bucket in range(config.buckets):
        key = queue.notification(config.generation, bucket)
        tr.set_versionstamped_value(key, keys.INCOMPLETE_VERSIONSTAMP)


def change_flags(tr: Transaction, name: str, **changes: Any) -> None:
    """Change some of a queue's flags, and have workers look at them. Raises `QueueNotConfigured`."""
    read_config(tr, name)
    before = read_flags(tr, name)
    after = replace(before, **changes)
    if after != before:
        tr.set(QueueKeys(name).flags, after.to_bytes())
        tr.set_versionstamped_value(keys.CHANGED, keys.INCOMPLETE_VERSIONSTAMP)
