"""The tasks of links and outboxes, which store their failures for `cq link list` and doctor."""

from __future__ import annotations

import logging
from abc import abstractmethod
from contextlib import suppress
from typing import Final

from cq import runtime
from cq.backoff import delay_after
from cq.failure import is_failure
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.link import NoteKeys
from cq.observers.links.state import LinkFailure, LinkStop, is_outdated, stop
from cq.observers.links.target import LinkFailed, LinkStopped, OutdatedBatch
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.plain_text import describe, printable
from cq.store.api import Database, Transaction
from cq.store.transact import transact

log = logging.getLogger("cq.link")

LONGEST_PAUSE: Final = 30.0
"""The longest delay before the next try; every failure of every bucket is stored and reported."""
STOPPED_SECONDS: Final = 5.0
"""How often to check whether a link that is stopped, or paused by an operator or its target, may continue."""


class NotedTask(Task):
    """A task of a link or an outbox: its failures are noted, and retried after pauses that delay no other task.

    Storing a failure notifies the task that owns the work: if the failing worker had lost that task to another worker,
    the new owner succeeds and clears the note.

    Args:
        db: a database of either store.
        notes: the keys of its notes.
        bucket: the bucket's number; None for the keeper, and for an outbox.
        generation: of the observer that fills the log; 0: no observer does.

    Attributes:
        problem: the latest error, or the reason of a stop; empty if the latest step has succeeded.
        is_waiting: whether the task is stopped, waits for room in a full queue, or pauses as the target has asked.
    """

    is_outside = True
    outdated_seconds = 0.0
    """How soon to run again after another worker, a rebuild or a rebase was faster."""

    def __init__(self, db: Database, notes: NoteKeys, bucket: int | None, generation: int = 0) -> None:
        self.db = db
        self.queue = notes.queue
        self.notes = notes
        self._noted_bucket = bucket
        self._generation = generation
        self.problem, self.is_waiting = "", False
        self._epoch = 0  # of the link, as the present step has read it
        self._tries = 0  # in a row, of this worker: a new worker starts with short pauses
        self._may_be_noted = True  # also by an earlier worker
        self._asked_until = 0.0  # the end of a pause that the target has asked for

    @property
    def kind(self) -> bytes:
        """All tasks of a link, of whichever class: the target that they wait for is the same."""
        return self.notes.prefix

    @property
    def is_failing(self) -> bool:
        return self._tries > 0

    def run(self) -> float:
        """Run a step; returns the seconds to wait before the next one, as `Task.run`. Never raises an `Exception`."""
        try:
            return self._asked_seconds() or self._step()
        except OutdatedBatch:
            return self.outdated_seconds
        except LinkStopped as error:
            return self._stop(error)
        except BaseException as error:  # must delay this task only
            if not is_failure(error):
                raise
            return self._fail(error)

    @abstractmethod
    def _step(self) -> float:
        """Do the work of a step; returns as `run`."""

    def _fail(self, error: BaseException) -> float:
        """Note an error; returns after how many seconds to try again."""
        text = describe(error)
        self._tries += 1
        pause = delay_after(self._tries, longest=LONGEST_PAUSE)
        asked = error.pause if isinstance(error, LinkFailed) else 0.0
        is_asked = asked >= pause
        if is_asked:
            pause = asked
            self._asked_until = runtime.monotonic() + pause
        emit("link_failed", queue=self.queue, link=self.notes.link, task=str(self), pause=pause, error=text)
        self.problem, self.is_waiting = printable(text), is_asked
        self._may_be_noted = True
        store_failure(self.db, self.notes, self._noted_bucket, self._generation, text)
        return min(pause, STOPPED_SECONDS) if is_asked else pause

    def _asked_seconds(self) -> float:
        """The seconds until the next look at a pause that the target has asked for; 0.0: there is none.

        A resume or a rebase of the link clears the notes, which ends the pause.
        """
        left = self._asked_until - runtime.monotonic()
        if left <= 0.0 or transact(self.db, self._stored_note) is None:
            self._asked_until = 0.0
            return 0.0
        return min(left, STOPPED_SECONDS)

    def _stop(self, error: LinkStopped) -> float:
        """Stop all buckets of the link; returns after how many seconds to check whether it may continue.

        Reports the stop by an event, if it is in effect: of all workers that find the cause, one reports it.
        """
        text = str(error)
        self._wait(text)
        wanted = LinkStop(self._epoch, text, self._generation, runtime.time(), error.resumes)
        is_reviewed = self._noted_bucket is None
        with suppress(Exception):  # the store may be the cause; the next run stops the link again
            if transact(self.db, lambda tr: stop(tr, self.notes, wanted, is_reviewed=is_reviewed)):
                emit("link_stopped", queue=self.queue, link=self.notes.link, task=str(self), error=text)
        return STOPPED_SECONDS

    def _must_wait(self, epoch: int, reason: str | None) -> bool:
        """Begin a step in this epoch of the link; returns whether it must wait, for this reason."""
        self._epoch = epoch
        if reason is not None:
            self._wait(reason)
        return reason is not None

    def _wait(self, reason: str) -> None:
        """Note that the task waits until an operator has made a decision, or until a full queue has room.

        This is no failure: another worker could not do more.
        """
        self.problem, self.is_waiting = reason, True
        self._tries = 0

    def _clear_note(self) -> None:
        """Clear the note, if there is one: the link works."""
        self._tries = 0
        self.problem, self.is_waiting = "", False
        if self._may_be_noted:
            transact(self.db, self._clear_stored)
            self._may_be_noted = False

    def _stored_note(self, tr: Transaction) -> bytes | None:
        return tr.get(self.notes.failure(self._noted_bucket)).value

    def _clear_stored(self, tr: Transaction) -> None:
        if self._stored_note(tr) is not None:
            tr.clear(self.notes.failure(self._noted_bucket))


def store_failure(db: Database, notes: NoteKeys, bucket: int | None, generation: int, text: str) -> None:
    """Store an error, unless the link has another generation; the arguments are those of `NotedTask`."""

    def write(tr: Transaction) -> None:
        if is_outdated(tr, notes, generation):
            return
        key = notes.failure(bucket)
        tr.set(key, LinkFailure.from_bytes(tr.get(key).value).again(text).to_bytes())
        notification = notes.keeper if bucket is None else notes.notification(bucket)
        tr.set_versionstamped_value(notification, INCOMPLETE_VERSIONSTAMP)

    try:
        transact(db, write)
    except Exception as lost:  # noqa: BLE001 - the store may be the cause
        log.warning("queue %r: the error could not be stored: %s", notes.queue, lost)
