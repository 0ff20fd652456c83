"""Databases whose transactions fail, or act at a certain call, for tests on either store; and the errors of a store.

`WrappedDatabase` passes on all calls. A test overrides `call` for the calls of its transactions, or
`create_transaction`. Wrappers can wrap each other: `Sized(FaultyDatabase(db, seed))`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from cq.store import embedded
from cq.store.transact import transact

TOO_OLD, NOT_COMMITTED, UNKNOWN, TIMED_OUT = 1007, 1020, 1021, 1031


def error_class(store: Any) -> type[Any]:
    """The class `FDBError` of a database's or a transaction's store, also through wrappers and views of a space."""
    while (inner := getattr(store, "inner", None)) is not None:
        store = inner
    if type(store).__module__.startswith(embedded.__name__):
        return embedded.FDBError
    import fdb  # only where a cluster is tested

    found: type[Any] = fdb.FDBError
    return found


class Died(KeyboardInterrupt):
    """Stands for a process that dies: nothing handles it."""


class Passing:
    """Passes on everything to `inner`, except for what a subclass defines."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, what: str) -> Any:
        return getattr(self.inner, what)


class WrappedDatabase(Passing):
    """A database that sees each call of its transactions, as one of a cluster."""

    is_local = False

    def create_transaction(self) -> Any:
        return WrappedTransaction(self, self.inner.create_transaction())

    def transact(self, fn: Callable[[Any], Any]) -> Any:
        return transact(self, fn)

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call of a transaction. A subclass does something before or after it, or fails instead."""
        return getattr(tr.inner, what)(*args, **kwargs)

    def error(self, code: int) -> Any:
        """An error of the store."""
        return error_class(self)(code)


class WrappedTransaction(Passing):
    """A transaction whose calls go through its database. Its snapshot's do not."""

    def __init__(self, database: WrappedDatabase, inner: Any) -> None:
        super().__init__(inner)
        self.database = database

    def __getattr__(self, what: str) -> Any:
        found = getattr(self.inner, what)
        return partial(self.database.call, self, what) if callable(found) else found

    @property
    def writes(self) -> bool:
        """Whether it has anything to commit."""
        return bool(self.inner.get_approximate_size().wait())


class ChainedDatabase(WrappedDatabase):
    """A database that notes which transactions begin at a version of their process, see `cq.store.version_chain`.

    Attributes:
        chained: the name of the thread of each of them.
    """

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.chained: list[str] = []

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "set_read_version":
            self.chained.append(threading.current_thread().name)
        return super().call(tr, what, *args, **kwargs)


class Calls(Passing):
    """A transaction, or a snapshot, that lists the calls made on it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.made: list[str] = []

    def __getattr__(self, what: str) -> Any:
        found = getattr(self.inner, what)
        return partial(self._call, what) if callable(found) else found

    def _call(self, what: str, *args: Any, **kwargs: Any) -> Any:
        self.made.append(what)
        return getattr(self.inner, what)(*args, **kwargs)


class FaultyDatabase(WrappedDatabase):
    """A database whose transactions fail at random as a cluster's can, from one seed. Thread-safe.

    Args:
        conflict: share of the commits that conflict.
        unknown: share of the commits that end with 1021, one half of them having committed.
        too_old: share of the reads of single keys that fail.

    Attributes:
        injected: {kind of fault: how many there were}.
    """

    def __init__(
        self, db: Any, seed: int, *, conflict: float = 0.1, unknown: float = 0.1, too_old: float = 0.02
    ) -> None:
        super().__init__(db)
        self.conflict, self.unknown, self.too_old = conflict, unknown, too_old
        self.injected: dict[str, int] = {}
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "get" and self._draw() < self.too_old:
            return self._fail("too old", TOO_OLD)
        if what == "commit":
            drawn = self._draw()
            if drawn < self.conflict:
                return self._fail("conflict", NOT_COMMITTED)
            if drawn < self.conflict + self.unknown:
                if self._draw() >= 0.5:
                    return self._fail("unknown, not committed", UNKNOWN)
                tr.inner.commit().wait()
                return self._fail("unknown, committed", UNKNOWN)
        return super().call(tr, what, *args, **kwargs)

    def _draw(self) -> float:
        with self._lock:
            return self._random.random()

    def _fail(self, what: str, code: int) -> Failed:
        with self._lock:
            self.injected[what] = self.injected.get(what, 0) + 1
        return Failed(self.error(code))


class Failed:
    """A future that has failed."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> Any:
        raise self._error

    @property
    def value(self) -> Any:
        raise self._error

    def present(self) -> bool:
        raise self._error


class FailedCalls(WrappedDatabase):
    """A database whose transactions fail at their next `left` calls of one kind, with this error.

    Args:
        what: the kind.
        is_made: whether these calls happen, and only their results are lost.

    Attributes:
        on_failure: called before the error is raised.
    """

    def __init__(
        self, db: Any, code: int, *, what: str = "commit", is_made: bool = False, left: int = 0
    ) -> None:
        super().__init__(db)
        self.left = left
        self.on_failure: Callable[[], object] = lambda: None
        self._code, self._what, self._is_made = code, what, is_made

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what != self._what or not self.left:
            return super().call(tr, what, *args, **kwargs)
        self.left -= 1
        if self._is_made:
            super().call(tr, what, *args, **kwargs).wait()
        self.on_failure()
        raise self.error(self._code)


class Overtaken(WrappedDatabase):
    """A database in which something else is done once, before the first commit of a transaction that writes.

    Attributes:
        is_done: whether it was done.
    """

    def __init__(self, db: Any, act: Callable[[], object]) -> None:
        super().__init__(db)
        self.is_done = False
        self._act = act

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "commit" and not self.is_done and tr.writes:
            self.is_done = True
            self._act()
        return super().call(tr, what, *args, **kwargs)


class LateCommit(WrappedDatabase):
    """A database whose first commit ends with 1021 and is made only when the next one is: before that, or after.

    Attributes:
        code: of the error that the late commit ends with; 0 if it was made.
    """

    def __init__(self, db: Any, *, is_first: bool) -> None:
        super().__init__(db)
        self.code: int | None = None
        self._is_first = is_first
        self._late: Any = None

    @property
    def is_under_way(self) -> bool:
        """Whether the first commit has ended with its error, and is not made."""
        return self._late is not None and self.code is None

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "on_error":  # it goes on as another one, as the commit of this one may be under way
            tr.inner = self.inner.create_transaction()
        if what != "commit":
            return super().call(tr, what, *args, **kwargs)
        if self._late is None and tr.writes:
            self._late = tr.inner
            raise self.error(UNKNOWN)
        if not self.is_under_way:
            return tr.inner.commit()
        if self._is_first:
            self.land()
        committed = tr.inner.commit()
        if not self._is_first:
            committed.wait()
            self.land()
        return committed

    def land(self) -> None:
        """Make the late commit."""
        self.code = 0
        try:
            self._late.commit().wait()
        except error_class(self) as error:
            self.code = error.code
