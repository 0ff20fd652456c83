"""The index of the keys' times, as a pass reads and changes it: each key with a value has one entry.

With an expiry after the latest update, a pass reads the stored time of each key that it combines, beside the current
value. It moves the entry if the time is another one, also if the updates leave the value as it is. With an expiry by
key, the time is a part of the key: a pass reads nothing, writes the entry with a key's first value, and clears it with
the last one.

Only passes over a key's bucket write its entry, and others who rewrite the state of that bucket. So the reads are
snapshot reads, as those of values are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.config.expiry import UPDATE, ExpirySpec
from cq.config.queue import QueueConfig
from cq.keys.expiry import TIME_BYTES, ExpiryKeys, pack_time
from cq.store.api import TransactionRead, Value, Writer
from cq.store.bounded_reads import read_at_hashes
from cq.store.sizes import CLEAR_COPIES, SET_COPIES, WRITE_BYTES, clear_bytes

_FEW: Final = 256  # keys that are read singly, started together with the reads of their values


class IndexMove(NamedTuple):
    """A change of the index: the place of a key, and its stored time before and after; None: no entry."""

    where: bytes
    before: bytes | None
    after: bytes | None


class ExpiryIndex:
    """The index of a queue's keys, in the transaction of one pass.

    Args:
        snapshot: snapshot reads of the pass's transaction.
        config: the queue's configuration.
        spec: its expiry.

    Attributes:
        now: the time of the pass in seconds since 1970.
    """

    def __init__(self, snapshot: TransactionRead, config: QueueConfig, spec: ExpirySpec) -> None:
        self.now = runtime.time()
        self.keys = ExpiryKeys(config.name)
        self.spec = spec
        self._snapshot = snapshot
        self._key = config.key
        self._is_by_update = spec.by == UPDATE
        self._requested: dict[bytes, Value] = {}
        self._times: dict[bytes, bytes | None] = {}

    @property
    def present_time(self) -> bytes:
        """The stored bytes of the time of a key with an update now."""
        return pack_time(self.spec.time_of_update(self.now))

    def request(self, encoded_keys: Sequence[bytes]) -> None:
        """Start to read the stored times of a few keys, while the caller reads their values."""
        if self._is_by_update and len(encoded_keys) < _FEW:
            get, key = self._snapshot.get, self.keys.time_of
            self._requested = {encoded: get(key(encoded)) for encoded in encoded_keys}

    def read(self, encoded_keys: Sequence[bytes]) -> None:
        """Read the stored times of keys, so that `moves` can be called for them."""
        if not self._is_by_update:
            return
        self._times = {key: self._requested[key].value for key in encoded_keys if key in self._requested}
        if len(self._times) < len(encoded_keys):
            at = self.keys.time(b"").__add__
            self._times = read_at_hashes(self._snapshot, at, encoded_keys, self._times, sys.maxsize)

    def moves(
        self,
        encoded_keys: Sequence[bytes],
        keys: Sequence[Any],
        places: Sequence[bytes],
        before: Sequence[bytes | None],
        after: Sequence[bytes | None],
    ) -> list[IndexMove]:
        """The changes of the index for keys that get new values; `before` and `after` are their encoded values.

        `keys` are the decoded keys, which only an expiry by key uses.
        """
        if self._is_by_update:
            now = self.present_time
            times = (self._times[encoded] for encoded in encoded_keys)
            rows = zip(places, times, after, strict=True)
            found = (IndexMove(where, time, None if new is None else now) for where, time, new in rows)
            return [move for move in found if move.before != move.after]
        moves = []
        packed: dict[Any, bytes] = {}  # few different times
        for key, where, old, new in zip(keys, places, before, after, strict=True):
            if (old is None) == (new is None):
                continue
            time = packed.get(key[-1])
            if time is None:
                time = packed[key[-1]] = pack_time(self.spec.time_of_key(key))
            moves.append(IndexMove(where, time if new is None else None, None if new is None else time))
        return moves

    def time_of(self, encoded: bytes, entry: bytes) -> bytes | None:
        """The stored time of a key that was read, or for an expiry by key, the time in its entry."""
        return self._times[encoded] if self._is_by_update else entry

    def deletion_bytes(self, where: bytes) -> int:
        """The bytes of clearing the entry and the stored time of a key."""
        return clear_bytes(self.keys.entry(0, where)) + clear_bytes(self.keys.time(where))

    def time_in_key(self, encoded: bytes) -> bytes:
        """The stored bytes of the time in a key's last part; raises `CorruptData`."""
        return pack_time(self.spec.time_of_key(self._key.decode(encoded)))

    def write(self, tr: Writer, moves: Iterable[IndexMove]) -> None:
        """Write these changes."""
        write_set, clear, entry = tr.set, tr.clear, self.keys.entry_at
        for where, before, after in moves:
            if before is not None:
                clear(entry(before, where))
            if after is not None:
                write_set(entry(after, where), b"")
            if self._is_by_update:
                if after is None:
                    clear(self.keys.time(where))
                else:
                    write_set(self.keys.time(where), after)


def index_cost(config: QueueConfig) -> tuple[int, int]:
    """The maximum bytes of a change of the index for one key: times the length of the encoded key, and in addition."""
    if config.expiry is None:
        return 0, 0
    keys = ExpiryKeys(config.name)
    entry, time = len(keys.entry(0, b"")), len(keys.time(b""))
    if config.expiry.by != UPDATE:
        return CLEAR_COPIES, CLEAR_COPIES * entry + WRITE_BYTES
    copies = CLEAR_COPIES + 2 * SET_COPIES
    return copies, (CLEAR_COPIES + SET_COPIES) * entry + SET_COPIES * time + TIME_BYTES + 3 * WRITE_BYTES
