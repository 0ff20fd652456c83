"""Calls of `CombineQueue.add_now` that wait share a transaction.

The cost of a small add is mostly that of its transaction. So a call that begins while the transaction of another call
is under way waits for it, and then the first call that waits commits the updates of all that wait by then. This
starts no thread and has no option, and a single caller does not wait. Without this, 32 threads that add one key at a
time to a file reach about a third of the rate.

The threads of a process commit for each other, and so do the tasks of an event loop. At a time there is one such
transaction on a file, which commits one after the other anyway, and there are up to two on a cluster.

Each update counts once. All tries of a group share an operation id, and calls with ids of their own have rows of their
own. A call that the queue refuses fails alone. If a caller is cancelled while it commits, another caller commits the
same group again, under the same ids.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from cq import runtime
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.errors import InvalidData, StoreError
from cq.queue.adds import PackedAdd, config_for_adds, times_now
from cq.queue.limits import refuse_if_full
from cq.store.api import Database, Transaction, is_local
from cq.store.mistakes import refuse_unless_database
from cq.store.transact import transact_chained

L = TypeVar("L", bound=runtime.Latch)

GROUP_BYTES: Final = 500_000
"""Maximum bytes that the transaction of several calls writes: it should stay below 1 MB."""
GROUP_UPDATES: Final = 10_000
"""Maximum number of updates of several calls, so that a caller packs little that does not fit."""
CLUSTER_GROUPS: Final = 2
"""Maximum number of groups that a process commits at a time to a queue of a cluster: one is filled meanwhile.

More groups are smaller. With eight, calls of `add_now` were 0.6 to 0.8 times as many, and those of `ask_now` 0.55 to
0.75 times; where a commit took 5 ms more, 1.1 and 0.65 times as many.
"""
_RANDOM_ID_BYTES: Final = 16


class AddCall:
    """One call of `add_now`.

    Args:
        keys, values: its updates, as of `split_pairs`.
        once: its operation id, or None; raises `InvalidData`.

    Attributes:
        group: the group that its caller must commit; None if another caller commits it.
        error: why the queue has refused it, or why its result is unknown.
        done: for a call that waits: set when it has a group to commit, or when it is done.
        is_abandoned: whether its caller was cancelled.
    """

    __slots__ = ("done", "error", "group", "is_abandoned", "keys", "operation", "values")

    def __init__(self, keys: list[Any], values: list[Any], once: str | bytes | None) -> None:
        self.keys, self.values = keys, values
        self.operation = None if once is None else codec.encode_operation(once)
        self.group: AddGroup | None = None
        self.error: Exception | None = None
        self.done: runtime.Latch | None = None
        self.is_abandoned = False

    @property
    def is_over(self) -> bool:
        """Whether its caller needs not wait, once the updates are committed."""
        return True

    def wake(self) -> None:
        """Let the caller go on, if it waits."""
        if self.done is not None:
            self.done.set()

    def follow(self, db: Database, group: AddGroup) -> None:
        """Wait for what the calls of a committed group still need, until this call is over."""


class AddGroup:
    """Calls whose updates are committed in one transaction.

    Args:
        queue: the name of the queue.
        call: the first call, whose caller commits the group.

    Attributes:
        calls: all calls; once a try may have committed, these stay the same.
        later: calls that did not fit into the transaction.
        doubt: the error of a try that may have committed, or may commit later.
        is_ended: whether nobody commits it any more.
    """

    def __init__(self, queue: str, call: AddCall) -> None:
        self.queue = queue
        self.calls = [call]
        self.later: list[AddCall] = []
        self.doubt: Exception | None = None
        self.is_ended = False
        self._is_final = False
        self._is_written = False
        self._operation = runtime.token_bytes(_RANDOM_ID_BYTES)

    def commit(self, db: Database) -> None:
        """Commit the updates of all calls; an error is that of each call which it concerns."""
        self._is_final, self._is_written = is_local(db), False
        try:
            self._try(db)
        except Exception as error:  # noqa: BLE001 - the callers get it
            for call in self._taken():
                self._refuse(call, error)
        except BaseException:
            if self._is_written:  # the commit may have begun
                self._note_doubt(
                    StoreError("the updates may count or not: the caller that committed them was cancelled")
                )
            raise

    def _try(self, db: Database) -> None:
        try:
            transact_chained(db, self._write, self._note_doubt)
        except InvalidData:
            # The queue may have had other types at the read version of the chain: only the next answer is final.
            transact_chained(db, self._write, self._note_doubt, is_at_present=True)

    def _note_doubt(self, error: Exception) -> None:
        self.doubt = error

    def _taken(self) -> list[AddCall]:
        """The calls that the queue has not refused."""
        return [call for call in self.calls if call.error is None]

    def _refuse(self, call: AddCall, error: Exception) -> None:
        """End a call with an error of its own, as each caller adds a traceback; in doubt, with that of the doubt."""
        call.error = copied(self.doubt or error).with_traceback(error.__traceback__)
        if self.doubt is not None and self.doubt is not error:
            call.error.__cause__ = error

    def _write(self, tr: Transaction) -> None:
        """Write the keys of all calls, or of the first ones that fit."""
        self._is_written = False
        config = config_for_adds(tr, self.queue)
        refuse_if_full(tr, config)
        adds = self._packed(config)
        while self.doubt is None and len(self.calls) > 1 and sum(add.size for add in adds) > GROUP_BYTES:
            half = len(self.calls) // 2
            self.calls, self.later = self.calls[:half], self.calls[half:] + self.later
            adds = self._packed(config)
        for add in adds:
            add.write(tr)
        self._is_written = True

    def _packed(self, config: QueueConfig) -> list[PackedAdd]:
        """The rows of all calls; ends the calls that the queue refuses.

        On a cluster, raises the first `InvalidData` of the group: it may be outdated.
        """
        times = times_now(config)
        shared = [call for call in self._taken() if call.operation is None]
        apart = [call for call in self._taken() if call.operation is not None]
        try:
            adds = [_rows(config, shared, self._operation, times)] if shared else []
        except Exception:  # noqa: BLE001 - the queue refuses one of the calls, so each has rows of its own
            adds, apart = [], shared + apart
        operations = set()
        for call in apart:
            operation = call.operation or self._operation
            try:
                rows = _rows(config, [call], operation, times)
            except Exception as error:
                if isinstance(error, InvalidData) and not self._is_final:
                    self._is_final = True
                    raise
                self._refuse(call, error)
                continue
            # Of the calls with one id, only the first counts: one transaction writes one marker for them.
            if call.operation is None or operation not in operations:
                adds.append(rows)
            operations.add(operation)
        return adds


def copied(error: Exception) -> Exception:
    """A copy of an error with its cause; the error itself, if it has a constructor that cannot copy it."""
    try:
        found = copy(error)
    except Exception:  # noqa: BLE001 - of the constructor of any store
        return error
    found.__cause__, found.__suppress_context__ = error.__cause__, error.__suppress_context__
    return found


def _rows(config: QueueConfig, calls: list[AddCall], operation: bytes, times: list[int]) -> PackedAdd:
    """The rows of the updates of calls, under one operation id; raises `InvalidData`, `TooLarge`."""
    if len(calls) == 1:
        return PackedAdd.of(config, calls[0].keys, calls[0].values, operation, times)
    keys: list[Any] = []
    values: list[Any] = []
    for call in calls:
        keys += call.keys
        values += call.values
    return PackedAdd.of(config, keys, values, operation, times)


class SharedAdds:
    """The calls of `add_now` to one queue by the threads of a process, or by the tasks of an event loop.

    Args:
        queue: the name of the queue.
        groups: the maximum number of groups at a time.
    """

    def __init__(self, queue: str, groups: int) -> None:
        self.queue = queue
        self._free = groups
        self._most = GROUP_UPDATES
        self._waiting: deque[AddCall] = deque()
        self._lock = Lock()

    def join(self, call: AddCall, latch: Callable[[], L]) -> L | None:
        """Begin a call; returns the latch for which its caller must wait, or None."""
        with self._lock:
            if self._free:
                self._free -= 1
                call.group = AddGroup(self.queue, call)
                return None
            done = call.done = latch()
            self._waiting.append(call)
            return done

    def leave(self, call: AddCall) -> None:
        """End a call whose task was cancelled while it waited."""
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
            call.is_abandoned = True
        if call.group is not None:
            self._hand_on(call.group)

    def finish(self, db: Database, call: AddCall) -> None:
        """Commit the group of a call, if it has one, with all calls that wait; raises the error of the call."""
        group = call.group
        if group is not None:
            if not group.is_ended:
                self._commit(db, call, group)
            if not call.is_over:
                self._follow(db, call, group)
            self._hand_on(group)
        if call.error is not None:
            raise call.error

    def _commit(self, db: Database, call: AddCall, group: AddGroup) -> None:
        self._fill(group)
        try:
            group.commit(db)
        except BaseException:  # the task of this call is cancelled
            call.is_abandoned = True
            self._hand_on(group)
            raise
        with self._lock:
            group.is_ended = True
            following = self._next(group)
        for each in (*following, *group.calls):
            # An abandoned one may be awake already.
            if each is not call and not each.is_abandoned and (each.is_over or each.group is not None):
                each.wake()

    def _follow(self, db: Database, call: AddCall, group: AddGroup) -> None:
        try:
            call.follow(db, group)
        except BaseException:  # the task of this call is cancelled
            call.is_abandoned = True
            self._hand_on(group)
            raise

    def _fill(self, group: AddGroup) -> None:
        """Add the calls that wait to a group, unless it may be committed already."""
        if group.doubt is not None:
            return
        with self._lock:
            count = len(group.calls[0].keys)
            while self._waiting and count + len(self._waiting[0].keys) <= self._most:
                call = self._waiting.popleft()
                count += len(call.keys)
                group.calls.append(call)

    def _hand_on(self, group: AddGroup) -> None:
        """Let another caller go on with a group; without others, let the next call begin unless that was done."""
        with self._lock:
            others = (call for call in group.calls if not call.is_abandoned)
            heir = next((call for call in others if not (group.is_ended and call.is_over)), None)
            if heir is not None:
                heir.group = group
            following = [heir] if heir is not None else [] if group.is_ended else self._next(group)
        for call in following:
            call.wake()

    def _next(self, group: AddGroup) -> list[AddCall]:
        """Give the first call that waits after a group a group to commit; returns it. Needs the lock."""
        # Large updates fill a transaction before they are as many: else each group would pack most of them in vain.
        taken = sum(len(call.keys) for call in group.calls)
        self._most = min(GROUP_UPDATES, 2 * (max(1, taken) if group.later else self._most))
        self._waiting.extendleft(call for call in reversed(group.later) if not call.is_abandoned)
        if not self._waiting:
            self._free += 1
            return []
        call = self._waiting.popleft()
        call.group = AddGroup(self.queue, call)
        return [call]


# Each event loop has its own: one that ends holds up no caller elsewhere. The module stands for threads.
_shared: Final[WeakKeyDictionary[Any, WeakKeyDictionary[Any, dict[str, SharedAdds]]]] = WeakKeyDictionary()
# In a forked child nobody commits the groups of its parent: a call must fail there, as its store does, and not wait.
os.register_at_fork(after_in_child=_shared.clear)


def shared_adds(db: Database, queue: str, loop: object | None) -> SharedAdds:
    """The calls of `add_now` to a queue by the tasks of an event loop; without a loop, by threads."""
    owner = loop or runtime
    try:
        return _shared[owner][db][queue]
    except (KeyError, TypeError):
        refuse_unless_database(db)
        # References, in one step: threads that begin event loops change the dictionary meanwhile.
        for ended in [
            each for each in (ref() for ref in _shared.keyrefs()) if getattr(each, "is_closed", bool)()
        ]:
            _shared.pop(ended, None)  # calls of its tasks that still wait would keep it
        by_queue = _shared.setdefault(owner, WeakKeyDictionary()).setdefault(db, {})
        return by_queue.setdefault(queue, SharedAdds(queue, 1 if is_local(db) else CLUSTER_GROUPS))


_in_call: Final = ContextVar("in_call", default=False)
"""Whether the caller is within a call that may share a transaction already."""


def add_now(db: Database, queue: str, call: AddCall) -> None:
    """Commit the updates of a call, alone or with other calls; raises the error of the call.

    Raises `StoreError` if a finalizer or a signal handler calls it within another call of its thread: it would wait for
    that call.
    """
    if runtime.is_interruptible():
        # ^C may end this call at any point, also where it would have to wake others: it commits its own updates only.
        group = AddGroup(queue, call)
        group.commit(db)
        if not call.is_over:
            call.follow(db, group)
        if call.error is not None:
            raise call.error
        return
    if _in_call.get():
        raise StoreError(
            "a finalizer or a signal handler has interrupted another call of `add_now` or `ask_now` of its own thread, "
            "which it would wait for: let it add by a `cq.Emitter`, or let another thread call"
        )
    within = _in_call.set(True)
    try:
        _share(db, queue, call)
    finally:
        _in_call.reset(within)


def _share(db: Database, queue: str, call: AddCall) -> None:
    """Commit the updates of a call, alone or with those of other threads or tasks."""
    shared = shared_adds(db, queue, runtime.event_loop())
    done = shared.join(call, runtime.own_latch)
    if done is not None:
        try:
            done.wait()
        except BaseException:  # the task is cancelled
            shared.leave(call)
            raise
    shared.finish(db, call)
