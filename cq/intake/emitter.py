"""`Emitter`: increments that are many and small, merged in memory and committed together.

A transaction for each increment is mostly the price of the transaction. An emitter gathers the increments of all
threads of a process and merges them by key, with the queue's combiner; a thread of its own commits them, a flush at a
time. It is the one loop and the one thread that an application gets from cq: whoever calls must not have to wait for
others' increments to be enough, and an event loop must not wait for a store at all.

Flushes are committed in the order in which they were filled, and each has an operation id that its tries share: the
emitter's, and a number. The store remembers the latest of each emitter, and no two commits can write the same. So
updates of a key count once and in the order of the calls, whatever becomes of a commit's answer; and unlike those of
`CombineQueue.add`, which come from anywhere and in any order, these ids leave one key behind, and not one for each.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from cq import keys, runtime
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import (
    CodeMismatch,
    CqError,
    EmitterFull,
    FlushFailed,
    InvalidConfiguration,
    InvalidData,
    TooLarge,
)
from cq.intake.emitter_buffer import EmitterBuffer, EmitterStatistics
from cq.intake.flush import Also, Flush, Increment, Intake
from cq.queue.combine_queue import CombineQueue, own_combiner
from cq.queue.limits import is_positive
from cq.store.api import Database, Transaction
from cq.store.transact import transact, transact_noting
from cq.windows.window import Window

if TYPE_CHECKING:
    from asyncio import Future

MODES: Final = ("durable", "fast")
_SMALL: Final = 1 << 32  # of an increment that is taken in at once
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

log = logging.getLogger("cq.intake.emitter")


class Emitter:
    """Adds increments of one queue, from any thread and from asyncio, many of them in one transaction.

    Make one for each queue and process, after forking, and close it at the end; it is a context manager, too. What
    is left in it when the process ends in good order is flushed then; a signal that kills the process, as SIGTERM does
    unless it is handled, is no good order.

    Args:
        queue: the queue; with its combiner, `CombineQueue(name, combiner=...)`, if that is one of your own. In a queue
            with a window, or a `Window`, increments count as of when they are committed.
        db: a database of either store.
        mode: `durable`: a call returns, or its awaitable resolves, when its increments are committed, together with
            those of all other callers that wait. `fast`: it returns at once; what is not committed is lost when the
            process dies.
        every: seconds that `fast` gathers increments before it flushes them.
        at_most: how many increments may wait to be committed, the most that a death can cost. `fast` flushes as soon
            as half of them are there.
        timeout: seconds that a call waits for room when so many wait, that `flush` waits, and that `close` does.

    Raises `InvalidConfiguration` for a setting that is none, `QueueNotConfigured`, `CodeMismatch` when the combiner is
    missing, and `FDBError`: it reads the queue's configuration.
    """

    def __init__(
        self,
        queue: CombineQueue | Window,
        db: Database,
        *,
        mode: str = "durable",
        every: float = 0.1,
        at_most: int = 10_000,
        timeout: float = 10.0,
    ) -> None:
        _check_settings(mode, every, at_most, timeout)
        self.queue = queue
        self.mode = mode
        self.at_most = at_most
        self.timeout = timeout
        self._db = db
        self._id = runtime.token_bytes(keys.EMITTER_ID_BYTES)
        config = transact(db, lambda tr: read_config(tr.snapshot, queue.name))
        self._intake = Intake(config, own_combiner(queue, config))
        self._is_durable = mode == "durable"
        self._buffer = EmitterBuffer(self._intake, is_durable=self._is_durable, every=every, at_most=at_most)
        self._closing = runtime.event()
        self._take_back = runtime.at_exit(self._at_exit)
        _emitters.add(self)
        runtime.start_thread(self._run, f"cq-emitter-{queue.name}")

    def __repr__(self) -> str:
        return f"Emitter({self.queue!r}, mode={self.mode!r})"

    def __enter__(self) -> Emitter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Calls

    def emit(self, key: Any, update: Any = 1) -> None:
        """Add an update of a key; what it takes for and guarantees is up to the mode.

        Raises:
            InvalidData, TooLarge: the queue takes no such key or update; nothing was taken.
            EmitterFull: there was no room within `timeout` seconds; nothing was taken.
            EmitterClosed: nothing was taken.
            FlushFailed: only in `durable` mode; whether the update may count all the same, it says itself.
        """
        flush = self._taken(key, update)
        if flush is None:
            self.emit_many(((key, update),))
        elif self._is_durable:
            flush.done.wait()
            self._check(flush)

    def _taken(self, key: Any, update: Any, done: Future[None] | None = None) -> Flush | None:
        """The flush that has taken in an increment of the commonest kind, and who awaits it; None if none has."""
        intake, buffer = self._intake, self._buffer
        if type(key) is not intake.plain_key or type(update) is not int or not -_SMALL < update < _SMALL:
            return None
        with buffer.lock:
            flush = buffer.open
            if flush is not None and key in flush.sums:
                flush.sums[key] += update
            else:
                size = intake.plain_size(key)
                if (flush := flush or buffer.flush_for(1, size)) is None:
                    return None
                flush.sums[key] = update
                flush.grow(size)
            flush.count += 1
            if done is not None:
                flush.awaiting.append(done)
            if flush.count >= flush.enough:
                buffer.has_enough(flush)
        return flush

    def emit_many(
        self, updates: Mapping[Any, Any] | Iterable[tuple[Any, Any]], also: Also | None = None
    ) -> None:
        """Add updates, as `emit` does, and all of them in one transaction or none.

        Args:
            updates: `{key: update}`, or pairs of these; `at_most` of them and about 500 kB at once, else `TooLarge`.
            also: only in `durable` mode: called with that transaction, to write what must be there if and only if the
                updates count, such as how far a log of events has been read. It is called in the emitter's thread, once
                for each try, and must be short and write little. If it raises, the flush fails for all its callers,
                and nothing of it counts. What it reads really, the transaction conflicts with, as any other.
        """
        increments = self._increments(updates, also)
        until = runtime.monotonic() + self.timeout
        flush, is_taken = self._buffer.take(increments, also)
        while not is_taken:
            flush.done.wait(self._seconds_left(until))
            flush, is_taken = self._buffer.take(increments, also)
        if self._is_durable:
            flush.done.wait()
            self._check(flush)

    async def emit_async(self, key: Any, update: Any = 1) -> None:
        """As `emit`, for asyncio: where that waits, this awaits.

        A task that is cancelled while it awaits has its update taken or not; it is never taken twice, and once taken
        it counts as if the task had gone on.
        """
        done = _asyncio().Future() if self._is_durable else None
        flush = self._taken(key, update, done)
        if flush is None:
            await self.emit_many_async(((key, update),))
        elif done is not None:
            await done
            self._check(flush)

    async def emit_many_async(
        self, updates: Mapping[Any, Any] | Iterable[tuple[Any, Any]], also: Also | None = None
    ) -> None:
        """As `emit_many`, for asyncio; `also` is no coroutine."""
        increments = self._increments(updates, also)
        until = runtime.monotonic() + self.timeout
        flush, is_taken = self._buffer.take(increments, also)
        while not is_taken:
            await self._settled(flush, self._seconds_left(until))
            flush, is_taken = self._buffer.take(increments, also)
        if self._is_durable:
            await self._settled(flush)
            self._check(flush)

    def flush(self) -> None:
        """Commit what was taken before this call, and wait for it, at most `timeout` seconds.

        Raises `FlushFailed` when that is not done in time, or was given up; what is not done in time goes on.
        """
        last = self._buffer.seal()
        if last is None:
            return
        if not last.done.wait(self.timeout):
            raise FlushFailed(self._told("not committed yet", self._buffer.latest_failure), is_unknown=True)
        self._check(last)

    def close(self) -> None:
        """Take nothing any more, and commit what was taken, within `timeout` seconds. Once closed, it does nothing.

        What is not committed in time is given up: in `durable` mode those who wait for it are told, else this raises
        `FlushFailed`.
        """
        if not self._buffer.refuse(f"the emitter of queue {self.queue.name!r} is closed: make another one"):
            return
        self._take_back()
        self._closing.set()
        last = self._buffer.seal()
        if last is not None and not last.done.wait(self.timeout):
            reason = TimeoutError(self._buffer.latest_failure or f"not done within {self.timeout:g} s")
            left = self._buffer.give_up(reason)
            if left and not self._is_durable:
                count, is_unknown = sum(each.count for each in left), any(each.in_doubt for each in left)
                raise self._failure(count, is_unknown, reason) from reason

    def statistics(self) -> EmitterStatistics:
        """What it has done so far."""
        return self._buffer.statistics()

    # What callers wait for, and are told

    def _increments(self, updates: Any, also: Also | None) -> list[Increment]:
        if also is not None and not self._is_durable:
            raise InvalidData("`also` is for the durable mode: in fast mode nobody is told when it fails")
        increments = self._intake.increments(updates)
        if len(increments) > self.at_most:
            raise TooLarge(
                f"{len(increments):,} updates at once are more than the {self.at_most:,} that the emitter may hold: "
                "emit them in smaller parts, or make it with another at_most"
            )
        return increments

    def _seconds_left(self, until: float) -> float:
        left = until - runtime.monotonic()
        if left > 0:
            return left
        what = f"no room for more within {self.timeout:g} s, nothing was taken"
        raise EmitterFull(self._told(what, self._buffer.latest_failure))

    async def _settled(self, flush: Flush, seconds: float | None = None) -> None:
        """Await that a flush is done, for so long at most."""
        with self._buffer.lock:
            if flush.done.is_set():
                return
            done = flush.awaited(_asyncio().get_running_loop())
        if seconds is None:
            await done
        else:
            await _asyncio().wait([done], timeout=seconds)

    def _check(self, flush: Flush) -> None:
        """Raises what has become of a flush that was given up."""
        if flush.error is not None:
            raise self._failure(flush.count, flush.in_doubt, flush.error) from flush.error

    def _failure(self, count: int, is_unknown: bool, error: Exception) -> FlushFailed:
        fate = "they may count all the same" if is_unknown else "none of them counts"
        return FlushFailed(self._told(f"{count:,} increments are given up, {fate}", error), is_unknown)

    def _told(self, what: str, why: object) -> str:
        return f"emitter of queue {self.queue.name!r}: {what}" + (f": {why}" if str(why) else "")

    # Its thread

    def _run(self) -> None:
        buffer = self._buffer
        while True:
            flush, seconds = buffer.due()
            if flush is not None:
                self._commit(flush)
            elif buffer.is_over:
                return
            else:
                buffer.wake.wait(seconds)

    def _commit(self, flush: Flush) -> None:
        """Commit a flush: until it is, or is given up, in `fast` mode; else with the store's own retries."""
        begun, pause = runtime.monotonic(), _FIRST_PAUSE
        updates: Any = {}
        while self._buffer.begin_try(flush):
            try:
                updates = updates or flush.updates()
                transact_noting(self._db, lambda tr: self._add(tr, flush, updates), flush.doubt)  # noqa: B023 - runs at once
            except Exception as error:  # noqa: BLE001 - whatever it is, callers are told, or it is tried again
                self._buffer.fail_try(flush, error)
            else:
                self._buffer.commit(flush, len(updates), runtime.monotonic() - begun)
                return
            if not flush.done.is_set():
                self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _add(self, tr: Transaction, flush: Flush, updates: Any) -> None:
        """Add what a flush holds, and what goes with it, unless an earlier try has been committed.

        Each try has a read conflict with the emitter's key, and writes it. So of two, one of which may be committed at
        any time yet, the later one to commit fails; and if the first has been, its number is there.
        """
        own = self.queue.keys.emitter(self._id)
        if flush.in_doubt:
            latest = tr.get(own).value
            if latest is not None and keys.parse_flush(latest)[1] == flush.number:
                return
            # Still in doubt: an earlier try may commit after this read, if this one fails.
        tr.add_read_conflict_key(own)  # before the write: what is written already is no conflict
        tr.set_versionstamped_value(own, keys.new_flush(flush.number))
        self._refuse_other_shape(tr)
        self.queue.add(tr, updates)
        for also in flush.also:
            also(tr)

    def _refuse_other_shape(self, tr: Transaction) -> None:
        """What was checked and merged for one configuration must not be added under another."""
        now, then = read_config(tr, self.queue.name), self._intake.config
        if (now.key, now.value, now.combiner) != (then.key, then.value, then.combiner):
            raise CodeMismatch(
                f"queue {self.queue.name!r} has been made anew with other settings since the emitter was made: "
                "make another one"
            )

    def _pause(self, seconds: float) -> None:
        """Wait before the next try; whoever closes the emitter has one at once."""
        if self._closing.is_set():
            runtime.sleep(seconds)
        else:
            self._closing.wait(seconds)

    # The end of the process, and what a fork leaves

    def _at_exit(self) -> None:
        try:
            self.close()
        except CqError as error:
            log.error("%s", error)

    def _forget(self) -> None:
        self._buffer.forget(
            f"the emitter of queue {self.queue.name!r} was made before this process was forked: "
            "open the store and make the emitter only afterwards"
        )


@cache
def _asyncio() -> ModuleType:
    """The module, which takes long to load: whoever awaits has it."""
    import asyncio

    return asyncio


_emitters: Final[WeakSet[Emitter]] = WeakSet()


def _after_fork() -> None:
    for emitter in list(_emitters):
        emitter._forget()


os.register_at_fork(after_in_child=_after_fork)


def _check_settings(mode: object, every: object, at_most: object, timeout: object) -> None:
    if mode not in MODES:
        raise InvalidConfiguration(f"expected the mode to be {' or '.join(MODES)}, got: {codec.brief(mode)}")
    for what, given, kind in (
        ("every", every, float),
        ("at_most", at_most, int),
        ("timeout", timeout, float),
    ):
        if not is_positive(given, kind):
            raise InvalidConfiguration(f"expected {what} to be a positive number, got: {codec.brief(given)}")
