"""The built-in observers, which need no code of the application: their factories, and their tasks for workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cq.app import App, Factory
from cq.config.queue import TOTALS, QueueConfig
from cq.errors import InvalidConfiguration, NotInStore
from cq.feeds.config import is_feed
from cq.keys import QueueKeys
from cq.observer import ObserverFunction, ObserverSpec
from cq.observers import distinct, sessions, thresholds, window_totals
from cq.observers.feeds import observer as feedobserver
from cq.observers.feeds.observer import feed_spec
from cq.observers.links.observer import link_observer
from cq.observers.links.registry import tasks_of
from cq.observers.scheduling.members import LINK, PUBLISH, TaskId
from cq.observers.scheduling.task import WorkPart
from cq.observers.top import index
from cq.observers.top.publisher import publishers
from cq.store.api import Database, TransactionRead


def _checked(make: Factory, kind: str, spec: Callable[..., ObserverSpec]) -> Factory:
    """Return the factory of a kind, for settings of any process: it accepts only settings that `spec` can return."""

    def checked(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
        try:
            fits = spec(**settings).settings == settings
        except (TypeError, AttributeError):  # unknown settings, or settings of other types
            fits = False
        if not fits:
            raise InvalidConfiguration(
                f"the observer {kind!r} of queue {config.name!r} has settings that are invalid for its kind"
            )
        return make(config, settings, generation)

    return checked


def _top(score: bool, group: bool | str, every: int, **settings: Any) -> ObserverSpec:
    # Without functions: `index.observer` says if it lacks those of an application.
    spec = index.top(every=every / 1000, **settings)
    by = group if group == index.LAST_PART else bool(group)
    return replace(spec, settings={**spec.settings, "score": bool(score), "group": by})


FACTORIES: Final[Mapping[str, Factory]] = {
    "top": _checked(index.observer, "top", _top),
    LINK: link_observer,
    "feed": _checked(feedobserver.observer, "feed", feed_spec),
    distinct.NAME: _checked(distinct.observer, distinct.NAME, distinct.distinct),
    sessions.NAME: _checked(sessions.observer, sessions.NAME, sessions.sessions),
    thresholds.NAME: _checked(thresholds.observer, thresholds.NAME, thresholds.thresholds),
    TOTALS: window_totals.observer,
}
"""{kind: factory of the observer's function}; they raise `InvalidConfiguration` for invalid settings."""


def check_receivers(tr: TransactionRead, config: QueueConfig) -> None:
    """Raise `NotInStore` if a built-in observer of a queue writes to a feed or a queue that is not configured."""
    for each in config.observers:
        feed, into = each.settings.get("feed"), each.settings.get("into")
        if not each.is_built_in or each.kind == LINK:
            continue
        if feed is not None and not is_feed(tr, feed):
            raise NotInStore(
                f"queue {config.name!r} reports to the feed {feed!r}, which is not configured: "
                f"run `cq feed configure {feed}`"
            )
        if into is not None and tr.get(QueueKeys(into).config).value is None:
            raise NotInStore(
                f"the observer {each.name!r} of queue {config.name!r} adds to queue {into!r}, which is not configured: "
                "configure it, or remove the observer (`cq.admin.remove_observer`)"
            )


def observer_parts(db: Database, config: QueueConfig, app: App | None = None) -> Iterator[WorkPart]:
    """The work that a queue's observers make in addition to its passes."""
    for observer in config.observers:
        # A top may have functions of the application. One by the last part of keys has no clouds.
        if observer.kind == "top" and observer.settings.get("group") in (True, False):
            first = TaskId(PUBLISH, config.name, 0)
            yield WorkPart(first, config, partial(publishers, db, config, observer))
        if observer.is_built_in and observer.kind == LINK:
            first = TaskId.of_link(config.name, observer.generation)
            yield WorkPart(first, config, partial(tasks_of, db, app, config, observer))
