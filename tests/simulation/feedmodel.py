"""What must be true of a feed, told by the commits: who gets which messages, in which order, and what terminals see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cq.feeds.feed import Message
from tests.simulation.model import Violation


@dataclass(frozen=True)
class Sent:
    """A transaction appends a message, for a receiver or for a group; no other one has its body."""

    to: str
    is_group: bool
    body: int


@dataclass(frozen=True)
class Moved:
    """A transaction has a user join a group, or leave it."""

    group: str
    user: str
    joined: bool


@dataclass(frozen=True)
class Seen:
    """A transaction notes that a terminal has read these messages."""

    user: str
    terminal: str
    messages: tuple[Message, ...]
    missed: bool


FeedNote = Sent | Moved | Seen


class FeedModel:
    """A feed, as its commits say.

    Attributes:
        expected: of each receiver, the bodies of its messages in commit order, by group; None for those of no group.
    """

    def __init__(self) -> None:
        self.expected: dict[str, dict[str | None, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._members: dict[str, dict[str, None]] = defaultdict(dict)  # in one order in every process
        self._seen: dict[tuple[str, str], list[Message]] = defaultdict(list)
        self._has_missed: set[tuple[str, str]] = set()

    def commit(self, notes: Sequence[FeedNote]) -> None:
        """A transaction is committed; all later ones come behind. Raises `Violation`."""
        for note in notes:
            if isinstance(note, Moved) and note.joined:
                self._members[note.group][note.user] = None
            elif isinstance(note, Moved):
                self._members[note.group].pop(note.user, None)
        for note in notes:  # who joins or leaves in a transaction does so before what it sends
            if isinstance(note, Sent):
                for user in list(self._members[note.to]) if note.is_group else [note.to]:
                    self.expected[user][note.to if note.is_group else None].append(note.body)
            elif isinstance(note, Seen):
                self._see(note)

    def _see(self, note: Seen) -> None:
        seen = self._seen[note.user, note.terminal]
        for message in note.messages:
            if seen and message.id <= seen[-1].id:
                raise Violation(f"{note.user}'s {note.terminal} sees {message} after {seen[-1]}")
            seen.append(message)
        if note.missed:
            self._has_missed.add((note.user, note.terminal))

    def check(self, user: str, inbox: Sequence[Message], removed: int) -> None:
        """Compare with what a receiver has in the end, when so many have been removed. Raises `Violation`."""
        kept = by_group(inbox)
        expected = {group: bodies for group, bodies in self.expected[user].items() if bodies}
        for group, bodies in kept.items():
            if bodies != expected.get(group, [])[-len(bodies) :]:
                raise Violation(f"{user} has {bodies} of {group}, expected the last of {expected.get(group)}")
        count = sum(map(len, expected.values()))
        if len(inbox) + removed != count:
            raise Violation(
                f"{user} has {kept}, and {removed} removed before, expected {count} in all: {expected}"
            )
        for (whose, terminal), seen in self._seen.items():
            if whose == user:
                self._check_seen(user, terminal, seen, inbox, expected)

    def _check_seen(
        self,
        user: str,
        terminal: str,
        seen: Sequence[Message],
        inbox: Sequence[Message],
        expected: dict[str | None, list[int]],
    ) -> None:
        """Each message once, in order: all of them, unless it was told that some were removed before."""
        if list(seen[len(seen) - len(inbox) :]) != list(inbox):
            raise Violation(f"{user}'s {terminal} has not seen what there is: {seen}, of {inbox}")
        found = by_group(seen)
        if (user, terminal) not in self._has_missed and found != expected:
            raise Violation(f"{user}'s {terminal} has seen {found}, expected {expected}")
        for group, bodies in found.items():
            places = [expected[group].index(body) for body in bodies]
            if places != sorted(set(places)):
                raise Violation(f"{user}'s {terminal} has seen {bodies} of {group}, expected {expected}")


def by_group(messages: Sequence[Message]) -> dict[str | None, list[int]]:
    """The bodies of messages, by group."""
    found: dict[str | None, list[int]] = defaultdict(list)
    for message in messages:
        found[message.group].append(message.body)
    return dict(found)
