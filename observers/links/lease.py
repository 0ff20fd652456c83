"""The lease of a bucket: one worker at a time sends its entries to a target that keeps no positions.

Without it, a new owner of the bucket would begin while the last call of the former owner is still under way, and the
target would get older entries of a key after newer ones, without any crash: seen in 1 of 6 runs with two workers that
start together. The lease is in the bucket's state, which is read with each batch, so it costs one transaction when the
owner changes. A worker that is dead, or whose call has not ended for `HOLD_SECONDS`, loses the lease: only then, older
entries can come again after newer ones. A drain holds no lease, and waits for those of live workers.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cq import runtime
from cq.errors import CorruptData
from cq.keys.link import LinkKeys
from cq.keys.membership import worker
from cq.observers.links.state import LinkState
from cq.observers.scheduling.members import Member
from cq.store.api import Database, Transaction
from cq.store.transact import transact

log = logging.getLogger("cq.link")

HELD_SECONDS: Final = 0.2
"""How often to look whether another worker has released the lease."""
_RELEASE_MILLISECONDS: Final = 2_000
HOLD_SECONDS: Final = 60.0
"""How long to wait for the last call of a live worker: it hangs, or the worker's process stands still."""


class Lease:
    """A worker's side of the lease of one bucket.

    Args:
        keys: of the link.
        bucket: the bucket's number.
    """

    def __init__(self, keys: LinkKeys, bucket: int) -> None:
        self._keys = keys
        self._bucket = bucket
        self._lock = threading.Lock()
        self._worker = b""
        self._is_held = False
        self._is_calling = False
        self._is_left = False
        self._waiting_since: float | None = None

    def enter(self, worker_id: bytes) -> None:
        """The worker with this id has acquired the task; empty for a drain."""
        with self._lock:
            self._worker, self._is_left, self._waiting_since = worker_id, False, None

    def take(self, tr: Transaction, state: LinkState) -> bool:
        """Take the lease, unless another worker holds it, in the transaction that has read the state of the bucket."""
        if state.holder == self._worker or not (state.holder or self._worker):
            return True
        if state.holder and self._is_alive(tr, state.holder) and not self._has_waited():
            return False
        if self._worker:
            with self._lock:
                self._is_held = True
            key = self._keys.state(self._bucket)
            tr.add_read_conflict_key(key)
            tr.set(key, replace(state, holder=self._worker).to_bytes())
        return True

    def begin(self) -> None:
        """A call of the target begins, under the lease."""
        with self._lock:
            self._is_calling, self._is_held, self._waiting_since = True, bool(self._worker), None

    def end(self, db: Database) -> None:
        """The call of the target has ended."""
        with self._lock:
            self._is_calling = False
            is_left = self._is_left
        if is_left:
            self._release(db)

    def leave(self, db: Database) -> None:
        """The worker has released the task: give the lease to others, at the end of a call that is still under way."""
        with self._lock:
            self._is_left = True
            is_calling = self._is_calling
        if not is_calling:
            self._release(db)

    def _release(self, db: Database) -> None:
        with self._lock:
            is_held, self._is_held = self._is_held, False
        if is_held:
            try:
                transact(db, self._clear)
            except Exception as error:  # noqa: BLE001 - others take it once this worker's row is gone
                log.debug("the lease of %r could not be released: %s", self._keys.prefix, error)

    def _clear(self, tr: Transaction) -> None:
        tr.options.set_timeout(_RELEASE_MILLISECONDS)
        key = self._keys.state(self._bucket)
        state = LinkState.from_bytes(tr.get(key).value)
        if state.holder == self._worker:
            tr.set(key, replace(state, holder=b"").to_bytes())

    def _has_waited(self) -> bool:
        now = runtime.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since > HOLD_SECONDS

    def _is_alive(self, tr: Transaction, holder: bytes) -> bool:
        """Whether a worker lives: those who find it dead remove its row."""
        key = worker(holder)
        row = tr.snapshot.get(key).value
        if row is None:
            return False
        with suppress(CorruptData):
            return Member.of_row(key, row).is_alive(tr.get_read_version().wait())
        return True
