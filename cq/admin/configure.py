"""Changes of a queue's configuration: its settings and observers.

A transaction that changes a shape writes three keys: the queue's `config` key, so that no add commits under an outdated
shape; the metadata version, which invalidates caches; and a key that workers watch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeGuard

from cq import keys, runtime
from cq.admin.audit import include_all
from cq.admin.backfill import clear_abandoned
from cq.admin.conversion import is_raised, refuse_other_changes, switch
from cq.admin.flags import checked_priority, copy_flags
from cq.admin.levels import levels_after, refuse_level_change, removed_levels, with_levels_of
from cq.admin.purging import clear_queue, refuse_while_purging
from cq.admin.repeated_reports import (
    RepeatedObserver,
    RepeatedReports,
    count_values,
    refuse_recounts,
    refuse_repeats,
    repeated,
)
from cq.combiners import Combiner, built_in_combiner, resolve
from cq.config.decider import DeciderConfig
from cq.config.expiry import ExpirySpec
from cq.config.flags import change_flags
from cq.config.parts import MAX_BUCKETS
from cq.config.queue import (
    DEFAULT_BUCKETS,
    LOCAL_BUCKETS,
    MAX_SUGGESTED,
    Named,
    ObserverConfig,
    QueueConfig,
    notify_all,
    queue_names,
    refuse_while_rebucketing,
    write_config,
)
from cq.config.rollup import RollUp
from cq.config.window import WindowSpec
from cq.deciders import DECIDERS, Decider, resolve_decider
from cq.encoding import codec
from cq.encoding.codec import KeyType, ValueType
from cq.encoding.sketches import KINDS
from cq.errors import ConfigurationConflict, InvalidConfiguration, NotInStore, QueueNotConfigured
from cq.keys import QueueKeys
from cq.keys.expiry import ExpiryKeys
from cq.keys.link import OBSERVER, LinkKeys
from cq.observer import Observer, ObserverFunction, ObserverSpec, check_named, check_spec, observers_of
from cq.plain_text import nearest
from cq.queue.ledger import with_audit, without_audit
from cq.queue.missed_reports import forget_missed
from cq.store.api import Database, Transaction, TransactionRead, is_local, outlived
from cq.store.transact import transact

_SHAPE: Final = ("key", "value", "combiner", "buckets")
_COMBINER_OF_STATES: Final = "last"
"""The combiner of a queue with a decider, which takes values of all types."""
_Versioned = ObserverSpec | ObserverConfig | DeciderConfig
_SKETCHES: Final = tuple((name,) for name in KINDS)


def put_observer(db: Database, name: str, observer: ObserverSpec) -> QueueConfig:
    """Add an observer to a queue, or replace the observer of the same name; all others stay.

    Raises `QueueNotConfigured`.
    """
    return change(db, name, requested(put=[observer], creates=False))


def remove_observer(db: Database, name: str, observer: str) -> QueueConfig:
    """Remove an observer from a queue, and clear its data; no change if the queue has no observer of this name.

    Raises `QueueNotConfigured`.
    """
    return change(db, name, requested(removed=[observer], creates=False))


def rebuild_observer(
    db: Database, name: str, observer: str | Observer | ObserverSpec | ObserverFunction
) -> QueueConfig:
    """Start a new generation of an observer's data, which passes fill from all stored values.

    Each value is reported as new. An observer of your own must not count what it has written before: give the
    `cq.Observer` itself instead of its name, so that its function `clear` is called. Raises `QueueNotConfigured`,
    `NotInStore` if the queue has no such observer, and `InvalidConfiguration` for `distinct` if the queue has values:
    all keys would be counted a second time.
    """
    if isinstance(observer, str):
        return change(db, name, requested(rebuilt=observer, creates=False))
    (observer,) = observers_of([observer])
    return change(db, name, requested(rebuilt=observer.name, put=[observer], creates=False))


def start_rebuild(tr: Transaction, config: QueueConfig, observer: str) -> None:
    """Do as `rebuild_observer` in a transaction that has read the stored configuration."""
    _store(tr, config, _changed(tr, config, requested(rebuilt=observer, creates=False)))


@dataclass(frozen=True, slots=True)
class RequestedSettings:
    """Checked settings for `change`, from `requested`; None and empty for those that stay as they are.

    Attributes:
        key, value, combiner, buckets, observers, audit, window, expire, rollup: as in `cq.configure`.
        decider: the decider.
        put: observers to add, or to replace the observer of the same name.
        removed: names of observers to remove.
        rebuilt: the name of an observer that starts a new generation of its data.
        priority: as in `prioritize`.
        report_again: whether observers may receive all values again although they clear nothing.
        creates: whether to create a queue that does not exist.
    """

    key: KeyType | None = None
    value: ValueType | None = None
    combiner: Combiner | None = None
    buckets: int | None = None
    observers: Sequence[ObserverSpec] | None = None
    audit: bool | None = None
    window: WindowSpec | Literal[False] | None = None
    expire: ExpirySpec | Literal[False] | None = None
    rollup: RollUp | None = None
    decider: Decider | None = None
    put: Sequence[ObserverSpec] = ()
    removed: Collection[str] = ()
    rebuilt: str | None = None
    priority: int | None = None
    report_again: bool = False
    creates: bool = True

    def shape(self, stored: QueueConfig) -> QueueConfig:
        """The requested shape; raises `InvalidConfiguration` if its parts do not fit together."""
        code = self.combiner
        if code is None and self.decider is not None and stored.decider is None:
            code = built_in_combiner(_COMBINER_OF_STATES)
        shape = replace(
            stored,
            key=self.key or stored.key,
            value=self.value or self._implied_value(code, stored) or stored.value,
            combiner=Named(code.name, code.version) if code else stored.combiner,
            buckets=stored.buckets if self.buckets is None else self.buckets,
            takes_delete=code.takes_delete if code else stored.takes_delete,
        )
        if code:
            check_named("combiner", code.name, code.version)
        if type(shape.buckets) is not int or not 1 <= shape.buckets <= MAX_BUCKETS:
            raise InvalidConfiguration(
                f"expected buckets to be 1 to {MAX_BUCKETS:,}, got: {codec.brief(shape.buckets)}"
            )
        code = code or built_in_combiner(shape.combiner.name)
        if code and code.value_types and shape.value.name not in code.value_types:
            raise InvalidConfiguration(
                f"expected a value type of {', '.join(code.value_types)} for the combiner "
                f"{code.name!r}, got: {shape.value}"
            )
        if code and not code.value_types and shape.value.sketch is not None:
            raise InvalidConfiguration(
                f"expected a combiner of sketches for the value type {shape.value}, got: {code.name!r}"
            )
        if self.decider is not None:
            decider = DeciderConfig.of(self.decider)
            _, types = DECIDERS.get(decider.kind, (None, ()))
            if types and shape.value.name not in types:
                raise InvalidConfiguration(
                    f"expected a value type of {', '.join(types)} for the decider {decider.kind!r}, got: "
                    f"{shape.value}"
                )
            shape = replace(shape, decider=decider)
        if self.expire is not None:
            shape = replace(shape, expiry=self.expire or None)
        if shape.expiry is not None:
            shape.expiry.check_key(shape.key)
        return shape

    def _implied_value(self, combiner: Combiner | None, stored: QueueConfig) -> ValueType | None:
        """The value type of a combiner of sketches, or of a built-in decider of a new queue; None for others."""
        if self.decider is not None and stored.decider is None:
            _, types = DECIDERS.get(DeciderConfig.of(self.decider).kind, (None, ()))
            return ValueType(types[0]) if types else None
        if combiner and combiner.value_types[:1] in _SKETCHES:
            return ValueType(combiner.value_types[0])
        return None

    @property
    def given_specs(self) -> list[ObserverSpec]:
        """The observers given as arguments."""
        return [*(self.observers or ()), *self.put]

    def begin_observers(self, tr: Transaction, before: QueueConfig | None, after: QueueConfig) -> None:
        """Call `clear` of each observer with a new generation; raises `InvalidConfiguration` for unwanted repeats."""
        clears = {spec.name: spec.clear for spec in self.given_specs if spec.clear is not None}
        former = {each.generation for each in before.observers} if before else set()
        if before is not None and not self.report_again:
            again = self.repeated(before, after)
            refuse_repeats(tr, after.name, [each for each in again if each.after.name != self.rebuilt])
        for each in after.observers:
            if each.generation not in former and each.name in clears:
                _clear(tr, each.name, clears[each.name])

    def repeated(self, before: QueueConfig, after: QueueConfig) -> tuple[RepeatedObserver, ...]:
        """The observers that receive all values again, although they do not keep generations of data apart."""
        generational = {spec.name for spec in self.given_specs if spec.factory is not _application_factory}
        clearing = {spec.name for spec in self.given_specs if spec.clear is not None}
        return repeated(before, after, generational, clearing)

    def check_observers(self, tr: TransactionRead, config: QueueConfig) -> None:
        """Raises an error if a requested observer does not suit the queue of this new configuration."""
        for spec in self.given_specs:
            if spec.check is not None:
                spec.check(tr, config)

    def specs(self, current: QueueConfig) -> list[ObserverSpec]:
        """The requested observers of a queue, in their order."""
        stored = {each.name: _spec(each) for each in current.observers}
        if self.observers is not None:
            built_in = {each.name: stored[each.name] for each in current.observers if each.is_built_in}
            stored = {spec.name: spec for spec in self.observers}
            stored |= {name: spec for name, spec in built_in.items() if name not in stored}
        stored |= {spec.name: spec for spec in self.put}
        return [spec for spec in stored.values() if spec.name not in self.removed]


def requested(**settings: Any) -> RequestedSettings:
    """The settings, parsed and checked one by one; raises `InvalidConfiguration`."""
    parsed: dict[str, Any] = {}
    for what, given in settings.items():
        if given is not None:
            parsed[what] = _PARSERS[what](given) if what in _PARSERS else given
    return RequestedSettings(**parsed)


def _clear(tr: Transaction, name: str, clear: Callable[[Any], object]) -> None:
    """Call the function `clear` of an observer; raises `InvalidConfiguration` if it has taken too long.

    The store would refuse this transaction and all further tries, without an error for the caller.
    """
    begun, failure = runtime.monotonic(), None
    try:
        clear(tr)
    except Exception as error:
        if not outlived(begun):
            raise
        failure = error
    if late := outlived(begun):
        raise InvalidConfiguration(
            f"clear of observer {name!r} {late}: let it clear ranges and purge queues only"
        ) from failure


def _specs(observers: Sequence[object]) -> list[ObserverSpec]:
    specs = []
    for each in observers_of(observers):
        if isinstance(each, ObserverSpec):
            spec = each
        else:
            spec = ObserverSpec(each.name, each.version, factory=_application_factory, clear=each.clear)
        specs.append(check_spec(spec))
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise InvalidConfiguration(
            f"expected observers and links of different names, got: {', '.join(names)}"
        )
    return specs


def _spec(observer: ObserverConfig) -> ObserverSpec:
    """The spec of a stored observer; its `factory` only distinguishes built-in observers (None) from others."""
    factory = None if observer.is_built_in else _application_factory
    return ObserverSpec(observer.name, observer.version, observer.settings, factory)


def _application_factory(config: Any, settings: Any, generation: int) -> Any:
    raise NotImplementedError("a stored observer's code is looked up in the application")


_PARSERS: Final[dict[str, Callable[[Any], object]]] = {
    "key": KeyType.parse,
    "value": ValueType.parse,
    "combiner": resolve,
    "observers": _specs,
    "window": WindowSpec.parse,
    "expire": ExpirySpec.parse,
    "rollup": RollUp.parse,
    "put": _specs,
    "decider": resolve_decider,
    "priority": checked_priority,
}
_NEW: Final = QueueConfig(
    "",
    key=KeyType.parse("str"),
    value=ValueType.parse("int"),
    combiner=Named("sum", 1),
    observers=(),
    buckets=DEFAULT_BUCKETS,
)
"""Defaults of a new queue on a cluster."""


def change(db: Database, name: str, wanted: RequestedSettings) -> QueueConfig:
    """Make all requested changes of a queue in one transaction, or none; `cq.configure` documents the errors."""
    keys.check_name(name)
    new = replace(_NEW, name=name, buckets=LOCAL_BUCKETS if is_local(db) else DEFAULT_BUCKETS)

    def run(tr: Transaction) -> QueueConfig:
        stored = tr.get(QueueKeys(name).config).value
        if stored is None and not wanted.creates:
            raise QueueNotConfigured(name, nearest(name, queue_names(tr.snapshot, MAX_SUGGESTED)))
        before = None if stored is None else QueueConfig.from_bytes(name, stored)
        after = _created(new, wanted) if before is None else _changed(tr, before, wanted)
        if before is not None and wanted.combiner is not None and is_raised(before, wanted.combiner):
            refuse_other_changes(before, after)
            after = switch(tr, before, wanted.combiner)
        else:
            wanted.check_observers(tr.snapshot, after)  # before any write: it may read cached configurations
            if before is not None:
                refuse_level_change(before, after)
            _change(tr, before, after, wanted)
        for each in after.names if wanted.priority is not None else ():
            change_flags(tr, each, priority=wanted.priority)
        return after

    configured = transact(db, run)
    if wanted.audit:
        include_all(db, configured)
    return configured


def _change(
    tr: Transaction, before: QueueConfig | None, after: QueueConfig, wanted: RequestedSettings
) -> None:
    """Store the new configurations of a queue and its levels."""
    levels, removed = levels_after(tr, before, after), removed_levels(tr, before, after)
    wanted.begin_observers(tr, before, after)  # after all reads of configurations: it may change some
    if before is not None:
        _refuse_own_changes(tr, before)
    for level in removed:
        clear_queue(tr, level)
    for stored_level, level in levels:
        _store(tr, stored_level, level)
        if stored_level is None:
            copy_flags(tr, after.name, level.name)
    _store(tr, before, after)


def _refuse_own_changes(tr: Transaction, before: QueueConfig) -> None:
    """Raise `InvalidConfiguration` if `clear` of an observer has changed the configuration of its queue."""
    stored = tr.get(QueueKeys(before.name).config).value
    if stored is None or QueueConfig.from_bytes(before.name, stored) != before:
        raise InvalidConfiguration(
            f"`clear` of an observer of queue {before.name!r} has changed this queue, such as by a purge: it must "
            "clear only what the observer has written"
        )


def repeated_reports(db: Database, name: str, wanted: RequestedSettings) -> RepeatedReports | None:
    """The reports that `change` would repeat to observers of the application, now; None if it would repeat none."""

    def read(tr: Transaction) -> RepeatedReports | None:
        stored = tr.snapshot.get(QueueKeys(name).config).value
        if stored is None:
            return None
        before = QueueConfig.from_bytes(name, stored)
        observers = wanted.repeated(before, _with_wanted(before, wanted))
        found = count_values(tr.snapshot, name) if observers else None
        return RepeatedReports(name, found.rows, found.exact, observers) if found and found.rows else None

    return transact(db, read)


def _created(new: QueueConfig, wanted: RequestedSettings) -> QueueConfig:
    created = _with_observers(wanted.shape(new), wanted.specs(new))
    created = with_levels_of(created, wanted.rollup, wanted.window)
    refuse_with_decider(created, audit=bool(wanted.audit))
    return with_audit(created, whole=True) if wanted.audit else created


def refuse_with_decider(config: QueueConfig, *, audit: bool) -> None:
    """Raise `InvalidConfiguration` for a queue with a decider and with a part that is made of updates."""
    if config.decider is not None and (config.is_timed or audit):
        raise InvalidConfiguration(
            f"queue {config.name!r} has a decider, so it has no window, no roll-up and no audit: its requests are no "
            "values; an observer can add to a queue that has them"
        )


def _changed(tr: Transaction, current: QueueConfig, wanted: RequestedSettings) -> QueueConfig:
    """The changed configuration of an existing queue."""
    shape = wanted.shape(current)
    before, after = current.settings(), shape.settings()
    differences = {what: (before[what], after[what]) for what in _SHAPE if before[what] != after[what]}
    if (current.decider is None) != (shape.decider is None) or _is_earlier(shape.decider, current.decider):
        differences["decider"] = before.get("decider"), after.get("decider")
    if is_raised(current, wanted.combiner):
        del differences["combiner"]  # see `switch`
    if differences:
        raise ConfigurationConflict(current.name, differences)
    if wanted.rebuilt is not None and wanted.rebuilt not in (each.name for each in current.observers):
        raise NotInStore(f"queue {current.name!r} has no observer {codec.brief(wanted.rebuilt)}")
    changed = replace(_with_wanted(current, wanted), expiry=shape.expiry, decider=shape.decider)
    changed = with_levels_of(changed, wanted.rollup, wanted.window)
    refuse_with_decider(changed, audit=bool(wanted.audit))
    if wanted.audit in (None, current.audit is not None):
        return changed
    if not wanted.audit:
        return without_audit(tr, changed)
    refuse_while_purging(tr.snapshot, current)
    return with_audit(changed, whole=False)


def _with_wanted(current: QueueConfig, wanted: RequestedSettings) -> QueueConfig:
    """The configuration of an existing queue with the wanted observers; raises `ConfigurationConflict`."""
    specs = {spec.name: spec for spec in wanted.specs(current)}
    for each in current.observers:
        if _is_earlier(spec := specs.get(each.name), each):
            raise ConfigurationConflict(
                current.name, {"observer": (each.named, f"{spec.name}@{spec.version}")}
            )
    kept = tuple(each for each in current.observers if each.name != wanted.rebuilt)
    return _with_observers(replace(current, observers=kept), list(specs.values()))


def _is_earlier(wanted: _Versioned | None, stored: _Versioned | None) -> TypeGuard[_Versioned]:
    """Whether the wanted version is earlier than the stored one: a process with old code must not undo a change."""
    if wanted is None or stored is None:
        return False
    return wanted.name == stored.name and wanted.version < stored.version


def _store(tr: Transaction, before: QueueConfig | None, after: QueueConfig) -> None:
    """Store the configuration of a new queue (`before` is None) or of a changed one."""
    queue = QueueKeys(after.name)
    if before is None:
        # Workers of a deleted queue of this name may have left attempts.
        tr.clear_range(*queue.of_generation(after.generation).attempts)
        tr.set(keys.queue_entry(after.name), b"")
        for observer in after.observers:  # no backfill: a new queue has no values
            tr.set(queue.observer_current(observer.name), codec.encode(observer.generation))
    elif after.observers != before.observers:
        if before.former is not None:
            refuse_while_rebucketing(before)
        refuse_recounts(tr, before, after)
        for name in {each.name for each in before.observers} - {each.name for each in after.observers}:
            tr.clear_range(*keys.below(queue.observer_published(name)))
            tr.clear(queue.observer_current(name))
            if name.startswith(OBSERVER):
                tr.clear_range(*keys.below(LinkKeys(after.name, name.removeprefix(OBSERVER)).prefix))
        clear_abandoned(tr, after)
        forget_missed(tr, after.name, [each.generation for each in after.observers])
        notify_all(tr, before)  # so that passes start the backfills
    if before is not None and _kind_of_times(before) != _kind_of_times(after):
        # The keys get times from workers, one page of values after the other.
        expiry = ExpiryKeys(after.name)
        tr.clear_range(*expiry.of_times())
        if after.expiry is not None:
            tr.set(expiry.progress, b"")
    if after != before:
        write_config(tr, after)


def _kind_of_times(config: QueueConfig) -> str:
    """The meaning of the times of a queue's keys; empty for keys without times. A new period keeps the times."""
    return "" if config.expiry is None else config.expiry.by


def _with_observers(current: QueueConfig, specs: list[ObserverSpec]) -> QueueConfig:
    """The configuration with these observers; unchanged observers keep their generation, others get a new one."""
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
        observers += same or [
            ObserverConfig(spec.name, spec.version, dict(spec.settings), generations, spec.factory is None)
        ]
    names = {spec.name for spec in specs}
    former = {each.name for each in current.observers if not each.is_built_in}
    return replace(
        current,
        observers=tuple(observers),
        observer_generations=generations,
        removed_observers=tuple(sorted(former.union(current.removed_observers) - names)),
    )
