"""A database as a simulated process sees it: every call may be late, fail, or be the last of its process.

It wraps a real one and passes everything on, so the same faults can be put between a program and a real cluster:
what it needs of its surroundings is a way to wait, and numbers to draw from. Watches are its own, so that they fire as
late as FoundationDB allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, Final, cast
from weakref import WeakSet

from cq.store.api import METADATA_VERSION
from tests.kit.faults import Passing, error_class

READ_ERRORS: Final = (1007, 1009, 1037)
COMMIT_ERRORS: Final = (1007, 1020, 1020, 1042)
TIMED_OUT: Final = 1031
OTHER_CLUSTER: Final = 1039
MAY_HAVE_COMMITTED: Final = (1021, TIMED_OUT, OTHER_CLUSTER)
LATE_SECONDS: Final = 6.0
LANDING_SECONDS: Final = 3.0


@dataclass
class Faults:
    """How often what goes wrong, as probabilities of each call.

    Attributes:
        read_error: a read fails.
        late: a call takes long, up to more than a transaction may.
        conflict: a commit fails that nothing is wrong with.
        unknown: a commit ends with `commit_unknown_result`; half of these have committed.
        timeout: a read or a commit ends with `transaction_timed_out`, which no loop retries; half of these commits
            have committed.
        other_cluster: a read or a commit ends with `cluster_version_changed`; half of these commits have committed.
        lands_late: of the commits whose result is unknown, those that commit up to three seconds after the error.
        too_large: a commit that writes fails as if it wrote too much.
        watch_late, watch_early, watch_error: a watch fires late, though nothing has changed, or fails.
        latency: seconds that a call takes, about.
    """

    read_error: float = 0.0
    late: float = 0.0
    conflict: float = 0.0
    unknown: float = 0.0
    timeout: float = 0.0
    other_cluster: float = 0.0
    lands_late: float = 0.0
    too_large: float = 0.0
    watch_late: float = 0.0
    watch_early: float = 0.0
    watch_error: float = 0.0
    latency: float = 0.002

    def calm(self) -> None:
        """Let nothing go wrong any more."""
        for each in fields(self):
            if each.name != "latency":
                setattr(self, each.name, 0.0)


@dataclass
class Surroundings:
    """What the wrapper needs of the world around it.

    Attributes:
        rng: numbers to draw from.
        wait: waits for so many seconds.
        later: calls a function after a number of seconds, unless the process dies before.
        land: calls a function after a number of seconds, even if the process dies before.
        commit: commits the real transaction.
        committed: told of each commit that has happened, whether its owner hears of it or not.
        refused: told of each commit that the store itself has refused, with the error's code.
        trace: told of what is worth telling.
    """

    rng: Random
    wait: Callable[[float], None]
    later: Callable[[float, Callable[[], object]], object]
    land: Callable[[float, Callable[[], object]], object]
    commit: Callable[[Any], None] = lambda inner: inner.commit().wait()
    committed: Callable[[Any, int], None] = lambda tr, version: None
    refused: Callable[[Any, int], None] = lambda tr, code: None
    trace: Callable[..., None] = lambda *what: None


class WatchBoard:
    """The watches on one store, of all processes."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, list[SimWatch]] = {}

    def look(self, inner: Any) -> None:
        """Compare what is watched with what there is now."""
        snapshot = inner.create_transaction().snapshot
        for key, watches in list(self.by_key.items()):
            value = snapshot.get(key).value
            for watch in watches:
                if value != watch.seen:
                    watch.change()
            self.by_key[key] = [watch for watch in watches if watch.is_waiting]
            if not self.by_key[key]:
                del self.by_key[key]


class SimDatabase:
    """A database with faults.

    Args:
        inner: the real one.
        faults: shared by all processes, and changed while they run.
        around: see there.
        board: the watches on the store, in a simulation; None to use the store's own.

    Attributes:
        error: the class of the store's errors.
        shape_note: what its owner notes of the changes of shapes that begin their commit from now on.
    """

    def __init__(
        self, inner: Any, faults: Faults, around: Surroundings, board: WatchBoard | None = None
    ) -> None:
        self.inner, self.faults, self.around, self.board = inner, faults, around, board
        self.error = error_class(inner)
        self.shape_note: Any = None
        self._open: WeakSet[SimTransaction] = WeakSet()

    @property
    def options(self) -> Any:
        return self.inner.options

    def create_transaction(self) -> SimTransaction:
        made = SimTransaction(self)
        self._open.add(made)
        return made

    def drop(self) -> None:
        """Its process is dead: the store forgets its transactions."""
        for tr in self._open:
            tr.inner.reset()

    def call(self) -> None:
        """A call to the store, of some duration."""
        rng, faults = self.around.rng, self.faults
        if faults.late and rng.random() < faults.late:
            self.around.wait(rng.random() * LATE_SECONDS)
        else:
            self.around.wait(rng.expovariate(1 / faults.latency))


class Reads(Passing):
    """A transaction's own reads, or its snapshot's."""

    def __init__(self, inner: Any, tr: SimTransaction | None = None) -> None:
        super().__init__(inner)
        self._tr = tr

    @property
    def tr(self) -> SimTransaction:
        """The transaction: not kept by itself, so that it ends as soon as nobody else keeps it."""
        return self._tr or cast(SimTransaction, self)

    @property
    def db(self) -> Any:
        return self.tr.db

    def get(self, key: bytes) -> Future:
        self.tr.begin()
        found = self.inner.get(key)
        return Future(self.tr, lambda: found.value)

    def get_key(self, selector: Any) -> Future:
        self.tr.begin()
        found = self.inner.get_key(selector)
        return Future(self.tr, lambda: found.value)

    def get_range(self, *args: Any, **kwargs: Any) -> Rows:
        self.tr.begin()
        return Rows(self.tr, self.inner.get_range(*args, **kwargs))

    def get_read_version(self) -> Future:
        self.tr.begin()
        version = self.inner.get_read_version()
        return Future(self.tr, version.wait)


class SimTransaction(Reads):
    """A transaction with faults.

    Attributes:
        notes: what its owner notes of it; they count once it is committed.
        stamped: the keys it has given versionstamps in.
    """

    def __init__(self, database: SimDatabase) -> None:
        super().__init__(database.inner.create_transaction())
        self.database = database
        self.notes: list[Any] = []
        self.stamped: list[bytes] = []
        self.has_changed_shapes = False
        self.read_version = self.size = 0
        self._begun = False
        self._error: int | None = None
        self._watches: list[SimWatch] = []

    @property
    def db(self) -> Any:
        return self.database

    @property
    def snapshot(self) -> Reads:
        return Reads(self.inner.snapshot, self)

    def begin(self) -> None:
        """Before its first read it gets a read version."""
        if not self._begun:
            self._begun = True
            self.database.call()

    def set_read_version(self, version: int) -> None:
        self._begun = True  # it needs no request for one
        self.inner.set_read_version(version)

    def read(self) -> None:
        """A read is waited for."""
        database, rng = self.database, self.database.around.rng
        database.call()
        faults = database.faults
        if faults.read_error and rng.random() < faults.read_error:
            self._fail(rng.choice(READ_ERRORS))
        if faults.timeout and rng.random() < faults.timeout / 4:
            self._fail(TIMED_OUT)
        if faults.other_cluster and rng.random() < faults.other_cluster / 4:
            self._fail(OTHER_CLUSTER)

    def _fail(self, code: int) -> None:
        self._error = code
        self.database.around.trace("read fails", code)
        raise self.database.error(code)

    def set_versionstamped_value(self, key: bytes, param: bytes) -> None:
        self.has_changed_shapes |= key == METADATA_VERSION
        self.inner.set_versionstamped_value(key, param)

    def set_versionstamped_key(self, key: bytes, param: bytes) -> None:
        self.stamped.append(key)
        self.inner.set_versionstamped_key(key, param)

    def watch(self, key: bytes) -> Any:
        self.begin()
        if self.database.board is None:
            return self.inner.watch(key)
        watch = SimWatch(self.database, self.database.board, key, self.inner.get(key).value)
        self._watches.append(watch)
        return watch

    def commit(self) -> Future:
        return Future(self, self._commit, is_read=False)

    def on_error(self, error: Any) -> Future:
        waiting = self.inner.on_error(error)
        self._drop()
        return Future(self, waiting.wait, is_read=False)

    def reset(self) -> None:
        self.inner.reset()
        self._drop()

    def _drop(self) -> None:
        self.notes, self.stamped, self.has_changed_shapes = [], [], False
        self._begun, self._error = False, None
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()

    def _commit(self) -> None:
        database, around = self.database, self.database.around
        database.call()
        if self._error is not None:
            raise self.database.error(self._error)
        code = self._drawn_error()
        is_unknown = code in MAY_HAVE_COMMITTED
        if code and (not is_unknown or around.rng.random() < 0.5):
            around.trace("commit fails", code)
            raise self.database.error(code)
        request = self._request()
        if is_unknown and database.faults.lands_late and around.rng.random() < database.faults.lands_late:
            # The store has it, and this process goes on with another transaction under the same name.
            self.inner = database.inner.create_transaction()
            around.land(around.rng.random() * LANDING_SECONDS, request.land)
            around.trace("commit unknown, under way")
            raise self.database.error(code)
        version = request.commit()
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.begin()
        database.call()
        if code:
            around.trace("commit unknown", code, version)
            raise self.database.error(code)

    def _request(self) -> CommitRequest:
        if self._begun:
            self.read_version = self.inner.get_read_version().wait()
        self.size = self.inner.get_approximate_size().wait()
        if self.has_changed_shapes and self.database.shape_note is not None:
            self.notes.append(self.database.shape_note)
        return CommitRequest(
            self.database,
            self.inner,
            tuple(self.notes),
            tuple(self.stamped),
            self.read_version,
            self.size,
            self.has_changed_shapes,
        )

    def _drawn_error(self) -> int:
        faults, rng = self.database.faults, self.database.around.rng
        drawn = rng.random()
        codes = {
            1020: faults.conflict,
            1021: faults.unknown,
            TIMED_OUT: faults.timeout,
            OTHER_CLUSTER: faults.other_cluster,
        }
        for code, chance in codes.items():
            if drawn < chance:
                return rng.choice(COMMIT_ERRORS) if code == 1020 else code
            drawn -= chance
        is_small = self.inner.get_approximate_size().wait() < 300
        return 2101 if not is_small and rng.random() < faults.too_large else 0


@dataclass(eq=False)
class CommitRequest:
    """A transaction that the store has been asked to commit.

    Attributes:
        notes: what its owner has noted of it.
        stamped: the keys in which it has versionstamps.
        read_version: 0 if it has read nothing.
        size: in bytes.
    """

    database: SimDatabase
    inner: Any
    notes: tuple[Any, ...]
    stamped: tuple[bytes, ...]
    read_version: int
    size: int
    has_changed_shapes: bool

    def commit(self) -> int:
        """The version of the commit; raises the store's `FDBError`."""
        around, board = self.database.around, self.database.board
        try:
            around.commit(self.inner)
        except self.database.error as error:
            around.refused(self, error.code)
            raise
        version = int(self.inner.get_committed_version())
        if version > 0:
            around.committed(self, version)
            if board is not None:
                board.look(self.database.inner)
        return version

    def land(self) -> None:
        """Commit after its owner was given an error; the owner never learns the result."""
        try:
            self.database.around.trace("lands late", self.commit())
        except self.database.error as error:
            self.database.around.trace("does not land", error.code)


class Future:
    """Something that a task waits for when it asks for it, the first time."""

    def __init__(self, tr: SimTransaction, result: Callable[[], Any], *, is_read: bool = True) -> None:
        self._tr, self._result, self._is_read = tr, result, is_read
        self._known: Any = None
        self._is_known = False

    @property
    def value(self) -> Any:
        if not self._is_known:
            if self._is_read:
                self._tr.read()
            self._known = self._result()
            self._is_known = True
        return self._known

    def wait(self) -> Any:
        return self.value

    def present(self) -> bool:
        return self.value is not None


@dataclass(eq=False)
class Rows:
    """A range read."""

    tr: SimTransaction
    inner: Any
    _found: list[Any] | None = field(default=None)

    def to_list(self) -> list[Any]:
        self.tr.read()
        return list(self.inner.to_list())

    def __iter__(self) -> Iterator[Any]:
        self.tr.read()
        for number, row in enumerate(self.inner, 1):
            if number % 20 == 0:
                self.tr.read()
            yield row


class SimWatch:
    """A watch: it fires some time after its key has changed, if it still has another value then; or fails."""

    def __init__(self, database: SimDatabase, board: WatchBoard, key: bytes, seen: bytes | None) -> None:
        self.database, self.board, self.key, self.seen = database, board, key, seen
        self.is_waiting = False
        self._is_ready = False
        self._is_told = False
        self._error: int | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def begin(self) -> None:
        """Its transaction is committed."""
        if self._is_ready:
            return
        faults, rng = self.database.faults, self.database.around.rng
        self.is_waiting = True
        self.board.by_key.setdefault(self.key, []).append(self)
        if self.database.inner.get(self.key) != self.seen:
            self.change()
        drawn = rng.random()
        if drawn < faults.watch_error:
            self.database.around.later(rng.random() * 10, lambda: self._settle(1009))
        elif drawn < faults.watch_error + faults.watch_early:
            self.database.around.later(rng.random() * 3, lambda: self._settle(None))

    def change(self) -> None:
        """The key has another value."""
        if self._is_told:
            return
        self._is_told = True
        faults, rng = self.database.faults, self.database.around.rng
        is_late = rng.random() < faults.watch_late
        self.database.around.later(rng.random() * 8 if is_late else 0.001, self._compare)

    def _compare(self) -> None:
        self._is_told = False
        if (
            self.database.inner.get(self.key) != self.seen
        ):  # FoundationDB tells of no value that has come back
            self._settle(None)

    def is_ready(self) -> bool:
        return self._is_ready

    def wait(self) -> None:
        if not self._is_ready:
            raise RuntimeError("in a simulation watches are waited for by their callbacks")
        if self._error is not None:
            raise self.database.error(self._error)

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        if self._is_ready:
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        self._settle(1101)

    def _settle(self, error: int | None) -> None:
        if self._is_ready:
            return
        self._is_ready, self._error, self.is_waiting = True, error, False
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
