"""What the processes of the demo of a chat note of themselves: the ledger of what was sent, and what was seen.

The ledger has a row for each transaction that sends, with the versionstamp of its commit in the key: read in order it
is the history that the recount goes by. Each sender keeps how far it is in the same transaction, so that whoever goes
on after its death, or after a commit of which nobody knows, sends nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from cq import codec
from cq.keys import VERSIONSTAMP_BYTES, after, prefix_end
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

KEYS: Final = b"demo_chat/"
"""What all keys of the demo's own begin with."""
_LEDGER: Final = KEYS + b"ledger/"
_PLACES: Final = KEYS + b"place/"
_SEEN: Final = KEYS + b"seen/"
_PAGE: Final = 1_000


class Action(NamedTuple):
    """Something that a sender does.

    Attributes:
        what: "message", "group", "join" or "leave".
        to: the receiver, or the group.
        user: who joins or leaves; else empty.
        messages: how many it is.
    """

    what: str
    to: str
    user: str = ""
    messages: int = 1


class Entry(NamedTuple):
    """A row of the ledger: who has done what, and the number of the first message."""

    sender: str
    first: int
    action: Action


class Sighting(NamedTuple):
    """A message that a terminal has seen.

    Attributes:
        id: of the message.
        milliseconds: after it was sent; negative if the terminal was offline meanwhile.
    """

    id: bytes
    milliseconds: float


def place_of(tr: TransactionRead, sender: str) -> int:
    """How many actions of a sender are done."""
    return int(tr.get(_PLACES + sender.encode()).value or 0)


def note_sent(tr: Transaction, place: int, entry: Entry) -> None:
    """Note an action, which is the sender's of that place."""
    tr.set(_PLACES + entry.sender.encode(), b"%d" % (place + 1))
    key = _LEDGER + b"\x00" * VERSIONSTAMP_BYTES + len(_LEDGER).to_bytes(4, "little")
    tr.set_versionstamped_key(key, codec.encode([entry.sender, entry.first, list(entry.action)]))


def note_seen(tr: Transaction, user: str, terminal: str, sights: Sequence[Sighting]) -> None:
    """Note what a terminal has seen."""
    key = _of_terminal(user, terminal) + sights[-1].id
    tr.set(key, codec.encode([list(sight) for sight in sights]))


def entries(db: Database) -> Iterator[Entry]:
    """The whole ledger, in commit order."""
    for _, value in _rows(db, _LEDGER):
        sender, first, action = codec.decode(value)
        yield Entry(sender, first, Action(*action))


def seen(db: Database, user: str, terminal: str) -> list[Sighting]:
    """All that a terminal has seen, in the order in which it has."""
    prefix = _of_terminal(user, terminal)
    return [Sighting(*sight) for _, value in _rows(db, prefix) for sight in codec.decode(value)]


def clear(tr: Transaction) -> None:
    """Forget all of it."""
    tr.clear_range(KEYS, prefix_end(KEYS))


def _of_terminal(user: str, terminal: str) -> bytes:
    return _SEEN + f"{user}/{terminal}/".encode()


def _rows(db: Database, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All rows below a prefix, read by several transactions."""
    place, end = prefix, prefix_end(prefix)
    while True:
        rows: list[Any] = transact(db, lambda tr: tr.snapshot.get_range(place, end, limit=_PAGE).to_list())  # noqa: B023
        yield from ((row.key, row.value) for row in rows)
        if len(rows) < _PAGE:
            return
        place = after(rows[-1].key)
