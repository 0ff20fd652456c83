"""`Emitter`: merges many small increments in memory, and commits them together.

The cost of a small increment is mostly that of its transaction. An emitter collects the increments of all threads of a
process and merges them by key, with the queue's combiner. Its own thread commits them, one flush at a time. This is the
only thread and loop that cq starts in an application: a caller must not wait until others have emitted enough. Callers
whose increments must not be lost with the process call `CombineQueue.add_now`, which returns after the commit.

Flushes are committed in the order of their creation. All tries of a flush share an operation id: the emitter's
id and a number. The store keeps the latest number of each emitter, and no two commits can write the same. So each
update counts once, and updates of a key count in the order of the calls, even after unknown commit results. Ids of
`CombineQueue.add` come from anywhere and in any order, and so need a key each; an emitter needs one key in all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any, Final, Generic, Self
from weakref import WeakSet

from cq import keys, runtime
from cq.backoff import delay_after
from cq.config.queue import read_config
from cq.durations import Span, span_of
from cq.encoding import codec
from cq.errors import (
    CodeMismatch,
    CqError,
    EmitterFull,
    FlushFailed,
    InvalidConfiguration,
    StoreError,
    TooLarge,
)
from cq.intake.flush import EmitterBuffer, EmitterStatistics, Flush, Intake, committed_here
from cq.queue.adds import config_for_adds
from cq.queue.checks import AddCheck
from cq.queue.combine_queue import CombineQueue, combiner_of_updates
from cq.queue.limits import is_positive
from cq.queue.requests import refused_update
from cq.store.api import Database, Transaction
from cq.store.transact import transact, transact_chained
from cq.type_variables import K, V
from cq.windows.window import Window

_SMALL: Final = 1 << 32  # bound of increments on the fast path
_LONGEST_PAUSE: Final = 2.0  # of the tries of a flush: callers wait for room

log = logging.getLogger("cq.intake.emitter")


class Emitter(Generic[K, V]):
    """Adds increments of one queue, from any thread and from asyncio, many of them in one transaction.

    A call returns at once, in most cases: uncommitted increments are lost if the process dies. Use
    `CombineQueue.add_now` for increments that must not be lost. Finalizers and signal handlers may emit, too.

    Create one for each queue and process, after a fork, and close it at the end; it is also a context manager. At a
    normal exit of the process it flushes its remaining increments. A signal that kills the process is not a normal
    exit, and SIGTERM is such a signal unless the process handles it; nor is the end of a process that `multiprocessing`
    has forked.

    Args:
        queue: the queue, as `CombineQueue(name, combiner=...)` if the combiner is one of your own. In a queue with a
            window or a roll-up, increments count at the time of their commit.
        db: a database of either store.
        every: the longest time that a flush collects increments.
        at_most: maximum number of uncommitted increments, and so the maximum loss if the process dies. A flush has at
            most half of this number, and about 500 kB.
        timeout: the longest time that a call waits for room, and that `flush` and `close` wait.

    Raises:
        InvalidConfiguration: a setting is invalid, or the queue is a level of a roll-up.
        QueueNotConfigured: there is no such queue in the store.
        CodeMismatch: the queue has a combiner of the application, and `queue` lacks it.
        FDBError: the configuration cannot be read.
    """

    def __init__(
        self,
        queue: CombineQueue[K, V] | Window[K, V],
        db: Database,
        *,
        every: Span = 0.1,
        at_most: int = 10_000,
        timeout: Span = 10.0,
    ) -> None:
        if not isinstance(queue, CombineQueue | Window):
            raise TypeError(
                f"expected a queue, got: {codec.shown(queue)}; write `cq.Emitter(cq.CombineQueue('words'), db)`"
            )
        every, timeout = span_of(every), span_of(timeout)
        _check_settings(every=every, at_most=at_most, timeout=timeout)
        self.queue = queue
        self.at_most = at_most
        self.timeout = timeout
        self._db = db
        self._id = runtime.token_bytes(keys.EMITTER_ID_BYTES)
        config = transact(db, lambda tr: config_for_adds(tr.snapshot, queue.name))
        if config.decider is not None:
            raise refused_update(config)
        self._intake = Intake(config, combiner_of_updates(queue, config))
        self._buffer = EmitterBuffer(self._intake, every=every, at_most=at_most)
        self._closing = runtime.event()
        self._take_back = runtime.at_exit(self._at_exit)
        _emitters.add(self)
        runtime.start_thread(self._run, f"cq-emitter-{queue.name}")

    def __repr__(self) -> str:
        return f"Emitter({self.queue!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Calls

    def emit(self, key: K, update: V = 1) -> None:  # type: ignore[assignment]
        """Add an update of a key; waits only for room in the buffer.

        Raises:
            InvalidData, TooLarge: the queue does not take the key or update; the update is not added.
            EmitterFull: there was no room within `timeout` seconds; the update is not added.
            EmitterClosed: the update is not added.
        """
        if not self._take_small(key, update):
            self.emit_many(((key, update),))

    def _take_small(self, key: Any, update: Any) -> bool:
        """Add a small int to a plain key; returns False if `take` must do it.

        The fast path of the most common increments: without a list of increments, and with few function calls.
        """
        intake, buffer = self._intake, self._buffer
        if type(key) is not intake.plain_key or type(update) is not int or not -_SMALL < update < _SMALL:
            return False
        if buffer.is_held():
            return False
        with buffer.lock:
            flush = buffer.open
            if flush is not None and key in flush.sums:
                flush.sums[key] += update
            else:
                size = intake.plain_size(key)
                if buffer.refusal or (flush := flush or buffer.flush_for(1, size)) is None:
                    return False
                flush.sums[key] = update
                flush.grow(size)
            flush.count += 1
            if flush.count >= flush.most:
                buffer.seal_open()
        return True

    def emit_many(self, updates: Mapping[K, V] | Collection[tuple[K, V]]) -> None:
        """Add updates like `emit`, all of them in one transaction; if ^C ends the call, a part of them may be added.

        Args:
            updates: `{key: update}`, or pairs; at most `at_most` of them and about 500 kB at once, else `TooLarge`.
        """
        for flush, seconds in self._waits(updates):
            flush.done.wait(seconds)

    async def emit_async(self, key: K, update: V = 1) -> None:  # type: ignore[assignment]
        """`emit` for asyncio: it awaits instead of blocking.

        If the task is cancelled while it awaits, its update is not taken.
        """
        if not self._take_small(key, update):
            await self.emit_many_async(((key, update),))

    async def emit_many_async(self, updates: Mapping[K, V] | Collection[tuple[K, V]]) -> None:
        """`emit_many` for asyncio."""
        for flush, seconds in self._waits(updates):
            done = _asyncio().wrap_future(flush.finished)
            await _asyncio().wait([done], timeout=seconds)

    def flush(self) -> None:
        """Commit all increments taken before this call, and wait for it, at most `timeout` seconds.

        Raises `FlushFailed` if they were given up, or are not committed in time; the emitter's thread then goes on.
        """
        last = self._buffer.seal()
        if last is None:
            return
        if not last.done.wait(self.timeout):
            raise FlushFailed(
                self._message("not committed yet", self._buffer.latest_failure), is_unknown=True
            )
        self._check(last)

    def close(self) -> None:
        """Refuse further increments, and commit those taken, within `timeout` seconds; a second call has no effect.

        Raises `FlushFailed` if increments are not committed in time, or if the store is closed; these are given up. If
        ^C ends the call, the exit of the process commits them.
        """
        self._buffer.close(f"the emitter of queue {self.queue.name!r} is closed: make another one")
        self._closing.set()
        seconds, why = self._time_to_close()
        until, is_done = runtime.monotonic() + seconds, True
        # Repeatedly: a flush may make room for increments of finalizers.
        while is_done and (last := self._buffer.seal()) is not None:
            is_done = last.done.wait(max(0.0, until - runtime.monotonic()))
        self._take_back()  # not before: ^C may end the wait, and then the exit of the process begins it again
        if not is_done:
            reason = TimeoutError(self._buffer.latest_failure or why)
            left = self._buffer.give_up(reason)
            if left:
                count, is_unknown = sum(each.count for each in left), any(each.in_doubt for each in left)
                raise self._failure(count, is_unknown, reason) from reason

    def _time_to_close(self) -> tuple[float, str]:
        """The seconds that `close` waits, and why increments are not committed after them."""
        try:
            self._db.create_transaction()
        except StoreError as error:  # closed before the emitter: it stays so
            return 0.0, str(error)
        return self.timeout, f"not done within {self.timeout:g} s"

    def statistics(self) -> EmitterStatistics:
        """Counts since the creation of the emitter."""
        return self._buffer.statistics()

    # Waits and errors of callers

    def _waits(self, updates: Any) -> Iterator[tuple[Flush, float]]:
        """Take updates; yields the flushes for which the caller must wait before, and for how many seconds at most."""
        increments = self._intake.increments(updates)
        if len(increments) > self.at_most:
            raise TooLarge(
                f"{len(increments):,} updates at once are more than the {self.at_most:,} that the emitter may hold: "
                "emit them in smaller parts, or make it with another at_most"
            )
        until = runtime.monotonic() + self.timeout
        while (flush := self._buffer.take(increments)) is not None:
            yield flush, self._seconds_left(until)

    def _seconds_left(self, until: float) -> float:
        left = until - runtime.monotonic()
        if left > 0:
            return left
        what = f"no room for more within {self.timeout:g} s, nothing was taken"
        raise EmitterFull(self._message(what, self._buffer.latest_failure))

    def _check(self, flush: Flush) -> None:
        """Raise `FlushFailed` if a flush was given up."""
        if flush.error is not None:
            raise self._failure(flush.count, flush.in_doubt, flush.error) from flush.error

    def _failure(self, count: int, is_unknown: bool, error: Exception) -> FlushFailed:
        fate = "they may count all the same" if is_unknown else "none of them counts"
        return FlushFailed(self._message(f"{count:,} increments are given up, {fate}", error), is_unknown)

    def _message(self, what: str, why: object) -> str:
        return f"emitter of queue {self.queue.name!r}: {what}" + (f": {why}" if str(why) else "")

    # The emitter's thread

    def _run(self) -> None:
        buffer = self._buffer
        committed_here.set(buffer)
        while True:
            flush, seconds = buffer.next_flush()
            if flush is not None:
                self._commit(flush)
            elif buffer.is_finished:
                return
            else:
                buffer.wake.wait(seconds)

    def _commit(self, flush: Flush) -> None:
        """Commit a flush: retry until it is committed or given up."""
        failures = 0
        updates: Any = None
        while self._buffer.begin_try(flush):
            try:
                updates = flush.updates() if updates is None else updates
                add = partial(self._add, flush=flush, updates=updates)
                transact_chained(self._db, add, flush.doubt, is_followed=True)
            except Exception as error:  # noqa: BLE001 - the flush is retried
                self._buffer.fail_try(flush, error)
            else:
                self._buffer.commit(flush, len(updates))
                return
            if not flush.done.is_set():
                failures += 1
                self._pause(delay_after(failures, longest=_LONGEST_PAUSE))

    def _add(self, tr: Transaction, flush: Flush, updates: Any) -> None:
        """Add the updates of a flush, unless an earlier try has committed.

        Each try has a read conflict on the emitter's key, and writes it. If an earlier try is still in flight, only one
        of the two can commit; if it has committed, the key holds the flush's number.
        """
        own = self.queue.keys.emitter(self._id)
        if flush.in_doubt:
            latest = tr.get(own).value
            if latest is not None and keys.parse_flush(latest)[1] == flush.number:
                return
            # The doubt remains: if this try fails, an earlier one may still commit after this read.
        tr.add_read_conflict_key(own)  # before the write: a key already written gets no read conflict
        tr.set_versionstamped_value(own, keys.new_flush(flush.number))
        self._follow_configuration(tr)
        self.queue.add(tr, updates)

    def _follow_configuration(self, tr: Transaction) -> None:
        """Check later increments for the present configuration.

        Raises `CodeMismatch` if the increments were checked and merged for another key, value or combiner.
        """
        now, then = read_config(tr, self.queue.name), self._intake.adds.config
        if now is then:
            return
        if (now.key, now.value, now.combiner) != (then.key, then.value, then.combiner):
            raise CodeMismatch(
                f"queue {self.queue.name!r} has another combiner or other types since the emitter was made: "
                "make another one"
            )
        self._intake.adds = AddCheck(now)

    def _pause(self, seconds: float) -> None:
        """Wait before the next try; `close` ends the wait, so that it gets a try at once."""
        if self._closing.is_set():
            runtime.sleep(seconds)
        else:
            self._closing.wait(seconds)

    # Exit and fork of the process

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
    """The module asyncio, imported late because it is slow to load; a caller that awaits has already loaded it."""
    import asyncio

    return asyncio


_emitters: Final[WeakSet[Emitter]] = WeakSet()


def _after_fork() -> None:
    for emitter in list(_emitters):
        emitter._forget()


os.register_at_fork(after_in_child=_after_fork)


def _check_settings(**settings: object) -> None:
    for what, given in settings.items():
        if not is_positive(given, int if what == "at_most" else float):
            raise InvalidConfiguration(f"expected {what} to be a positive number, got: {codec.brief(given)}")
