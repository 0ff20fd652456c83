"""Reads at a version that is some seconds old at most, which a process requests once for all of them.

Each transaction of a cluster begins with a request for a read version. A read that may be a second old can begin at a
version that an earlier read of the process has requested, and then only requests its data. In an embedded store, a
version costs nothing, so each read is of the present.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from cq import runtime
from cq.durations import Span, span_of
from cq.errors import InvalidConfiguration
from cq.store.api import Database, Transaction, error_code, is_local
from cq.store.mistakes import refuse_unless_database
from cq.store.reads import ReadOnly

T = TypeVar("T")

MAX_AGE: Final = 4.0
"""A cluster keeps versions for 5 seconds, and the read itself takes some time."""

_versions: WeakKeyDictionary[Any, tuple[int, float]] = WeakKeyDictionary()
"""{database: (a read version, when it was requested)}."""


def read_earlier(db: Database, fn: Callable[[Transaction], T], *, max_age: Span) -> T:
    """Return what `fn(tr)` returns, which only reads, at a version that is at most `max_age` old.

    Pages that many people load save one of two requests to a cluster with it. It may run `fn` several times, as
    `cq.transact`. It does not see all commits that have returned before: use it for what may be late, and not for what
    the same person has just written.

    Args:
        db: a database of either store. An embedded one is read as it is at present.
        fn: a function of a transaction that only reads.
        max_age: 0 to 4 seconds.

    Raises:
        TypeError: `fn` writes, or sets a watch.
        InvalidConfiguration: the age is out of range.
        Exception: an error of the function, or of `cq.transact`.
    """
    seconds = span_of(max_age)
    if not 0 <= seconds <= MAX_AGE:
        raise InvalidConfiguration(f"expected an age of 0 to {MAX_AGE:g} seconds, got: {max_age!r}")
    try:
        tr = db.create_transaction()
    except AttributeError:
        refuse_unless_database(db)
        raise
    reading: Callable[[Any], T] = fn  # it has all methods by `__getattr__`
    while True:
        _begin(db, tr, seconds)
        try:
            return reading(ReadOnly(tr))
        except Exception as error:
            if error_code(error) is None:
                raise
            _versions.pop(db, None)  # too old, or of a cluster that has recovered
            tr.on_error(error_code(error)).wait()


def _begin(db: Database, tr: Any, max_age: float) -> None:
    """Set the read version of a transaction, or note the one that it requests."""
    if is_local(db):
        return
    now = runtime.monotonic()
    version, requested = _versions.get(db, (0, 0.0))
    if version and now - requested <= max_age:
        tr.set_read_version(version)
    elif max_age:
        # Not before it has come, so no read of another thread begins at a version that was requested later.
        _versions[db] = (tr.get_read_version().wait(), now)
