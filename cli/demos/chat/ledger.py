"""Records of the demo of a chat: the ledger of sent messages, and the messages seen by terminals.

The ledger has a row for each transaction of a sender, with the versionstamp of its commit in the key. Its rows in order
are the history that the recount uses. Each sender stores its position in the same transaction: so a restarted sender,
or one that lost the answer of a commit, does not send a message twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cq.cli.demos.harness.position import Position
from cq.encoding import codec
from cq.keys import VERSIONSTAMP_BYTES, prefix_end
from cq.store.api import Database, Transaction
from cq.store.row_pages import scan_rows

KEYS: Final = b"demo_chat/"
"""The prefix of the demo's own keys."""
_LEDGER: Final = KEYS + b"ledger/"
_SEEN: Final = KEYS + b"seen/"


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


def position_of(sender: str) -> Position:
    """The position of a sender: the number of its finished actions."""
    return Position(KEYS + b"place/" + sender.encode())


def note_sent(tr: Transaction, place: int, entry: LedgerEntry) -> None:
    """Add an action to the ledger, and move the position of its sender from `place` to the next one."""
    position_of(entry.sender).write(tr, place + 1)
    # The store replaces the zeros by the versionstamp of the commit; the last 4 bytes say where they begin.
    key = _LEDGER + b"\x00" * VERSIONSTAMP_BYTES + len(_LEDGER).to_bytes(4, "little")
    tr.set_versionstamped_key(key, codec.encode([entry.sender, entry.first, list(entry.action)]))


def note_seen(tr: Transaction, user: str, terminal: str, sights: Sequence[Sighting]) -> None:
    """Store the messages that a terminal has seen."""
    # Ids of messages ascend, so the rows of a terminal are in the order in which it has seen them.
    key = _of_terminal(user, terminal) + sights[-1].id
    tr.set(key, codec.encode([list(sight) for sight in sights]))


def entries(db: Database) -> Iterator[LedgerEntry]:
    """The whole ledger, in commit order."""
    for _, value in scan_rows(db, _LEDGER, prefix_end(_LEDGER)):
        sender, first, action = codec.decode(value)
        yield LedgerEntry(sender, first, Action(*action))


def seen(db: Database, user: str, terminal: str) -> list[Sighting]:
    """All messages that a terminal has seen, in that order."""
    prefix = _of_terminal(user, terminal)
    return [
        Sighting(*sight)
        for _, value in scan_rows(db, prefix, prefix_end(prefix))
        for sight in codec.decode(value)
    ]


def _of_terminal(user: str, terminal: str) -> bytes:
    return _SEEN + f"{user}/{terminal}/".encode()
