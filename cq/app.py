"""The queues and feeds of an application, with their code: combiners, deciders, observers and targets.

The configuration of a queue contains only names and versions of its combiner and observers, so a worker never imports
code that the store names. It gets the code from an `App`, and skips the queues whose code it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, overload

from cq import keys
from cq.admin.configured_queue import (
    A,
    AllSettings,
    B,
    C,
    ExpirySetting,
    KeyName,
    QueueSettings,
    RollUpSetting,
    WindowSetting,
    configure,
)
from cq.combiners import Combiner, built_in_combiner, latest_only, require_packages, resolve
from cq.config.decider import DeciderConfig
from cq.config.queue import Named, ObserverConfig, QueueConfig
from cq.deciders import Decider, built_in_decider, resolve_decider
from cq.durations import Span
from cq.errors import CodeMismatch, InvalidConfiguration, MissingPackage
from cq.observer import Observer, ObserverFunction, ObserverSpec, kind_of, observers_of
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database

if TYPE_CHECKING:
    from cq.feeds.config import FeedConfig
    from cq.feeds.feed import Feed
    from cq.type_variables import K, M, V

F = TypeVar("F", bound=Callable[..., object])
Factory = Callable[[QueueConfig, Mapping[str, Any], int], ObserverFunction]
"""Makes an observer's function from the queue's configuration, the observer's settings and its generation."""


@dataclass(frozen=True, slots=True)
class QueueCode:
    """A queue's configuration with its code.

    Attributes:
        config: the configuration.
        combiner: the combiner.
        observers: the observers, in the order of the configuration.
        decider: the decider; None if the queue takes updates.
        is_heard: whether an observer receives changes, other than the one that keeps the totals of a window. Only then
            must a new value derive from the whole backlog: differences add up to the same sum, whatever the steps are.
            Folding the backlog of slices first would take most of the time of combining it.
        runs_application_code: whether passes over the queue run other code than cq's combiners and the observer of
            totals.
        value_combiner: the combiner of the values that passes store: only the latest update of each key in a list of
            keys.
    """

    config: QueueConfig
    combiner: Combiner
    observers: tuple[ObserverFunction, ...]
    decider: Decider | None = None
    is_heard: bool = field(init=False)
    runs_application_code: bool = field(init=False)
    value_combiner: Combiner = field(init=False)

    @property
    def shapes(self) -> list[QueueCode]:
        """The code with the former shape, if it is not drained yet, then the code with the present shape."""
        former = self.config.under_former_shape()
        return [self] if former is None else [replace(self, config=former), self]

    def __post_init__(self) -> None:
        is_heard = not all(each.keeps_totals for each in self.config.observers)
        is_own = built_in_combiner(self.combiner.name) is self.combiner
        combiner = latest_only(self.combiner) if self.config.lists_keys else self.combiner
        object.__setattr__(self, "is_heard", is_heard)
        decides = self.config.decider is not None and not self.config.decider.is_built_in
        object.__setattr__(self, "runs_application_code", is_heard or not is_own or decides)
        object.__setattr__(self, "value_combiner", combiner)


@dataclass(frozen=True, slots=True)
class _DeclaredQueue:
    """What an application declares of a queue.

    Attributes:
        combiner: its combiner; None: the one that is configured.
        observers: its observers, in the order of their calls.
        settings: its other settings, for `cq.configure`; None if only observers are declared.
    """

    combiner: Combiner | None = None
    observers: tuple[Observer | ObserverSpec, ...] = ()
    settings: Mapping[str, Any] | None = None


_NOTHING: Final = _DeclaredQueue()


class App:
    """The queues and feeds of an application: their settings, and its own combiners, deciders, observers and targets.

    A worker loads it with `cq worker --app module:app`. It needs the code only, so queues without code of
    the application may be left out. `configure_all`, or `cq configure --app module:app`, stores the settings.

    >>> app = App()
    >>> orders = app.queue("orders", key=str, value=int, combiner="sum", rollup="1h:30d")
    >>> chat = app.feed("chat", keep="30d")
    >>> orders, chat
    (CombineQueue('orders'), Feed('chat'))
    """

    def __init__(self) -> None:
        self._queues: dict[str, _DeclaredQueue] = {}
        self._feeds: dict[str, Callable[[Database], FeedConfig]] = {}
        self._targets: dict[str, Callable[[Any], object]] = {}
        self._columns: dict[str, object] = {}

    @overload
    def queue(
        self,
        name: str,
        *,
        key: tuple[type[A], type[B]],
        value: type[V] | str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> CombineQueue[tuple[A, B], V]: ...
    @overload
    def queue(
        self,
        name: str,
        *,
        key: tuple[type[A], type[B], type[C]],
        value: type[V] | str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> CombineQueue[tuple[A, B, C], V]: ...
    @overload
    def queue(
        self,
        name: str,
        *,
        key: type[K] | KeyName | None = None,
        value: type[V] | str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> CombineQueue[K, V]: ...
    def queue(
        self,
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
    ) -> CombineQueue[Any, Any]:
        """Declare a queue, once for each, and return it; type checkers infer its types as for `cq.configure`.

        The settings are those of `cq.configure`, which documents them: the types, `combiner`, `buckets`, `audit`, and
        `window`, `rollup` and `expire` for time; `observers`, `links` and `decider`. A plain function is an observer of
        version 1, and `cq.observers.top.top()` one that keeps a top. Nothing is stored: `configure_all`, or `cq
        configure --app MODULE:APP`, creates the queue, and changes it to these settings.

        Raises:
            InvalidConfiguration: the queue's name, an observer or a decider is invalid, or the combiner is unknown.

        >>> App().queue("hits", key=(str, str), value=int, window="10m/10s", expire="90d").name
        'hits'
        """
        settings = {
            "key": key,
            "value": value,
            "buckets": buckets,
            "links": links,
            "decider": None if decider is None else resolve_decider(decider),
            "audit": audit,
            "window": window,
            "expire": expire,
            "rollup": rollup,
        }
        self._queues[keys.check_name(name)] = _DeclaredQueue(
            None if combiner is None else resolve(combiner),
            tuple(observers_of(observers or ())),
            {what: given for what, given in settings.items() if given is not None},
        )
        return CombineQueue(name, combiner=combiner if isinstance(combiner, Combiner) else None)

    def feed(
        self,
        name: str,
        *,
        numbers: bool | None = None,
        unread: bool | None = None,
        keep: Span | None = None,
        keep_last: int | None = None,
    ) -> Feed[M]:
        """Declare a feed, and return it; `cq.feeds.Feed.configure` documents the settings.

        Nothing is stored: `configure_all`, or `cq configure --app MODULE:APP`, creates the feed. For type checkers,
        `chat: Feed[str] = app.feed("chat")` has messages of str. Raises `InvalidConfiguration`.
        """
        # Late: few applications have feeds.
        from cq.feeds.feed import Feed

        made: Feed[M] = Feed(name)
        self._feeds[name] = partial(
            made.configure, numbers=numbers, unread=unread, keep=keep, keep_last=keep_last
        )
        return made

    def observer(
        self, name: str, *, version: int = 1, clear: Callable[[Any], object] | None = None
    ) -> Callable[[F], F]:
        """Declare the decorated function as an observer of a queue, after the observers declared so far.

        The observer has the name of the function. Increase `version` when its results change; `clear` is as in
        `cq.Observer`.

        >>> app = App()
        >>> @app.observer("words")
        ... def alert(tr, changes): ...
        """

        def declare(function: F) -> F:
            declared = self._queues.get(keys.check_name(name), _NOTHING)
            observer = replace(Observer.of(function), version=version, clear=clear)
            self._queues[name] = replace(declared, observers=(*declared.observers, observer))
            return function

        return declare

    @property
    def targets(self) -> Mapping[str, Callable[[Any], object]]:
        """{name: function that makes a target}."""
        return self._targets

    def target(self, name: str) -> Callable[[F], F]:
        """Declare the decorated class or function as the target of links `cq.links.app(name)`.

        It is called with a `cq.links.Source`, and returns a `cq.links.Target`; so it can be a class of one.
        """

        def declare(make: F) -> F:
            self._targets[name] = make
            return make

        return declare

    @property
    def declared_columns(self) -> Mapping[str, object]:
        """{`name@version`: columns of tables}."""
        return self._columns

    def columns(self, name: str, columns: object, *, version: int = 1) -> str:
        """Declare columns for links to tables; returns `name@version`, the argument of `cq.links.table`.

        Args:
            name: a name of your choice; a later declaration with the same name and version replaces this one.
            columns: `cq.links.Columns`.
            version: raise it with every change of the functions; workers then send the whole table again.

        Raises:
            InvalidConfiguration: the name is empty or contains `@`.
        """
        if not name or "@" in name:
            raise InvalidConfiguration(f"expected the name of columns to be without '@', got: {name!r}")
        self._columns[f"{name}@{version}"] = columns
        return f"{name}@{version}"

    @property
    def queues(self) -> list[str]:
        """The names of the queues that `queue` declares, in this order."""
        return [name for name, declared in self._queues.items() if declared.settings is not None]

    @property
    def feeds(self) -> Mapping[str, Callable[[Database], FeedConfig]]:
        """{name of a declared feed: function that creates it in a database, or changes its settings}."""
        return self._feeds

    def configure(self, db: Database, name: str, **settings: Unpack[AllSettings]) -> CombineQueue[Any, Any]:
        """Call `cq.configure` with the declared settings of a queue, and others in place of them or in addition."""
        return configure(db, name, **self.settings(name, settings))

    def configure_all(self, db: Database, **settings: Unpack[AllSettings]) -> None:
        """Create or change all declared feeds and queues, in the order of their declarations, and feeds first.

        The given settings are those of each queue, in place of the declared ones: `links=[]` for tests without targets.
        Raises as `cq.configure` does.
        """
        for configure_feed in self._feeds.values():  # queues may report to them
            configure_feed(db)
        for name in self.queues:
            self.configure(db, name, **settings)

    def settings(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The declared settings of a queue, combiner and observers included, and the given ones, for `cq.configure`."""
        if name not in self._queues:
            return dict(given)
        declared = self._queues[name]
        settings = {**(declared.settings or {}), "observers": declared.observers, **given}
        return settings if declared.combiner is None else {**settings, "combiner": declared.combiner}

    def code(self, wanted: QueueConfig, built_in: Mapping[str, Factory] | None = None) -> QueueCode:
        """The code for a configuration; raises `CodeMismatch`, which names the missing code.

        `built_in` has the factories of the built-in observers, by name.
        """
        shape, combiner = self._shape(wanted)
        declared = {each.name: each for each in self._queues.get(wanted.name, _NOTHING).observers}
        functions = tuple(
            _function(shape, each, declared.pop(each.name, None), built_in or {}) for each in shape.observers
        )
        if declared:
            raise CodeMismatch(
                f"queue {wanted.name!r} does not ask for the observers {', '.join(declared)} of this process: "
                "configure it with the application that declares them"
            )
        return QueueCode(shape, combiner, functions, self._decider(shape))

    def combiner(self, wanted: QueueConfig) -> Combiner:
        """The combiner for reads of a queue, which need no observers; raises `CodeMismatch`."""
        return self._shape(wanted)[1]

    def _shape(self, wanted: QueueConfig) -> tuple[QueueConfig, Combiner]:
        """The shape of a queue that this process can combine, with its combiner; raises `CodeMismatch`.

        While the version of the combiner is being changed, the code of the former version gets the former shape, until
        this is drained, and that of the new version gets nothing before.
        """
        former = wanted.under_former_shape() if wanted.conversion else None
        if former is None:
            return wanted, self._combiner_of(wanted)
        combiner = self._declared_combiner(wanted)
        if combiner is not None and Named(combiner.name, combiner.version) == wanted.combiner:
            raise CodeMismatch(
                f"the combiner of queue {wanted.name!r} is being changed from {former.combiner} to {wanted.combiner}: "
                f"workers with {former.combiner} must first combine the updates that were queued before, and nothing "
                "may be set aside; see `cq status`"
            )
        return former, self._combiner_of(former)

    def _declared_combiner(self, wanted: QueueConfig) -> Combiner | None:
        """The combiner of this process for a queue."""
        names = [
            wanted.name,
            *([wanted.level_of.queue] if wanted.level_of else []),
        ]  # a level has that of its queue
        own = (self._queues.get(name, _NOTHING).combiner for name in names)
        return next(filter(None, own), built_in_combiner(wanted.combiner.name))

    def _combiner_of(self, wanted: QueueConfig) -> Combiner:
        """The combiner that a configuration names."""
        combiner = self._declared_combiner(wanted)
        if combiner is None or Named(combiner.name, combiner.version) != wanted.combiner:
            raise CodeMismatch(
                f"queue {wanted.name!r} asks for the combiner {wanted.combiner}, this process has "
                f"{Named(combiner.name, combiner.version) if combiner else 'none of that name'}: "
                "start it with --app and the application that declares it"
            )
        if wanted.conversion is not None and wanted.conversion.converts and combiner.convert is None:
            raise CodeMismatch(
                f"queue {wanted.name!r} asks for a combiner {wanted.combiner} that converts values of "
                f"{wanted.conversion.former}, this process has one without a function `convert`"
            )
        try:
            require_packages(wanted.value)
        except MissingPackage as error:
            raise CodeMismatch(f"queue {wanted.name!r}: {error}") from error
        return combiner

    def _decider(self, wanted: QueueConfig) -> Decider | None:
        """The decider of this process for a queue; raises `CodeMismatch`."""
        declared: Decider | None = (self._queues.get(wanted.name, _NOTHING).settings or {}).get("decider")
        asked = wanted.decider
        if asked is None:
            if declared is None:
                return None
            raise CodeMismatch(
                f"queue {wanted.name!r} does not ask for the decider {declared.name} of this process: "
                "configure it with the application that declares it"
            )
        if declared is None and asked.is_built_in:
            declared = built_in_decider(asked.settings, asked.version, asked.keep)
        if declared is None or DeciderConfig.of(declared)._replace(keep=asked.keep) != asked:
            have = f"{declared.name}@{declared.version}" if declared else "none of that name"
            raise CodeMismatch(
                f"queue {wanted.name!r} asks for the decider {asked}, this process has {have}: "
                "start it with --app and the application that declares it"
            )
        return declared


def _function(
    config: QueueConfig,
    wanted: ObserverConfig,
    declared: Observer | ObserverSpec | None,
    built_in: Mapping[str, Factory],
) -> ObserverFunction:
    """The function of an observer in a configuration."""
    if isinstance(declared, Observer) and (declared.version, {}) == (wanted.version, wanted.settings):
        return declared.function
    if isinstance(declared, ObserverSpec) and (declared.version, declared.settings) == (
        wanted.version,
        wanted.settings,
    ):
        factory = declared.factory or built_in.get(kind_of(declared.name))
    else:
        factory = built_in.get(wanted.kind) if declared is None and wanted.is_built_in else None
    if factory is None:
        have = Named(declared.name, declared.version) if declared else "none of that name"
        raise CodeMismatch(
            f"queue {config.name!r} asks for the observer {wanted}, this process has {have}: "
            "start it with --app and the application that declares it"
        )
    return factory(config, wanted.settings, wanted.generation)
