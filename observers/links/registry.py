"""The one place that opens the targets of links: by the kind of the link, whose module is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cq.app import App
from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.config.store_id import ensure_store_id
from cq.distribution import install_command
from cq.errors import CqError, MissingPackage, NotInStore
from cq.keys.link import OUTBOX, LinkKeys, NoteKeys, OutboxKeys
from cq.observers.links.operate import OpenLink
from cq.observers.links.outbox.state import existing_settings
from cq.observers.links.sender import Sender
from cq.observers.links.spec import TO, find_link, kind_of_link, link_name
from cq.observers.links.state import read_control, wake_keeper
from cq.observers.links.target import LinkFailed, Source, Target
from cq.observers.links.task import link_tasks, noted_tasks
from cq.observers.scheduling.task import Task
from cq.plain_text import describe
from cq.store.api import Database, Transaction, error_code
from cq.store.transact import transact

if TYPE_CHECKING:
    from cq.observers.links.outbox.operate import OpenOutbox
    from cq.observers.links.sql.verify import TableCheck

_MODULES: Final[Mapping[str, str]] = {
    "sql": "sql.target",
    "webhook": "targets.webhook",
    "kafka": "targets.kafka",
    "queue": "targets.queue",
    "app": "targets.app",
}
"""{kind: module with a function `make_target(source, config, settings, app)`}. A new kind needs a line here."""
_EXTRAS: Final = {"urllib3": "webhook", "confluent_kafka": "kafka"}


def sender_of(db: Database, config: QueueConfig, observer: ObserverConfig, app: App | None = None) -> Sender:
    """The sender of a link.

    Raises:
        MissingPackage: a package is missing.
        LinkFailed: a declaration of the application is missing.
        InvalidConfiguration: the stored settings are not those of a link.
    """
    source = Source(ensure_store_id(db), config.name, link_name(observer.name), observer.generation)
    kind = kind_of_link(config.name, observer.name, observer.settings)
    settings = {what: setting for what, setting in observer.settings.items() if what != TO}
    try:
        module = _imported(_MODULES[kind])
    except ImportError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingPackage(
            f"links of the kind {kind} need a package that is not installed: run `{install_command(extra)}`"
        ) from error
    target: Target = module.make_target(source, config, settings, app or App())
    return Sender(db, source, target)


def tasks_of(db: Database, app: App | None, config: QueueConfig, observer: ObserverConfig) -> list[Task]:
    """The tasks of a worker for a link of a queue, see `link_tasks`."""
    return link_tasks(db, config, observer, partial(sender_of, db, config, observer, app))


@contextmanager
def opened_link(
    db: Database,
    queue: str,
    link: str | None = None,
    *,
    app: App | None = None,
) -> Iterator[OpenLink]:
    """A link of a queue; closes its connections at exit.

    Args:
        db: a database of either store.
        queue: the queue's name.
        link: the link's name; None: the queue's only link.
        app: the application, with its targets and the columns of its tables.

    Raises:
        QueueNotConfigured: there is no such queue.
        NotInStore: there is no such link.
        MissingPackage: a package is missing.
        LinkFailed: a declaration of the application is missing.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    observer = find_link(config, link)
    sender = sender_of(db, config, observer, app)
    try:
        sender.open()
        yield OpenLink(db, config, observer, sender)
    except Exception as error:
        if isinstance(error, CqError) or observer.settings[TO] != "app" or error_code(error) is not None:
            raise
        raise LinkFailed(f"the target of the application has failed: {describe(error)}") from error
    finally:
        sender.close()


def table_check(link: OpenLink) -> TableCheck:
    """The comparison of a link's table with the values; raises `NotInStore` for a link of another kind."""
    if link.observer.settings[TO] != "sql":
        raise NotInStore(
            f"link {link.keys.link!r} of queue {link.queue!r} has no table: cq cannot read what its target keeps, "
            "compare it there"
        )
    check: TableCheck = _imported("sql.verify").TableCheck(link)
    return check


def pause_link(db: Database, queue: str, link: str | None = None, *, paused: bool) -> str:
    """Pause or resume a link of a queue, its only one, or its outbox; returns the name. Raises as `opened_link`.

    While it is paused, workers do not use the other system. A resume ends a pause that the target has asked for, too.
    """

    def write(tr: Transaction) -> str:
        found = _existing_keys(tr, queue, link)  # in this transaction: else a removed link would get a state
        tr.set(found.control, replace(read_control(tr, found), paused=paused).to_bytes())
        if not paused:
            tr.clear_range(*found.failures())
        wake_keeper(tr, found)
        return found.link

    return transact(db, write)


def _existing_keys(tr: Transaction, queue: str, link: str | None) -> NoteKeys:
    if link == OUTBOX:
        existing_settings(tr, queue)  # raises if the queue has no outbox
        return OutboxKeys(queue)
    return LinkKeys(queue, link_name(find_link(read_config(tr, queue), link).name))


@contextmanager
def opened_outbox(db: Database, queue: str) -> Iterator[OpenOutbox]:
    """The outbox of a queue, which is among its links; closes the application's database at exit.

    Raises `InvalidConfiguration` if the queue has no outbox.
    """
    opened: OpenOutbox = _imported("outbox.operate").opened(db, queue)
    try:
        yield opened
    finally:
        opened.source.database.close()


def outbox_tasks(db: Database, queue: str) -> list[Task]:
    """The task of a worker for a queue's outbox, see `noted_tasks`."""
    return noted_tasks(db, OutboxKeys(queue), lambda: _imported("outbox.task").make_tasks(db, queue))


def _imported(module: str) -> Any:
    """A module of this room, imported when it is used: most processes start without SQLAlchemy and clients."""
    return import_module(f"cq.observers.links.{module}")
