"""The configured outbox of a queue: its database, and the task of a worker.

Functions here import SQLAlchemy when they need it: commands without outboxes must start without that delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cq.config.store_id import ensure_store_id
from cq.errors import InvalidConfiguration, NotInStore
from cq.keys.outbox import OutboxKeys
from cq.observers.export.batch import ExportFailed
from cq.observers.export.state import read_failures, read_stopped
from cq.observers.outbox.state import OutboxSettings, notify, read_settings
from cq.observers.scheduling.task import Task
from cq.store.api import Database, TransactionRead
from cq.store.transact import transact

if TYPE_CHECKING:
    from cq.observers.outbox.task import OutboxSource


def find_outbox(db: Database, queue: str, *, url_env: str | None = None) -> OutboxSource:
    """Where the rows of a queue's outbox are.

    Args:
        db: a database of either store.
        queue: the queue's name.
        url_env: the environment variable with the URL; None: the configured one.

    Raises `InvalidConfiguration` if the queue has no outbox.
    """
    settings = transact(db, lambda tr: read_settings(tr.snapshot, queue))
    if settings is None:
        raise NotInStore(f"queue {queue!r} has no outbox: run `cq outbox init {queue}` first")
    return source_of(db, settings, url_env)


def source_of(db: Database, settings: OutboxSettings, url_env: str | None = None) -> OutboxSource:
    """The source that settings describe."""
    from cq.observers.outbox.task import OutboxSource
    from cq.observers.sql.engine import ReportingDatabase

    database = ReportingDatabase(env=url_env or settings.url_env, noun="application's database")
    return OutboxSource(database, settings.schema, ensure_store_id(db))


def outbox_tasks(db: Database, queue: str) -> list[Task]:
    """The task of a worker for a queue's outbox, which is notified now.

    If this process lacks the URL or driver of the database, returns no tasks and stores the failure: other workers may
    have them. The queue's passes are not affected.
    """
    from cq.observers.export.failure_note import FailureNote
    from cq.observers.outbox.task import OutboxTask

    try:
        source = find_outbox(db, queue)
        source.database.check_url()
    except (ExportFailed, InvalidConfiguration) as error:
        FailureNote(db, OutboxKeys(queue), None).give_up(f"outbox of queue {queue!r}", error)
        return []
    transact(db, lambda tr: notify(tr, queue))
    return [OutboxTask(db, queue, source)]


def read_problem(tr: TransactionRead, queue: str) -> tuple[bool, str]:
    """Whether an outbox is stopped, and its latest error; empty if there is none."""
    outbox = OutboxKeys(queue)
    stopped = read_stopped(tr, outbox)
    if stopped is not None:
        return True, stopped
    return False, next((each.error for each in read_failures(tr, outbox).values()), "")
