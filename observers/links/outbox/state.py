"""The stored settings and state of a queue's outbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cq import runtime
from cq.encoding import codec
from cq.encoding.stored import StoredRecord
from cq.errors import CorruptData, NotInStore
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.link import OutboxKeys
from cq.observers.links.state import read_failures, read_stopped
from cq.store.api import Transaction, TransactionRead

DEFAULT_ENV: Final = "CQ_OUTBOX_URL"
"""The default environment variable of the URL of the database with the outbox."""
_NUMBER_BYTES: Final = 8
BATCH_BYTES: Final = 2 * _NUMBER_BYTES


@dataclass(frozen=True, slots=True)
class OutboxSettings(StoredRecord):
    """The environment variable of the database's URL, and the schema of the tables (None: the default one)."""

    NOUN = "the settings of an outbox"

    url_env: str
    schema: str | None


@dataclass(frozen=True, slots=True)
class OutboxState(StoredRecord):
    """The latest batch moved into the queue. Written in the transaction that adds the batch's updates.

    Attributes:
        batch: its id.
        previous: the id of the batch before it.
        packed: the ids of its rows in CBOR; of no rows once the worker knows that they are deleted.
        until: the latest `added_at` of its rows, in ISO 8601. After the application's database was restored, a later
            row can have the id of a row that was lost.
    """

    NOUN = "the state of an outbox"

    batch: bytes
    previous: bytes
    packed: bytes
    until: str

    @classmethod
    def of(cls, batch: bytes, previous: bytes, ids: Sequence[int] = (), until: str = "") -> OutboxState:
        """The state after a batch of rows with these ids, added until this time."""
        return cls(batch, previous, codec.encode(list(ids)), until)

    @property
    def ids(self) -> list[int]:
        """The ids of the rows that may not be deleted yet; raises `CorruptData`."""
        found = codec.decode(self.packed)
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            raise CorruptData(
                f"the rows of a batch of an outbox are not ones that cq wrote: {self.packed[:40]!r}"
            )
        return found


def new_batch(before: bytes = b"") -> bytes:
    """Return the id of the batch after `before`: the next number, which orders batches, and random bytes.

    Random, because after a restore of one database two different batches can have the same number.
    """
    return (number_of(before) + 1).to_bytes(_NUMBER_BYTES, "big") + runtime.token_bytes(_NUMBER_BYTES)


def number_of(batch: bytes) -> int:
    """The number of a batch."""
    return int.from_bytes(batch[:_NUMBER_BYTES], "big")


def read_settings(tr: TransactionRead, name: str) -> OutboxSettings | None:
    """The settings of a queue's outbox; None if it has none. Raises `CorruptData`."""
    stored = tr.get(OutboxKeys(name).settings).value
    return None if stored is None else OutboxSettings.from_bytes(stored)


def existing_settings(tr: TransactionRead, name: str) -> OutboxSettings:
    """The settings of a queue's outbox; raises `NotInStore` if it has none, and `CorruptData`."""
    settings = read_settings(tr, name)
    if settings is None:
        raise _missing(name)
    return settings


def _missing(name: str) -> NotInStore:
    return NotInStore(f"queue {name!r} has no outbox: run `cq outbox init {name}` first")


def read_state(tr: TransactionRead, name: str) -> OutboxState:
    """The state of a queue's outbox; outside of a snapshot, with a conflict on every other move.

    Raises `InvalidConfiguration` if the queue has no outbox, and `CorruptData`.
    """
    stored = tr.get(OutboxKeys(name).state).value
    if stored is None:
        raise _missing(name)
    return parse_state(stored)


def parse_state(stored: bytes) -> OutboxState:
    """The state in these bytes; raises `CorruptData`."""
    state = OutboxState.from_bytes(stored)
    if len(state.batch) != BATCH_BYTES or len(state.previous) not in (0, BATCH_BYTES):
        raise CorruptData(f"the state of an outbox is not one that cq wrote: {stored[:40]!r}")
    try:
        if state.ids:
            datetime.fromisoformat(state.until)
    except ValueError:
        raise CorruptData(
            f"the time of a batch of an outbox is not one that cq wrote: {stored[:40]!r}"
        ) from None
    return state


def read_problem(tr: TransactionRead, queue: str) -> tuple[bool, str]:
    """Whether an outbox is stopped, and its latest error; empty if there is none."""
    outbox = OutboxKeys(queue)
    stopped = read_stopped(tr, outbox)
    if stopped is not None:
        return True, stopped
    return False, next((each.error for each in read_failures(tr, outbox).values()), "")


def notify(tr: Transaction, name: str) -> None:
    """Notify the worker's task that the table may have rows; blind, so the caller knows that there is an outbox."""
    tr.set_versionstamped_value(OutboxKeys(name).keeper, INCOMPLETE_VERSIONSTAMP)
