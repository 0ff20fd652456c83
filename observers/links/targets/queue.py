"""A queue of another store as a target, with exactly-once effect.

One transaction of the receiving store compares the position of a bucket with a conflict range, adds the updates, and
advances the position. A new generation begins with all present values, which sums would count twice: lost or repeated
differences cannot be corrected by later ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cq import store
from cq.app import App
from cq.combiners import resolve
from cq.config.queue import QueueConfig, read_config
from cq.config.store_id import store_id
from cq.encoding.codec import DELETE, encode
from cq.errors import CorruptData, InvalidData, InvalidUrl, QueueFull
from cq.keys.link import LinkKeys, Position, generation_of, received
from cq.observers.links.log import LinkEntry
from cq.observers.links.spec import read_variable
from cq.observers.links.target import CannotSend, Changes, LinkFailed, LinkStopped, Source, Target
from cq.queue.checks import AddCheck
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.sizes import PREDICTED_BYTES
from cq.store.transact import transact


def make_target(source: Source, config: QueueConfig, settings: Mapping[str, Any], app: App) -> Target:
    """The queue in the settings."""
    return QueueTarget(source, config, settings.get("into", config.name), settings["url_env"])


class QueueTarget(Target):
    """A queue of another store; thread-safe.

    Args:
        source: the link.
        config: the configuration of the forwarded queue.
        into: the name of the receiving queue.
        url_env: the environment variable with the receiving store's URL.
    """

    keeps_positions = True

    def __init__(self, source: Source, config: QueueConfig, into: str, url_env: str) -> None:
        self._source = source
        self._config = config
        self._into = CombineQueue(into)
        self._url_env = url_env
        self._opening = threading.Lock()
        self._receiving: Database | None = None
        self.noun = f"the store in ${url_env}"
        self.repeats = resolve(config.combiner.name).is_idempotent

    def apply(self, changes: Changes) -> str | None:
        # Not chained: it returns the position that it reads, and an outdated one looks like a store that was set back.
        try:
            return transact(self._database(), lambda tr: self._apply(tr, changes))
        except QueueFull as error:
            raise LinkFailed(str(error)) from error

    def compare(self, changes: Sequence[Changes]) -> list[str | None]:
        return transact(self._database(), lambda tr: [self._apply(tr, each) for each in changes])

    def check(self) -> None:
        transact(self._database(), self._check_queue)

    def check_settings(self) -> str:
        self._check_url()
        return f"queue {self._into.name!r} of {self.noun} takes it"

    def close(self) -> None:
        with self._opening:
            receiving, self._receiving = self._receiving, None
        if receiving is not None:
            store.close(receiving)

    def _apply(self, tr: Transaction, changes: Changes) -> str | None:
        """As `apply`; raises `CannotSend` for changes that need several transactions, so that halves of them come."""
        config = self._check_queue(tr)
        key = received(
            self._into.keys,
            self._source.store,
            changes.bucket,
            LinkKeys(self._source.queue, self._source.link),
        )
        stored = self._stored(tr, key)
        if stored != changes.previous:
            return stored
        # What earlier generations have sent is in the present values that begin this one, where differences would count
        # twice. Only a deletion is in none: it is applied, in case this queue has received the key before.
        generation = self._source.generation
        entries = [
            entry
            for entry in changes.entries
            if entry.value is None or generation_of(entry.sequence) == generation
        ]
        if len(entries) > 1 and _written(config, entries) > PREDICTED_BYTES:
            raise CannotSend("the changes do not fit into one transaction")
        if entries:
            try:
                self._into.add(tr, list(map(_update, entries)))
            except InvalidData as error:
                raise CannotSend(str(error)) from error
        if changes.position != stored:
            tr.set(key, changes.position.encode())
        return None

    def _stored(self, tr: TransactionRead, key: bytes) -> str:
        """The stored position; raises `LinkStopped` if sums of an earlier generation would be counted twice."""
        text = (tr.get(key).value or b"").decode("latin-1")
        position = Position.parse(text)
        if position is None:
            raise CorruptData(
                f"the stored position of a forwarded queue was not written by cq: {text[:40]!r}"
            )
        if not self.repeats and 0 < generation_of(position.sequence) < self._source.generation:
            raise LinkStopped(
                f"queue {self._config.name!r} was forwarded into {self._into.name!r} before; forwarding all of its "
                "values again would count them twice"
            )
        return text

    # The receiving store

    def _database(self) -> Database:
        """Open the receiving store, once; raises `LinkFailed` if its URL is missing or wrong, or a `StoreError`."""
        receiving = self._receiving
        if receiving is None:
            # Without the lock: this may take long, and a second thread may do the same.
            opened = self._opened()
            with self._opening:
                receiving = self._receiving = self._receiving or opened
            if receiving is not opened:
                store.close(opened)
        return receiving

    def _check_url(self) -> tuple[str, str, str]:
        """Return the receiving store's URL, scheme and path; raises `LinkFailed` if the URL is missing or wrong."""
        url = read_variable(self._url_env)
        if not url:
            raise LinkFailed(f"${self._url_env} is not set: give the URL of the receiving store there")
        try:
            return url, *store.located(url)
        except InvalidUrl:
            # The message must not show the URL: it may be one of another kind of database, with a password.
            raise LinkFailed(
                f"the URL in ${self._url_env} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster"
            ) from None

    def _opened(self) -> Database:
        url, scheme, path = self._check_url()
        if scheme == "embedded" and not os.path.exists(path):  # opening it would create an empty store
            raise LinkFailed(
                f"there is no store where ${self._url_env} says: create it, or correct the variable"
            )
        db = store.open_exactly(url)
        if transact(db, store_id) == self._source.store and self._into.name == self._config.name:
            raise LinkFailed(
                f"queue {self._config.name!r} would be forwarded into itself: ${self._url_env} has this store's URL"
            )
        return db

    def _check_queue(self, tr: Transaction) -> QueueConfig:
        """The receiving queue; raises `LinkFailed` unless it has the types and combiner of the forwarded queue."""
        config = read_config(tr, self._into.name)
        found, own = config.settings(), self._config.settings()
        wrong = [
            f"{what} {found[what]} instead of {own[what]}"
            for what in ("key", "value", "combiner")
            if found[what] != own[what]
        ]
        if wrong:
            raise LinkFailed(
                f"the receiving queue {self._into.name!r} has {', '.join(wrong)}: forward into a queue of the same kind"
            )
        return config


def _update(entry: LinkEntry) -> tuple[Any, Any]:
    """The key and the update of an entry."""
    return entry.key, DELETE if entry.value is None else entry.value


def _written(config: QueueConfig, entries: Sequence[LinkEntry]) -> int:
    """The approximate bytes that adding these entries to a queue writes; 0 if a batch is small enough in any case."""
    adds = AddCheck(config)
    if not adds.each:
        return 0
    return sum(adds.written(len(entry.encoded_key) + len(encode(_update(entry)[1]))) for entry in entries)
