"""Records of the demo of a chat: the ledger of sent messages, and the messages seen by terminals.

The ledger has a row for each transaction of a sender, with the versionstamp of its commit in the key. Its rows in order
are the history that the recount uses. Each sender stores its position in the same transaction: so a restarted sender,
or one that lost the answer of a commit, does not send a message twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from cq.encoding import codec
from cq.keys import VERSIONSTAMP_BYTES, after, prefix_end
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

KEYS: Final = b"demo_chat/"
"""The prefix of the demo's own keys."""
_LEDGER: Final = KEYS + b"ledger/"
_PLACES: Final = KEYS + b"place/"
_SEEN: Final = KEYS + b"seen/"
_PAGE: Final = 1_000


class Action(NamedTuple):
    """An action of a sender.

    Attributes:
        kind: "message", "group", "join" or "leave".
        to: the receiver, or the group.
        user: the user who joins or leaves; otherwise empty.
        messages: number of messages.
    """

    kind: str
    to: str
    user: str = ""
    messages: int = 1


class LedgerEntry(NamedTuple):
    """A row of the ledger: the sender, the number of its first message, and the action."""

    sender: str
    first: int
    action: Action


class Sighting(NamedTuple):
    """A message that a terminal has seen.

    Attributes:
        id: id of the message.
        milliseconds: delay since it was sent; negative if the terminal was offline during that time.
    """

    id: bytes
    milliseconds: float


def place_of(tr: TransactionRead, sender: str) -> int:
    """The position of a sender: the number of its finished actions."""
    return int(tr.get(_PLACES + sender.encode()).value or 0)


def note_sent(tr: Transaction, place: int, entry: LedgerEntry) -> None:
    """Add an action to the ledger, and move the position of its sender from `place` to the next one."""
    tr.set(_PLACES + entry.sender.encode(), b"%d" % (place + 1))
    key = _LEDGER + b"\x00" * VERSIONSTAMP_BYTES + len(_LEDGER).to_bytes(4, "little")
    tr.set_versionstamped_key(key, codec.encode([entry.sender, entry.first, list(entry.action)]))


def note_seen(tr: Transaction, user: str, terminal: str, sights: Sequence[Sighting]) -> None:
    """Store the messages that a terminal has seen."""
    key = _of_terminal(user, terminal) + sights[-1].id
    tr.set(key, codec.encode([list(sight) for sight in sights]))


def entries(db: Database) -> Iterator[LedgerEntry]:
    """The whole ledger, in commit order."""
    for _, value in _rows(db, _LEDGER):
        sender, first, action = codec.decode(value)
        yield LedgerEntry(sender, first, Action(*action))


def seen(db: Database, user: str, terminal: str) -> list[Sighting]:
    """All messages that a terminal has seen, in that order."""
    prefix = _of_terminal(user, terminal)
    return [Sighting(*sight) for _, value in _rows(db, prefix) for sight in codec.decode(value)]


def clear(tr: Transaction) -> None:
    """Delete all records."""
    tr.clear_range(KEYS, prefix_end(KEYS))


def _of_terminal(user: str, terminal: str) -> bytes:
    return _SEEN + f"{user}/{terminal}/".encode()


def _rows(db: Database, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All rows with a prefix, read in several transactions."""
    place, end = prefix, prefix_end(prefix)
    while True:
        rows: list[Any] = transact(db, lambda tr: tr.snapshot.get_range(place, end, limit=_PAGE).to_list())  # noqa: B023
        yield from ((row.key, row.value) for row in rows)
        if len(rows) < _PAGE:
            return
        place = after(rows[-1].key)
