"""A queue's configuration, and how it is stored.

It is one value. Every process caches it (see `ConfigCache`), so that adds need no round trip for it; an add under an
outdated configuration does not commit. `cq.config.flags` has the settings that adds do not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from cq import keys
from cq.config.decider import DeciderConfig
from cq.config.expiry import ExpirySpec
from cq.config.features import FORMAT, check_features
from cq.config.parts import Audit, Purges, Shape, generation, require
from cq.config.rollup import LevelOf, LevelPart, RollUp, RollUpLevel
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.encoding.codec import KeyType, ValueType
from cq.errors import CorruptData, CqError, InvalidConfiguration, NotNow, QueueNotConfigured, WritesUnreadable
from cq.keys import CHANGED, INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.observer import kind_of
from cq.plain_text import nearest
from cq.store.api import ACCESSED_UNREADABLE, METADATA_VERSION, Transaction, TransactionRead, error_code
from cq.store.mistakes import refuse_unless_transaction
from cq.store.own_writes import note_writes, recorded
from cq.store.reads import own_snapshot
from cq.store.version_chain import chained_version, metadata_version

T = TypeVar("T")

MAX_SUGGESTED: Final = 1_000
"""Number of names that the error for an unknown name compares with it."""
DEFAULT_BUCKETS: Final = 4
"""Buckets of a new queue on a cluster."""
LOCAL_BUCKETS: Final = 1
"""Buckets of a new queue in an embedded store, where a worker runs one pass after the other."""
DISTINCT: Final = "distinct"
"""Name of the built-in observer that counts keys into another queue, see `cq.observers.distinct`."""
SESSIONS: Final = "sessions"
"""Name of the built-in observer that counts intervals into another queue, see `cq.observers.sessions`."""
TOTALS: Final = "window_totals"
"""Name of the built-in observer that keeps the totals of a window, see `cq.observers.window_totals`."""
_SUBTRACTED: Final = frozenset((("sum", "int"), ("sum", "decimal"), ("counter", "dict")))
"""Combiner and value type of the queues whose updates can be subtracted from a total. Sums of float are not exact."""


@dataclass(frozen=True, slots=True)
class Named:
    """Name and version of a combiner or observer, as stored in a configuration."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @classmethod
    def from_stored(cls, name: Any, version: Any) -> Named:
        """The stored name and version."""
        require(type(name) is str and type(version) is int and abs(version) < 1 << 63)
        return cls(name, version)


@dataclass(frozen=True, slots=True)
class ObserverConfig:
    """An observer, as stored in a configuration.

    Attributes:
        name, version, settings: as in `ObserverSpec`.
        generation: the generation of its data, which no other observer of the queue has ever had.
        is_built_in: whether it needs no code of the application.
    """

    name: str
    version: int
    settings: dict[str, Any]
    generation: int
    is_built_in: bool = False

    @property
    def kind(self) -> str:
        """The kind of a built-in observer; a queue can have several links, and one of each other kind."""
        return kind_of(self.name)

    @property
    def keeps_totals(self) -> bool:
        """Whether it is the observer of a window's slices that keeps the window's totals.

        It adds differences to a sum, whatever the steps are, so it needs no reports of whole backlogs.
        """
        return self.is_built_in and self.name == TOTALS

    @property
    def counts_into(self) -> str | None:
        """The queue into which it counts each key that is reported as new; None for all other observers."""
        return self.settings.get("into") if self.is_built_in and self.name in (DISTINCT, SESSIONS) else None

    @property
    def named(self) -> Named:
        """Its name and version."""
        return Named(self.name, self.version)

    @classmethod
    def from_stored(cls, stored: Any) -> ObserverConfig:
        """The stored observer."""
        found = cls(*stored)
        Named.from_stored(found.name, found.version)
        generation(found.generation)
        require(type(found.settings) is dict and all(type(what) is str for what in found.settings))
        require(type(found.is_built_in) is bool)
        return found

    def __str__(self) -> str:
        settings = ", ".join(f"{what}={codec.brief(value)}" for what, value in sorted(self.settings.items()))
        return str(self.named) + (f"({settings})" if settings else "")


_NO_PURGES: Final = Purges()


class Conversion(NamedTuple):
    """A change of the version of a queue's combiner that is in progress.

    Attributes:
        name, version: the former combiner, which combines what is queued under the former shape.
        converts: whether passes of the new version convert the values first.
    """

    name: str
    version: int
    converts: bool

    @property
    def former(self) -> Named:
        """The former combiner."""
        return Named(self.name, self.version)

    @classmethod
    def from_stored(cls, stored: Any) -> Conversion | None:
        """The stored conversion; None: there is none."""
        if stored is None:
            return None
        found = cls(*stored)
        Named.from_stored(found.name, found.version)
        require(type(found.converts) is bool)
        return found


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The configuration of a queue, as stored.

    Attributes:
        name: the queue's name.
        key, value: the declared types of its keys, and of its updates and values.
        combiner: name and version of its combiner.
        observers: its observers, in the order in which passes call them.
        buckets: the number of its buckets.
        generation: the number of its shape, from 1. Each change of `buckets` increments it.
        observer_generations: the number of generations of observers so far.
        removed_observers: the sorted names of the application's observers that the queue had and has no more. What one
            of them has written is still there when it comes back.
        takes_delete: whether `DELETE` is a valid update.
        former: the former shape, until its rows are drained; None otherwise.
        backfilled_until: observers of generations up to this one had received all values when the shape began.
        limited: whether the queue has limits, so that adds must check whether it is full.
        audit: None if the queue has no audit.
        audits: the number of generations of the audit so far.
        purges: the number of its latest purge, and the shape at that purge.
        window: None if the queue has no window.
        expiry: None if its keys do not expire.
        rollup: None if the queue has no roll-up.
        level_of: None if the queue is not a part of another one: a level of its roll-up, or a part of its window.
        conversion: None unless the version of its combiner is being changed.
        decider: None if the queue takes updates; else it takes requests, which this decider decides.
    """

    name: str
    _: KW_ONLY
    key: KeyType
    value: ValueType
    combiner: Named
    observers: tuple[ObserverConfig, ...]
    buckets: int
    generation: int = 1
    observer_generations: int = 0
    removed_observers: tuple[str, ...] = ()
    takes_delete: bool = False
    former: Shape | None = None
    backfilled_until: int = 0
    limited: bool = False
    audit: Audit | None = None
    audits: int = 0
    purges: Purges = _NO_PURGES
    window: WindowSpec | None = None
    expiry: ExpirySpec | None = None
    rollup: RollUp | None = None
    level_of: LevelOf | None = None
    conversion: Conversion | None = None
    decider: DeciderConfig | None = None

    def under_former_shape(self) -> QueueConfig | None:
        """The configuration with which passes drain the former shape; None if there is no such shape."""
        if self.former is None:
            return None
        under = replace(self, generation=self.former.generation, buckets=self.former.buckets, former=None)
        return replace(under, combiner=self.conversion.former, conversion=None) if self.conversion else under

    @property
    def level_names(self) -> list[str]:
        """The names of the levels of its roll-up, the finest first, and of the parts of its window."""
        return [*self.fed, *([self.totals_name] if self.subtracts else [])]

    @property
    def names(self) -> list[str]:
        """Its own name, and those of its levels and of the parts of its window."""
        return [self.name, *self.level_names]

    def refuse_level(self, verb: str) -> None:
        """Raise `InvalidConfiguration` for a level: an operator must `verb` it together with its queue."""
        if (level := self.level_of) is not None:
            raise InvalidConfiguration(
                f"queue {self.name!r} belongs to the {'roll-up' if level.is_period else 'window'} of queue "
                f"{level.queue!r}: {verb} queue {level.queue!r}, which includes it"
            )

    @property
    def slices_name(self) -> str:
        """The name of the queue with the slices of its window."""
        return LevelPart.SLICES.queue_of(self.name)

    @property
    def totals_name(self) -> str:
        """The name of the queue with the keys in its window, and with their totals unless reads merge slices."""
        return LevelPart.WINDOW.queue_of(self.name)

    @property
    def fed(self) -> dict[str, RollUpLevel | WindowSpec | None]:
        """{name of a queue to which passes add what they take: its periods}; None: its keys are those of this queue."""
        found: dict[str, RollUpLevel | WindowSpec | None] = {}
        for level in self.rollup.levels if self.rollup else ():
            found[level.queue_of(self.name)] = level
        if self.window is not None and self._can_subtract:
            found[self.slices_name] = self.window
        elif self.window is not None:
            # Kept for two slices more, as the clocks of readers may be behind those of workers.
            width, step = self.window
            found |= {self.slices_name: WindowSpec(width + 2 * step, step), self.totals_name: None}
        return found

    @property
    def is_timed(self) -> bool:
        """Whether its updates have times: those of a queue with a window or a roll-up."""
        return self.window is not None or self.rollup is not None

    @property
    def lists_keys(self) -> bool:
        """Whether it has the keys in a window whose slices reads merge, each with the latest update only."""
        return self.level_of is not None and self.level_of.is_window and not self._can_subtract

    @property
    def subtracts(self) -> bool:
        """Whether it has a window with totals, from which updates are subtracted when they leave."""
        return self.window is not None and self._can_subtract

    @property
    def merges_window(self) -> bool:
        """Whether reads merge the slices of the window, as its combiner cannot subtract."""
        return self.window is not None and not self._can_subtract

    @property
    def _can_subtract(self) -> bool:
        """Whether each update of the queue can be subtracted from a total."""
        return (self.combiner.name, self.value.name) in _SUBTRACTED

    def has_bucket(self, generation: int, number: int) -> bool:
        """Whether the present shape, or the former shape before the end of its drain, has this bucket."""
        return any(shape.generation == generation and number < shape.buckets for shape in self._shapes)

    @property
    def all_buckets(self) -> list[tuple[int, int]]:
        """Generation and number of each bucket of the present shape, and of the former one until it is drained."""
        return [(shape.generation, number) for shape in self._shapes for number in range(shape.buckets)]

    @property
    def _shapes(self) -> list[Shape]:
        present = Shape(self.generation, self.buckets)
        return [present] if self.former is None else [present, self.former]

    @property
    def features(self) -> list[str]:
        """The features that the queue needs, see `cq.config.features`."""
        needed = {"audit": self.audit is not None, "expiry": self.expiry is not None}
        needed["sketches"] = self.value.sketch is not None
        needed["levels"] = self.is_timed or self.level_of is not None
        needed["conversion"] = self.conversion is not None
        needed["decisions"] = self.decider is not None
        return [feature for feature, is_needed in needed.items() if is_needed]

    def to_bytes(self) -> bytes:
        """The stored form of the configuration; raises `InvalidData` for settings that cannot be encoded."""
        return codec.encode_value(
            {
                "format": FORMAT,
                "features": self.features,
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
                "removed_observers": self.removed_observers,
                "takes_delete": self.takes_delete,
                "former": self.former,
                "told_before": self.backfilled_until,
                "purges": self.purges,
                "limited": self.limited,
                "audit": self.audit,
                "audits": self.audits,
                "window": self.window,
                "expiry": self.expiry,
                "rollup": self.rollup.levels if self.rollup else None,
                "level_of": self.level_of.to_stored() if self.level_of else None,
                "conversion": self.conversion,
                "decider": self.decider,
            }
        )

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> QueueConfig:
        """The inverse of `to_bytes`; raises `CodeMismatch` if this version cannot use it, or `CorruptData`."""
        stored = codec.decode(data)
        check_features(name, stored)
        try:
            return _from_stored(name, stored)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(
                f"the configuration of queue {name!r} is not one that cq wrote: {error!r}"
            ) from error

    def settings(self) -> dict[str, object]:
        """The settings that users choose, as the CLI shows them."""
        return {
            "key": str(self.key),
            "value": str(self.value),
            "combiner": str(self.combiner),
            "buckets": self.buckets,
            "observers": [str(observer) for observer in self.observers],
            "audit": self.audit is not None,
            "window": None if self.window is None else str(self.window),
            "expire": None if self.expiry is None else str(self.expiry),
            "rollup": None if self.rollup is None else str(self.rollup),
            **({} if self.decider is None else {"decider": str(self.decider)}),
        }


def _from_stored(name: str, stored: Any) -> QueueConfig:
    """The configuration in a decoded value; raises `KeyError`, `TypeError` or `ValueError` if cq did not write it."""
    shape = Shape.from_stored((stored["generation"], stored["buckets"]))
    former, window, expiry = stored["former"], stored.get("window"), stored.get("expiry")
    require(type(stored["takes_delete"]) is type(stored["limited"]) is bool)
    return QueueConfig(
        name,
        key=KeyType.parse(stored["key"]),
        value=ValueType.parse(stored["value"]),
        combiner=Named.from_stored(*stored["combiner"]),
        observers=tuple(ObserverConfig.from_stored(each) for each in stored["observers"]),
        buckets=shape.buckets,
        generation=shape.generation,
        observer_generations=generation(stored["observer_generations"]),
        removed_observers=_names(stored.get("removed_observers", [])),
        takes_delete=stored["takes_delete"],
        former=None if former is None else Shape.from_stored(former),
        backfilled_until=generation(stored["told_before"]),
        limited=stored["limited"],
        audit=Audit.from_stored(stored["audit"]),
        audits=generation(stored["audits"]),
        purges=Purges.from_stored(stored["purges"]),
        window=None if window is None else WindowSpec(*window).checked(),
        expiry=None if expiry is None else ExpirySpec(*expiry).checked(),
        rollup=RollUp.from_stored(stored.get("rollup")),
        level_of=LevelOf.from_stored(stored.get("level_of")),
        conversion=Conversion.from_stored(stored.get("conversion")),
        decider=DeciderConfig.from_stored(stored.get("decider")),
    )


def _names(stored: Any) -> tuple[str, ...]:
    require(type(stored) is list and all(type(each) is str for each in stored))
    return tuple(stored)


class ConfigCache(Generic[T]):
    """The configurations of one kind that the transactions of each database have read, by name.

    The cache of a database is valid for one value of `\\xff/metadataVersion`. The store returns this value with the
    read version, so reading it costs no round trip. Each change of a configuration writes that key and the
    configuration's own key in one commit. A transaction reads the metadata version in a snapshot and adds a read
    conflict on the own key of the configuration: it fails if the configuration changes before it commits, but changes
    by other queues and other layers do not abort it. After such a change, the next transaction reads the configuration
    again.

    Args:
        key: returns the key under which the configuration of a name is stored. Each transaction that changes the
            configuration must write this key and call `invalidate_configs`.
        parse: returns the configuration for a name and the stored bytes.
        missing: the error for a name without a configuration, and the nearest name that has one or None.
        names: returns configured names, for this error.
    """

    def __init__(
        self,
        key: Callable[[str], bytes],
        parse: Callable[[str, bytes], T],
        missing: Callable[[str, str | None], Exception],
        names: Callable[[TransactionRead], list[str]],
    ) -> None:
        self._key, self._from_bytes, self._missing, self._names = key, parse, missing, names
        self._known: WeakKeyDictionary[Any, tuple[bytes | None, dict[str, tuple[bytes, T]]]]
        self._known = WeakKeyDictionary()

    def get(self, tr: TransactionRead, name: str) -> T:
        """The configuration at the transaction's read version; raises what `parse` does, or the error of `missing`.

        Raises `TypeError` for a database instead of a transaction.

        With a transaction, it adds a read conflict on the configuration's key, so that the transaction fails if the
        configuration changes before the commit. With `tr.snapshot`, it adds no conflict.
        """
        snapshot = own_snapshot(tr)
        if METADATA_VERSION in recorded(tr):  # `invalidate_configs` has made it unreadable
            return self._parse(snapshot, name, tr.get(self._key(name)).value)
        chained = chained_version(tr)
        try:
            version = metadata_version(snapshot, chained)
        except Exception as error:
            if error_code(error) != ACCESSED_UNREADABLE:
                refuse_unless_transaction(tr)
                raise
            # Reading the configuration itself would not help: a transaction with a failed read cannot be committed.
            raise WritesUnreadable(
                f"the transaction has written {METADATA_VERSION!r}, which cq must read to validate the configuration "
                f"of {name!r}: call cq before that write"
            ) from error
        known = self._known.get(tr.db)
        if known is None or known[0] != version:
            if not _is_committed(snapshot, version):
                return self._parse(snapshot, name, tr.get(self._key(name)).value)
            if chained is not None and known is not None and (known[0] or b"") > (version or b""):
                chained.end()  # other transactions know a later metadata version: the cache is valid for one of them
            known = self._known[tr.db] = version, {}
        if chained is not None and not chained.is_read:
            chained.keep(version)
        found = known[1].get(name)
        key = self._key(name) if found is None else found[0]
        if snapshot is not tr:
            writing: Any = tr  # `cast` is a call
            writing.add_read_conflict_key(key)
        if found is None:
            # A snapshot read, like that of the metadata version: both see the transaction's own writes, or neither.
            # Otherwise an uncommitted configuration could get into the cache.
            found = known[1][name] = key, self._parse(snapshot, name, snapshot.get(key).value)
        return found[1]

    def _parse(self, snapshot: TransactionRead, name: str, stored: bytes | None) -> T:
        if stored is None:
            raise self._missing(name, nearest(name, self._names(snapshot)))
        return self._from_bytes(name, stored)


def _is_committed(snapshot: TransactionRead, version: bytes | None) -> bool:
    """Whether a metadata version was committed before the transaction's read version.

    With the option `bypass_unreadable`, a transaction reads the placeholder that it has written to the key. Two
    transactions can read equal placeholders, although the configuration has changed between them.
    """
    if version is None:
        return True
    return 0 < int.from_bytes(version[:8], "big") <= snapshot.get_read_version().wait()


def invalidate_configs(tr: Transaction) -> None:
    """Invalidate all cached configurations, and wake workers so that they read theirs again.

    The caller writes the key of the changed configuration in the same transaction.
    """
    note_writes(tr, METADATA_VERSION)
    tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)
    tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)


def read_config(tr: TransactionRead, name: str) -> QueueConfig:
    """The queue's configuration at the transaction's read version.

    It costs no round trip if no configuration in the store has changed since the last call. With a transaction, it adds
    a read conflict on the queue's `config` key, so that the transaction fails if this configuration changes before the
    commit. With `tr.snapshot`, it adds no conflict. Raises `QueueNotConfigured`.
    """
    return _cache.get(tr, name)


def write_config(tr: Transaction, config: QueueConfig) -> None:
    """Store a configuration. No add commits with the former one after this, and workers read the new one."""
    tr.set(QueueKeys(config.name).config, config.to_bytes())
    invalidate_configs(tr)


def queue_names(tr: TransactionRead, limit: int = 0) -> list[str]:
    """The sorted names of all configured queues, or of the first `limit`; skips entries with invalid names."""
    entries = tr.get_range(*keys.below(keys.QUEUES), limit=limit)
    return [name for row in entries if (name := keys.queue_of_entry(row.key)) is not None]


def with_levels(tr: TransactionRead, names: Iterable[str]) -> list[str]:
    """These names, each once, and those of the levels of their roll-ups; a queue that cannot be read has no levels."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        with suppress(CqError):  # the caller reads the queue itself, too
            found.update(dict.fromkeys(read_config(tr, name).level_names))
    return list(found)


_cache: Final = ConfigCache(
    lambda name: QueueKeys(name).config,
    QueueConfig.from_bytes,
    QueueNotConfigured,
    lambda tr: queue_names(tr, MAX_SUGGESTED),
)


def refuse_while_rebucketing(config: QueueConfig) -> None:
    """Raises `NotNow` until the former shape is drained and the values are converted."""
    if config.conversion is not None:
        raise NotNow(
            f"queue {config.name!r} is still being changed from the combiner {config.conversion.former} to "
            f"{config.combiner}: run workers of both versions, and try again later"
        )
    if config.former is not None:
        raise NotNow(
            f"queue {config.name!r} is still being rebucketed from {config.former.buckets:,} to {config.buckets:,} "
            "buckets: run workers, and try again later"
        )


def notify_all(tr: Transaction, config: QueueConfig) -> None:
    """Notify all buckets, so that a pass checks each of them."""
    notify(tr, config, range(config.buckets))


def notify(tr: Transaction, config: QueueConfig, buckets: Iterable[int]) -> None:
    """Notify buckets of the configuration's shape."""
    queue = QueueKeys(config.name)
    for bucket in buckets:
        tr.set_versionstamped_value(queue.notification(config.generation, bucket), INCOMPLETE_VERSIONSTAMP)
