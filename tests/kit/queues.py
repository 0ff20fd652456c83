"""What several tests need: combining a queue without threads, and looking at what is stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

import cq
from cq.admin.configure import change, requested
from cq.app import App, QueueCode
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.observer import ObserverSpec
from cq.observers.builtin import FACTORIES
from cq.passes.effects import PassResult
from cq.passes.plan import Limits
from cq.queue.pending import read_pending_updates
from cq.queue.set_aside import Aside, read_aside
from cq.store.api import NOT_COMMITTED, TRANSACTION_TOO_OLD, error_code
from cq.store.transact import transact
from cq.windows import Window

STAGING: Final = Limits(repack_bytes=0)
"""For passes that stage what they fold, instead of leaving it as rows."""


def copy_store(store: Path, copy: Path) -> None:
    """Make a backup of an embedded store that may be in use, by the SQLite that this process uses it with."""
    with (
        closing(apsw.Connection(str(store))) as source,
        closing(apsw.Connection(str(copy))) as target,
        target.backup("main", source, "main") as backup,
    ):
        backup.step()


def code_of(db: Any, name: str, app: App | None = None) -> QueueCode:
    """The configuration and code of a queue, with the built-in observers unless an application is given."""
    config = config_of(db, name)
    return App().code(config, FACTORIES) if app is None else app.code(config)


def config_of(db: Any, name: str) -> QueueConfig:
    """The configuration of a queue."""
    return transact(db, lambda tr: read_config(tr, name))


def begun(db: Any, name: str) -> Any:
    """A transaction that has read the configuration of a queue.

    So the configuration is cached at the transaction's read version. Without this, another test that configures a queue
    on the same cluster could invalidate the cache between a read and the transaction whose calls a test counts.
    """
    tr = db.create_transaction()
    read_config(tr.snapshot, name)
    return tr


def buckets_of(db: Any, name: str, app: App | None = None, limits: Limits | None = None) -> list[PassRunner]:
    """A `Bucket` for each of the queue's buckets."""
    code = code_of(db, name, app)
    return [PassRunner(db, code, number, limits=limits) for number in range(code.config.buckets)]


def configured(db: Any, name: str, **settings: Any) -> QueueConfig:
    """Do as `cq.configure`, and return the configuration."""
    return change(db, name, requested(**settings))


def put_built_in(db: Any, config: QueueConfig, observer: ObserverSpec) -> QueueConfig:
    """Put a built-in observer on a queue, after a check that it suits the queue."""
    return change(db, config.name, requested(put=[observer], creates=False))


Writes = Mapping[bytes, bytes | None]
"""Keys and values to write; None for a key to clear."""


def put(db: Any, rows: Writes) -> None:
    """Set these keys in one transaction, and clear those with None."""

    def write(tr: Any) -> None:
        for key, value in rows.items():
            if value is None:
                tr.clear(key)
            else:
                tr.set(key, value)

    transact(db, write)


def event_of(watch: Any) -> threading.Event:
    """An event that is set when a future is ready."""
    fired = threading.Event()
    watch.on_ready(lambda _: fired.set())
    return fired


def add(db: Any, name: str, *transactions: Any, once: str | bytes | None = None) -> None:
    """Add to the queue in a transaction for each of these."""
    for updates in transactions:
        transact(db, partial(cq.CombineQueue(name).add, updates=updates, once=once))


def add_at(db: Any, window: Window[Any, Any], updates: Any, at: float | None = None, **given: Any) -> str:
    """Add updates with a time, in a transaction of their own: what `Window.add` returns."""
    return str(transact(db, partial(window.add, updates=updates, at=at, **given)))


def get(db: Any, name: str, key: Any, pending: bool = False) -> Any:
    """The value of a key, read in a transaction of its own."""
    return transact(db, partial(cq.CombineQueue(name).get, key=key, pending=pending))


def combine_all(
    db: Any, name: str, app: App | None = None, limits: Limits | None = None, most: int = 10_000
) -> list[PassResult]:
    """Passes over all buckets, notified or not, until nothing is left to do: what they did.

    Where that is of no interest, use `cq.testing.drain`. Fails when it takes too many passes.
    """
    results = []
    for bucket in buckets_of(db, name, app, limits):
        while True:
            results.append(bucket.combine())
            if not results[-1].more:
                break
            assert len(results) < most, f"bucket {bucket.number} is not drained after {most} passes"
    return results


def spoil(db: Any, name: str, *keys: Any) -> Callable[[], None]:
    """Make the values of keys unreadable; returns a function that restores them."""
    encoded = config_of(db, name).key.encoder()
    at = [QueueKeys(name).value(encoded(key)) for key in keys]
    former = transact(db, lambda tr: {key: tr.get(key).value for key in at})
    put(db, dict.fromkeys(at, b"\xff"))
    return partial(put, db, former)


def stored(db: Any, bounds: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """What lies in a range of keys."""
    return transact(db, lambda tr: [(row.key, row.value) for row in tr.snapshot.get_range(*bounds)])


def values(db: Any, name: str) -> dict[Any, Any]:
    """{key: value} of a queue."""
    return dict(cq.CombineQueue(name).scan(db))


def values_of(db: Any, name: str) -> dict[Any, Any]:
    """{key: value} of a queue, read without its API."""
    keys, config = QueueKeys(name), config_of(db, name)
    return {
        config.key.decode(keys.encoded_key(key)): codec.decode(value)
        for key, value in stored(db, keys.values())
    }


def waiting_of(db: Any, name: str) -> dict[Any, list[Any]]:
    """{key: updates} of a queue that are queued or staged, read at one version."""

    def read(tr: Any) -> dict[Any, list[Any]]:
        config = read_config(tr, name)
        found = read_pending_updates(tr.snapshot, config)
        return {config.key.decode(encoded): list(updates) for encoded, updates in found.items()}

    return transact(db, read)


def nothing_queued(db: Any, name: str) -> bool:
    """Whether no row, no notification and nothing staged is left."""
    keys = QueueKeys(name)
    staged = keys.prefix + b"s", keys.prefix + b"t"
    return not any(stored(db, bounds) for bounds in (keys.all_rows(), keys.notifications(), staged))


def aside(db: Any, name: str) -> list[Aside]:
    """What was set aside."""
    return transact(db, lambda tr: read_aside(tr, name))


def commits(tr: Any) -> bool:
    """Whether a transaction can be committed, in either store; False for a conflict, and after five seconds.

    Raises any other error.
    """
    try:
        tr.commit().wait()
    except Exception as error:
        if error_code(error) not in (NOT_COMMITTED, TRANSACTION_TOO_OLD):
            raise
        return False
    return True


def is_ended(watch: Any) -> bool:
    """Whether a watch has fired, failed or been cancelled, or soon has: a cluster's client cancels in its thread."""
    return event_of(watch).wait(60)
