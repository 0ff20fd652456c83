"""Tools for tests of applications: a store for each test, a function that does the work of workers, and assertions.

`pytest_plugins = ["cq.testing"]` in the topmost conftest.py adds the fixtures `cq_db` and `cq_aio_db`. Import the
functions; they work with any database. `MemoryTarget` and `check_target` are for targets of links. No other module of
cq imports this one, or pytest.

PYTEST_DONT_REWRITE: the module has no `assert`, so an import before its registration as a plugin does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cq import runtime
from cq.config.flags import read_flags
from cq.config.queue import QueueConfig, queue_names, read_config
from cq.draining import drain, names_of
from cq.encoding.codec import DELETE
from cq.keys import QueueKeys
from cq.linktesting import MemoryTarget, check_target
from cq.observers.monitoring.link_status import configured_links, read_link_status
from cq.queue.combine_queue import CombineQueue
from cq.queue.rows import decode_row
from cq.queue.set_aside import Aside, read_aside
from cq.store import OpenDatabase
from cq.store.api import Database, Transaction
from cq.store.embedded import Database as Embedded
from cq.store.transact import transact

try:
    import pytest

    fixture = pytest.fixture
except ModuleNotFoundError:  # a program that only calls the functions needs no pytest

    def fixture(function: Any) -> Any:  # type: ignore[misc]
        return function


if TYPE_CHECKING:
    from cq.aio import AsyncDatabase

__all__ = ["MemoryTarget", "assert_drained", "assert_values", "check_target", "cq_aio_db", "cq_db", "drain"]

_ROWS: Final = 100  # read for a message, of each kind
_SHOWN: Final = 10  # lines of each kind in a message
_CHARACTERS: Final = 200  # of each key and value in a message
_TRIES: Final = 5


@fixture
def cq_db(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenDatabase]:
    """A new embedded store in a temporary file, for one test. $CQ_STORE names it, so `cq.open()` opens it, too.

    Commits do not wait for the disk, because the store need not survive a power failure.
    """
    path = tmp_path_factory.mktemp("cq") / "test.db"
    monkeypatch.setenv("CQ_STORE", f"embedded:{path}")
    with Embedded(path, power_safe=False) as db:
        yield db


@fixture
def cq_aio_db(cq_db: OpenDatabase) -> AsyncDatabase:
    """The store of `cq_db` for tests that are coroutines, in any event loop of asyncio; needs the extra `aio`.

    `await cq_aio_db.call(drain)` drains it, and `await cq_aio_db.call(assert_values, queue, {...})` compares values.
    """
    from cq.aio import AsyncDatabase  # needs greenlet, which other tests do without

    return AsyncDatabase(cq_db)


def assert_values(db: Database, queue: str | CombineQueue, expected: Mapping[Any, Any]) -> None:
    """Assert that the queue has exactly the expected keys and values.

    The message names missing, extra and different keys, queued updates, and updates that were set aside.
    """
    __tracebackhide__ = True
    handle = _queue(queue)
    found = dict(handle.scan(db))
    missing = [f"{_short(key)}: expected {_short(expected[key])}" for key in expected if key not in found]
    extra = sorted(f"{_short(key)}: found {_short(found[key])}" for key in found if key not in expected)
    different = [
        f"{_short(key)}: expected {_short(value)}, found {_short(found[key])}"
        for key, value in expected.items()
        if key in found and found[key] != value
    ]
    lines = [
        f"{what} {line}"
        for what, lines in (("missing", missing), ("extra", extra), ("different", different))
        for line in _first_lines(lines)
    ]
    if lines:
        lines += transact(db, lambda tr: _remaining(tr, handle.name))
        raise AssertionError("\n  ".join([f"queue {handle.name!r} has other values than expected:", *lines]))


def assert_drained(db: Database, *queues: str | CombineQueue) -> None:
    """Assert that the queues (default: all queues) have no updates to combine or to export, and none set aside.

    A queue includes the levels of its roll-up. The message names these updates, with errors. All queues are read in one
    transaction, so workers may run: a change that they move from one queue to another one is always seen in one of
    them. A transaction lives five seconds: name the queues if a cluster has thousands.
    """
    __tracebackhide__ = True
    names = names_of(db, queues)
    lines = transact(db, lambda tr: _remaining_in(tr, names or queue_names(tr.snapshot)))
    if lines:
        raise AssertionError("\n  ".join(["not everything is combined and sent:", *lines]))


def _queue(queue: str | CombineQueue) -> CombineQueue:
    return queue if isinstance(queue, CombineQueue) else CombineQueue(queue)


# Remaining work


def _remaining_in(tr: Transaction, names: Sequence[str]) -> list[str]:
    """Lines about the remaining work of these queues, each with the name of its queue."""
    tr.options.set_retry_limit(_TRIES)  # a transaction that gets too old each time would be retried for ever
    return [f"queue {name!r}: {line}" for name in names for line in _remaining(tr, name)]


def _remaining(tr: Transaction, name: str) -> list[str]:
    """Lines about queued updates of a queue, rows to export, and updates set aside."""
    lines = _remaining_in_queue(tr, name)
    now = tr.get_read_version().wait()
    for link in configured_links(tr, name):
        each = read_link_status(tr, *link, now)
        if each.rows or each.state != "active":
            error = f": {each.error}" if each.error else ""
            lines.append(f"rows for link {each.link!r}: {each.rows:,}; it is {each.state}{error}")
        if each.aside:
            lines.append(f"changes set aside because link {each.link!r} could not send them: {each.aside:,}")
    return lines


def _remaining_in_queue(tr: Transaction, name: str) -> list[str]:
    snapshot, keys = tr.snapshot, QueueKeys(name)
    config, flags = read_config(snapshot, name), read_flags(snapshot, name)
    rows = [decode_row(row.key, row.value) for row in snapshot.get_range(*keys.all_rows(), limit=_ROWS)]
    updates = [
        f"{_short(config.key.decode(encoded))} {_short(update)}"
        for row in rows
        for encoded, update in row.updates
    ]
    lines = []
    if updates:
        lines.append(f"queued updates, in commit order by bucket: {', '.join(_first_lines(updates))}")
    elif buckets := len(snapshot.get_range(*keys.notifications()).to_list()):
        lines.append(f"{buckets:,} buckets wait for a pass")
    if lines and flags.is_paused(runtime.time()):
        lines.append(f"it is paused: {flags.reason}")
    return lines + _first_lines(
        [_aside_line(config, each) for each in read_aside(snapshot, name, limit=_ROWS)]
    )


def _aside_line(config: QueueConfig, each: Aside) -> str:
    key = _short(config.key.decode(each.encoded_key)) if each.encoded_key else "a row that cq has not written"
    return f"set aside {key} {_short(each.updates)}: {each.error}"


def _first_lines(lines: list[str]) -> list[str]:
    """The first lines, and the number of the others."""
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"... and {more:,} more"] if more > 0 else lines


def _short(value: object) -> str:
    text = "DELETE" if value is DELETE else repr(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."
