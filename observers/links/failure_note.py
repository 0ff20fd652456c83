"""The stored note of a link's failure, for `cq link list` and doctor, and the tasks that write it."""

from __future__ import annotations

import logging
from abc import abstractmethod
from contextlib import suppress
from typing import Final

from cq import runtime
from cq.backoff import delay_after
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.notes import NoteKeys
from cq.observers.links.state import LinkFailure, LinkStop, is_outdated, read_failures, stop
from cq.observers.links.target import LinkFailed, LinkStopped, OutdatedBatch
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.plain_text import describe
from cq.store.api import Database, Transaction
from cq.store.transact import transact

log = logging.getLogger("cq.link")

LONGEST_PAUSE: Final = 30.0
"""The longest delay before the next try; every failure of every bucket is stored and reported."""
STOPPED_SECONDS: Final = 5.0
"""How often to check whether a stopped or paused link may continue."""


class FailureNote:
    """The consecutive failures of a bucket of a link, or of its keeper (bucket None).

    Attributes:
        problem: the latest error, or the reason of a stop; empty if the latest step has succeeded.
        is_waiting: whether no worker can do anything about the problem, see `wait`.

    Storing a failure notifies the task that owns the work: if the failing worker had lost that task to another worker,
    the new owner succeeds and clears the note.
    """

    def __init__(self, db: Database, keys: NoteKeys, bucket: int | None, generation: int = 0) -> None:
        self._db = db
        self._keys = keys
        self._bucket = bucket
        self._generation = generation
        self._failure: LinkFailure | None = None
        self._tries = 0  # in a row, of this worker: a new worker starts with short pauses
        self._is_known = False  # whether the note of an earlier worker was read
        self.problem = ""
        self.is_waiting = False

    def failed(self, what: object, error: Exception) -> float:
        """Note an error; returns after how many seconds to try again."""
        text = describe(error)
        self._tries += 1
        pause = delay_after(self._tries, longest=LONGEST_PAUSE)
        if isinstance(error, LinkFailed):
            pause = max(pause, error.pause)
        emit(
            "link_failed",
            queue=self._keys.queue,
            link=self._keys.link,
            task=str(what),
            pause=pause,
            error=text,
        )
        self._note(text)
        return pause

    def stop(self, what: object, epoch: int, generation: int, error: LinkStopped) -> float:
        """Stop all buckets of the link; returns after how many seconds to check whether it may continue.

        Reports the stop by an event, if it is in effect: of all workers that find the cause, one reports it.
        `generation` is the observer's, 0 without an observer.
        """
        text = str(error)
        self.wait(text)
        wanted = LinkStop(epoch, text, generation, runtime.time(), error.resumes)
        with suppress(Exception):  # the store may be the cause; the next run stops the link again
            if transact(self._db, lambda tr: stop(tr, self._keys, wanted, is_reviewed=self._bucket is None)):
                emit("link_stopped", queue=self._keys.queue, link=self._keys.link, task=str(what), error=text)
        return STOPPED_SECONDS

    def wait(self, reason: str) -> None:
        """Note that the task waits until an operator has made a decision, or until a full queue has room.

        This is no failure: another worker could not do more.
        """
        self.problem, self.is_waiting = reason, True
        self._tries = 0

    def give_up(self, what: str, error: Exception) -> None:
        """Note an error that this process cannot recover from; it leaves the link or outbox to other workers."""
        emit("link_left_alone", queue=self._keys.queue, link=self._keys.link, task=what, reason=str(error))
        self._note(describe(error))

    def clear(self) -> None:
        """Clear the note, if there is one: the link works."""
        self._load()
        self._tries = 0
        self.problem, self.is_waiting = "", False
        if self._failure is not None:
            transact(self._db, lambda tr: tr.clear(self._keys.failure(self._bucket)))
            self._failure = None

    def _note(self, text: str) -> None:
        self._load()
        self._failure = failure = (self._failure or LinkFailure()).again(text)
        self.problem, self.is_waiting = failure.error, False
        try:
            transact(self._db, lambda tr: self._write(tr, failure))
        except Exception as lost:  # noqa: BLE001 - the store may be the cause
            log.warning("queue %r: the error could not be stored: %s", self._keys.queue, lost)

    def _write(self, tr: Transaction, failure: LinkFailure) -> None:
        if is_outdated(tr, self._keys, self._generation):
            return
        tr.set(self._keys.failure(self._bucket), failure.to_bytes())
        notification = self._keys.keeper if self._bucket is None else self._keys.notification(self._bucket)
        # A failing worker may have lost its task. The owner then runs, succeeds, and clears this note.
        tr.set_versionstamped_value(notification, INCOMPLETE_VERSIONSTAMP)

    def _load(self) -> None:
        """Read the note of an earlier worker, once."""
        if self._is_known:
            return
        try:
            found = transact(self._db, lambda tr: read_failures(tr.snapshot, self._keys))
        except Exception:  # noqa: BLE001 - the store may be the cause
            return
        self._failure = found.get(self._bucket)
        self._is_known = True


class NotedTask(Task):
    """A task of a link or an outbox: its failures are noted, and retried after pauses that delay no other task.

    Args:
        db: a database of either store.
        notes: the keys of its notes.
        bucket: the bucket's number; None for the keeper, and for an outbox.
        generation: of the observer that fills the log; 0: no observer does.
    """

    is_outside = True
    outdated_seconds = 0.0
    """How soon to run again after another worker, a rebuild or a rebase was faster."""

    _generation: int | None = None
    """The generation of the observer that fills the log; None: no observer does."""

    def __init__(self, db: Database, notes: NoteKeys, bucket: int | None, generation: int = 0) -> None:
        self.db = db
        self.queue = notes.queue
        self.notes = notes
        self._generation = generation or None
        self._note = FailureNote(db, notes, bucket, generation)
        self._epoch = 0

    @property
    def kind(self) -> bytes:
        """All tasks of a link, of whichever class: the target that they wait for is the same."""
        return self.notes.prefix

    @property
    def problem(self) -> str:  # type: ignore[override]
        """The latest error while the task fails or is stopped, else empty."""
        return self._note.problem

    @property
    def is_waiting(self) -> bool:  # type: ignore[override]
        """Whether the task is stopped, or waits for room in a full queue."""
        return self._note.is_waiting

    def run(self) -> float:
        """Run a step; returns the seconds to wait before the next one, as `Task.run`. Never raises an `Exception`."""
        try:
            return self._step()
        except OutdatedBatch:
            return self.outdated_seconds
        except LinkStopped as error:
            return self._note.stop(self, self._epoch, self._generation or 0, error)
        except Exception as error:  # noqa: BLE001 - any error must delay this task only
            return self._note.failed(self, error)

    @abstractmethod
    def _step(self) -> float:
        """Do the work of a step; returns as `run`."""
