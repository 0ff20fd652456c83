"""Changes of a queue's configuration: `configure`, its observers, pause, resume and priority.

A transaction that changes a shape writes three keys: the queue's `config` key, so that no add commits under an outdated
shape; the metadata version, which invalidates caches; and a key that workers watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cq import keys, runtime
from cq.admin.audit import include_all
from cq.admin.backfill import clear_abandoned
from cq.admin.purge import read_purging
from cq.combiners import BUILT_IN, Combiner, resolve
from cq.config.queue import (
    DEFAULT_BUCKETS,
    LOCAL_BUCKETS,
    MAX_BUCKETS,
    MAX_PRIORITY,
    Named,
    ObserverConfig,
    QueueConfig,
    change_flags,
    notify_all,
    read_config,
    refuse_while_rebucketing,
    write_config,
)
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.encoding.codec import KeyType, ValueType
from cq.errors import ConfigurationConflict, InvalidConfiguration, NotNow
from cq.keys import QueueKeys
from cq.observer import Observer, ObserverFunction, ObserverSpec, check_named, check_spec
from cq.queue.ledger import refuse_unless_summed, with_audit, without_audit
from cq.queue.limits import is_positive
from cq.queue.missed_reports import forget_missed
from cq.store import is_local
from cq.store.api import Database, Transaction
from cq.store.transact import transact

_SHAPE: Final = ("key", "value", "combiner", "buckets")


def configure(
    db: Database,
    name: str,
    *,
    key: object = None,
    value: object = None,
    combiner: str | Combiner | None = None,
    buckets: int | None = None,
    observers: Sequence[Observer | ObserverSpec | ObserverFunction] | None = None,
    audit: bool | None = None,
    window: object = None,
) -> QueueConfig:
    """Create a queue, or change settings of an existing one; the same settings again change nothing.

    Observers can be changed at any time, also on a queue that holds values: passes first report all stored values to
    new observers and new versions of observers, while adds and reads continue.

    Args:
        db: a database of either store.
        name: 1 to 100 letters, digits, `_`, `.` or `-`.
        key: `str` (default of a new queue), `int`, `bytes`, or a tuple of these such as `(str, int)`; or their names.
        value: the type of updates and values: `int` (default of a new queue), `float`, `Decimal`, `str`, `bytes`,
            `bool`, `list`, `dict`, `set`, `datetime` or `"any"`.
        combiner: the name of a built-in combiner (default of a new queue: `sum`), or one of your own.
        buckets: 1 to 4,096 (default of a new queue: 1 in an embedded store, 8 on a cluster). As many passes can run
            at the same time. Small transactions need few buckets: an add writes a row and a notification for each
            bucket that its keys touch.
        observers: called for every change, in this order, in the transaction that makes it. They replace the
            application's observers of the queue; built-in observers, stored as settings, stay.
        audit: whether to keep sums of added and dropped updates, so that `cq.admin.audit.check_audit` can find lost or
            repeated updates (default of a new queue: no). For values of int with the combiner sum; an add then makes
            one atomic addition for each bucket that its keys touch. The audit can be turned on and off at any time; to
            turn it on reads all data of the queue.
        window: width and slice in seconds of a window over the queue, such as `(600, 10)` or `"600/10"` (default of a
            new queue: no window). Workers subtract updates that leave the window, see `cq.Window`. For values of int
            with the combiner sum. A queue created with a window keeps one; another width or slice applies to
            updates added from then on.

    Raises:
        InvalidConfiguration: a setting is not one that cq knows.
        ConfigurationConflict: the queue has other settings; no setting is changed.
        NotNow: an audit cannot begin while the queue is being purged. Or the audit is on, but a bucket could not be
            read at one version: call this again.
    """
    requested = _RequestedSettings(
        None if key is None else KeyType.parse(key),
        None if value is None else ValueType.parse(value),
        None if combiner is None else resolve(combiner),
        buckets,
        None if observers is None else _specs(observers),
        audit,
        None if window is None else WindowSpec.parse(window),
    )
    keys.check_name(name)
    new = replace(_NEW, buckets=LOCAL_BUCKETS) if is_local(db) else _NEW
    configured = transact(db, lambda tr: _configure(tr, name, requested, new))
    if audit:
        include_all(db, configured)
    return configured


def put_observer(db: Database, name: str, observer: ObserverSpec) -> QueueConfig:
    """Add an observer to a queue, or replace the observer of the same name; all others stay.

    Raises `QueueNotConfigured`.
    """

    check_spec(observer)

    def put(tr: Transaction) -> QueueConfig:
        current = read_config(tr, name)
        specs = [_spec(each) for each in current.observers]
        places = [place for place, spec in enumerate(specs) if spec.name == observer.name]
        if places:
            specs[places[0]] = observer
        else:
            specs.append(observer)
        return _change_observers(tr, current, specs)

    return transact(db, put)


def remove_observer(db: Database, name: str, observer: str) -> QueueConfig:
    """Remove an observer from a queue, and clear its data; no change if the queue has no observer of this name.

    Raises `QueueNotConfigured`.
    """

    def remove(tr: Transaction) -> QueueConfig:
        current = read_config(tr, name)
        return _change_observers(
            tr, current, [_spec(each) for each in current.observers if each.name != observer]
        )

    return transact(db, remove)


def rebuild_observer(db: Database, name: str, observer: str) -> QueueConfig:
    """Start a new generation of an observer's data, which passes fill from all stored values.

    Raises `QueueNotConfigured`, and `InvalidConfiguration` if the queue has no such observer.
    """

    def rebuild(tr: Transaction) -> QueueConfig:
        current = read_config(tr, name)
        if observer not in (each.name for each in current.observers):
            raise InvalidConfiguration(f"queue {name!r} has no observer {codec.brief(observer)}")
        specs = [_spec(each) for each in current.observers]
        kept = tuple(each for each in current.observers if each.name != observer)
        return _change_observers(tr, replace(current, observers=kept), specs)

    return transact(db, rebuild)


@dataclass(frozen=True, slots=True)
class _RequestedSettings:
    """The settings that a call of `configure` requests; None for those it leaves out."""

    key: KeyType | None
    value: ValueType | None
    combiner: Combiner | None
    buckets: int | None
    observers: list[ObserverSpec] | None
    audit: bool | None = None
    window: WindowSpec | None = None

    def shape(self, name: str, stored: QueueConfig) -> QueueConfig:
        """The requested shape; raises `InvalidConfiguration` if its parts do not fit together."""
        code = self.combiner
        shape = replace(
            stored,
            name=name,
            key=self.key or stored.key,
            value=self.value or stored.value,
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
        code = code or BUILT_IN.get(shape.combiner.name)
        if code and code.value_types and shape.value.name not in code.value_types:
            raise InvalidConfiguration(
                f"expected a value type of {', '.join(code.value_types)} for the combiner "
                f"{code.name!r}, got: {shape.value}"
            )
        if self.window is not None:
            refuse_unless_summed(shape, "a window")
        return shape


_NEW: Final = QueueConfig(
    "", KeyType.parse("str"), ValueType.parse("int"), Named("sum", 1), (), DEFAULT_BUCKETS
)
"""Defaults of a new queue on a cluster."""


def _specs(observers: Sequence[object]) -> list[ObserverSpec]:
    if not isinstance(observers, Sequence):
        raise InvalidConfiguration(f"expected a list of observers, got: {codec.brief(observers)}")
    specs = []
    for each in observers:
        if isinstance(each, ObserverSpec):
            specs.append(check_spec(each))
        else:
            observer = Observer.of(each)
            specs.append(
                check_spec(ObserverSpec(observer.name, observer.version, factory=_application_factory))
            )
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise InvalidConfiguration(f"expected observers of different names, got: {', '.join(names)}")
    return specs


def _spec(observer: ObserverConfig) -> ObserverSpec:
    """The spec of a stored observer; its `factory` only distinguishes built-in observers (None) from others."""
    factory = None if observer.is_built_in else _application_factory
    return ObserverSpec(observer.name, observer.version, observer.settings, factory)


def _application_factory(config: Any, settings: Any, generation: int) -> Any:
    raise NotImplementedError("a stored observer's code is looked up in the application")


def _configure(tr: Transaction, name: str, requested: _RequestedSettings, new: QueueConfig) -> QueueConfig:
    """Create a queue, or change the observers, window and audit of an existing one."""
    stored = tr.get(QueueKeys(name).config).value
    if stored is None:
        return _create(tr, name, requested, new)
    current = QueueConfig.from_bytes(name, stored)
    before, after = current.settings(), requested.shape(name, current).settings()
    differences = {what: (before[what], after[what]) for what in _SHAPE if before[what] != after[what]}
    if differences:
        raise ConfigurationConflict(name, differences)
    if requested.observers is not None:
        names = {spec.name for spec in requested.observers}
        kept = [_spec(each) for each in current.observers if each.is_built_in and each.name not in names]
        current = _change_observers(tr, current, requested.observers + kept)
    if requested.window is not None:
        current = _change_window(tr, current, requested.window)
    return current if requested.audit is None else _change_audit(tr, current, requested.audit)


def _change_window(tr: Transaction, current: QueueConfig, wanted: WindowSpec) -> QueueConfig:
    """Change the window of updates added from now on; rows already written keep their time."""
    if wanted == current.window:
        return current
    if current.window is None:  # its present updates have no rows in the window, so they would never expire
        raise ConfigurationConflict(current.name, {"window": ("none", wanted)})
    changed = replace(current, window=wanted)
    write_config(tr, changed)
    return changed


def _change_audit(tr: Transaction, current: QueueConfig, wanted: bool) -> QueueConfig:
    """Turn the audit on or off. When it is turned on, the queue's present content is not included yet."""
    if wanted == (current.audit is not None):
        return current
    if wanted and read_purging(tr.snapshot, current):
        raise NotNow(f"queue {current.name!r} is still being purged: run workers, and try again later")
    changed = with_audit(current, whole=False) if wanted else without_audit(tr, current)
    write_config(tr, changed)
    return changed


def _create(tr: Transaction, name: str, requested: _RequestedSettings, new: QueueConfig) -> QueueConfig:
    created = _with_observers(
        requested.shape(name, replace(new, window=requested.window)), requested.observers or []
    )
    if requested.audit:
        created = with_audit(created, whole=True)
    # Workers of a deleted queue of this name may have left attempts. An export queue may use the same prefix, so only
    # these are cleared.
    tr.clear_range(*QueueKeys(name).of_generation(created.generation).attempts)
    tr.set(keys.queue_entry(name), b"")
    for (
        observer
    ) in created.observers:  # a new queue has no values, so their first generation needs no backfill
        tr.set(QueueKeys(name).observer_current(observer.name), codec.encode(observer.generation))
    write_config(tr, created)
    return created


def _change_observers(tr: Transaction, current: QueueConfig, specs: list[ObserverSpec]) -> QueueConfig:
    """Store other observers, clear data of removed ones, and notify all buckets, so that passes start backfills."""
    changed = _with_observers(current, specs)
    if changed == current:
        return current
    refuse_while_rebucketing(current)
    queue = QueueKeys(current.name)
    names = {observer.name for observer in changed.observers}
    for observer in current.observers:
        if observer.name not in names:
            published = queue.observer_published(observer.name)
            tr.clear_range(published, keys.prefix_end(published))
            tr.clear(queue.observer_current(observer.name))
    clear_abandoned(tr, changed)
    forget_missed(tr, current.name, [each.generation for each in changed.observers])
    notify_all(tr, current)
    write_config(tr, changed)
    return changed


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
    return replace(current, observers=tuple(observers), observer_generations=generations)


def pause(db: Database, name: str, reason: str = "by hand", *, seconds: float | None = None) -> None:
    """Keep workers from combining the queue until `resume`, or for `seconds` seconds; adds and reads continue.

    Raises `QueueNotConfigured`, and `InvalidConfiguration` if `seconds` is not positive.
    """
    if seconds is not None and not is_positive(seconds):
        raise InvalidConfiguration(
            f"expected a positive number of seconds to pause for, got: {codec.brief(seconds)}"
        )
    if not isinstance(reason, str):
        raise InvalidConfiguration(f"expected the reason of a pause to be text, got: {codec.brief(reason)}")
    until = None if seconds is None else runtime.time() + seconds
    _change_flags(db, name, paused=True, reason=reason, until=until)


def resume(db: Database, name: str) -> None:
    """End a pause; workers continue at once. Raises `QueueNotConfigured`."""
    _change_flags(db, name, paused=False, reason="", until=None)


def prioritize(db: Database, name: str, priority: int) -> None:
    """Set the queue's share of the workers' time, 1 to 100, relative to other queues with work; the default is 10.

    Raises `QueueNotConfigured`, `InvalidConfiguration`.
    """
    _change_flags(db, name, priority=check_priority(priority))


def check_priority(priority: object) -> int:
    """The priority, checked; raises `InvalidConfiguration`."""
    if type(priority) is not int or not 1 <= priority <= MAX_PRIORITY:
        raise InvalidConfiguration(
            f"expected a priority of 1 to {MAX_PRIORITY}, got: {codec.brief(priority)}"
        )
    return priority


def _change_flags(db: Database, name: str, **changes: Any) -> None:
    transact(db, lambda tr: change_flags(tr, name, **changes))
