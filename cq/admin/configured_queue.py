"""`cq.configure`: creates or changes a queue, and returns it with the types of its keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from cq.combiners import Combiner
from cq.config.expiry import ExpirySpec
from cq.config.rollup import RollUp
from cq.config.window import WindowSpec
from cq.deciders import Decider
from cq.durations import Span
from cq.observer import Observer, ObserverFunction, ObserverSpec
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database

if TYPE_CHECKING:
    from cq.type_variables import K, V

Part = str | int | bytes
A = TypeVar("A", bound=Part)
B = TypeVar("B", bound=Part)
C = TypeVar("C", bound=Part)

KeyName = str | tuple[type[Part] | str, ...]
"""Types of keys that type checkers do not infer: names, and tuples of more than three types."""
WindowSetting = Span | tuple[Span, Span] | WindowSpec | Literal[False]
"""A window: its width, or its width and slice; False: no window."""
ExpirySetting = Span | ExpirySpec | Literal[False]
"""The time after which keys expire; False: never."""
RollUpSetting = str | Mapping[Any, Any] | RollUp
"""Periods, and how long each is kept."""


class QueueSettings(TypedDict, total=False):
    """The settings of a queue that do not determine types, for `configure`, which documents them, and `App.queue`."""

    combiner: str | Combiner | None
    buckets: int | None
    observers: Sequence[Observer | ObserverSpec | ObserverFunction] | None
    links: Sequence[ObserverSpec] | None
    decider: str | Decider | None
    audit: bool | None
    window: WindowSetting | None
    expire: ExpirySetting | None
    rollup: RollUpSetting | None


class AllSettings(QueueSettings, total=False):
    """The settings that `configure` takes."""

    key: type[Any] | KeyName | None
    value: type[Any] | str | None
    report_again: bool


@overload
def configure(
    db: Database,
    name: str,
    *,
    key: tuple[type[A], type[B]],
    value: type[V] | str | None = None,
    report_again: bool = False,
    **settings: Unpack[QueueSettings],
) -> CombineQueue[tuple[A, B], V]: ...
@overload
def configure(
    db: Database,
    name: str,
    *,
    key: tuple[type[A], type[B], type[C]],
    value: type[V] | str | None = None,
    report_again: bool = False,
    **settings: Unpack[QueueSettings],
) -> CombineQueue[tuple[A, B, C], V]: ...
@overload
def configure(
    db: Database,
    name: str,
    *,
    key: type[K] | KeyName | None = None,
    value: type[V] | str | None = None,
    report_again: bool = False,
    **settings: Unpack[QueueSettings],
) -> CombineQueue[K, V]: ...
def configure(
    db: Database,
    name: str,
    *,
    key: object = None,
    value: object = None,
    combiner: str | Combiner | None = None,
    buckets: int | None = None,
    observers: Sequence[Observer | ObserverSpec | ObserverFunction] | None = None,
    links: Sequence[ObserverSpec] | None = None,
    decider: str | Decider | None = None,
    audit: bool | None = None,
    window: WindowSetting | None = None,
    expire: ExpirySetting | None = None,
    rollup: RollUpSetting | None = None,
    report_again: bool = False,
) -> CombineQueue[Any, Any]:
    """Create a queue, or change settings of an existing one, and return it; the same settings again change nothing.

    The result is a `CombineQueue`, with `combiner` if it is one of your own. Type checkers infer its types: the queue
    of `cq.configure(db, "words", key=str, value=int)` is a `CombineQueue[str, int]`.

    Observers can be changed at any time, also on a queue that holds values: passes first report all stored values to
    new observers and new versions of observers, while adds and reads continue.

    Args:
        db: a database of either store.
        name: 1 to 100 letters, digits, `_`, `.` or `-`.
        key: `str` (default of a new queue), `int`, `bytes`, or a tuple of these such as `(str, int)`; or their names.
        value: the type of updates and values: `int` (default of a new queue), `float`, `Decimal`, `str`, `bytes`,
            `bool`, `list`, `dict`, `set`, `datetime` or `"any"`. cq ignores the parts
            of a `set[str]`: they are for type checkers.
        combiner: the name of a built-in combiner (default of a new queue: `sum`), or one of your own. A later version
            of the queue's own combiner begins a change, and workers finish it: workers with the former version combine
            the updates that are queued now; then workers with the new one convert the values by its `convert`. No other
            setting can change in the same call.
        buckets: 1 to 4,096 (default of a new queue: 1 in an embedded store, 4 on a cluster). As many passes can run
            at the same time. Small transactions need few buckets: an add writes a row and a notification for each
            bucket that its keys touch.
        observers: called for every change, in this order, in the transaction that makes it. They replace the
            application's observers of the queue; built-in observers, stored as settings, stay.
        links: links to other systems, made by functions of `cq.links`, such as `cq.links.table("word_counts")`. They
            are added, or replace those of the same names; `cq.admin.remove_observer(db, name, "link:NAME")` removes
            one.
        decider: decides the requests of a new queue, which then takes no updates: see `CombineQueue.ask`. A
            `cq.Decider`, or text for one of `cq.deciders`, such as "bounded:0:100" or "bounded:0:100:start=100", with
            which a new queue has the value type of its states. An existing queue can get another version or another
            decider, but not lose it. Such a queue has no window, no roll-up and no audit; its combiner (default:
            `last`) is only for reads that merge values.
        audit: whether to keep sums of added and dropped updates, so that `cq.admin.audit.check_audit` can find lost or
            repeated updates (default of a new queue: no). For values of int with the combiner sum; an add then makes
            one atomic addition for each bucket that its keys touch. The audit can be turned on and off at any time; to
            turn it on reads all data of the queue.
        window: width and slice of a window, such as `"10m/10s"` or `(600, 10)`; or its width, for 60 slices or fewer
            (default of a new queue: no window). See `cq.windows.Window`. Updates from now on count in it. Of sums of
            int or Decimal, and of the combiner counter, the queue `NAME.window` has the totals. Of other combiners,
            except `last`, which has no window, reads merge the slices; the slices of such a window keep their length.
            False deletes the window.
        expire: the time without an update after which workers delete a key, such as `"30d"`; False: never (default of a
            new queue). The observers receive each deletion. A key lives up to a 60th part of this time longer. It can
            be changed at any time. Keys with values at that moment count as updated by workers soon after it.
        rollup: periods, and how long each is kept: `"1m:2d,1h:60d,1d:forever"`, or a dict of these (default of a new
            queue: no roll-up). Updates from now on count in their minute, hour and day, too, see `cq.windows.Window`.
            cq keeps each period in a queue of its own, a level named after it (`hits.1m`), which is purged, rebucketed
            and deleted with its queue. `"none"` deletes the levels. Periods and retentions can be changed at any time.
        report_again: whether an observer without a function `clear` may receive all values of the queue again, each as
            new, in a new version or after it was removed: its earlier writes count a second time, unless it writes
            elsewhere now.

    Raises:
        InvalidConfiguration: a setting is not one that cq knows. Or a new version of an observer would receive values
            again, see `report_again`.
        ConfigurationConflict: the queue has other settings, or a later version of an observer or decider; no setting
            is changed.
        NotNow: an audit cannot begin while the queue is being purged. Or the audit is on, but a bucket could not be
            read at one version: call this again.
    """
    # Late: most processes of an application only add and read.
    from cq.admin.configure import change, requested

    wanted = requested(
        key=key,
        value=value,
        combiner=combiner,
        buckets=buckets,
        observers=observers,
        put=links,
        decider=decider,
        audit=audit,
        window=window,
        expire=expire,
        rollup=rollup,
        report_again=report_again,
    )
    change(db, name, wanted)
    return CombineQueue(name, combiner=combiner if isinstance(combiner, Combiner) else None)
