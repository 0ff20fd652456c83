"""What must be true of a feed, told by the commits: who gets which messages, in which order, and what terminals see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cq.feeds.feed import Message
from tests.simulation.model import Violation


@dataclass(frozen=True)
class Sent:
    """A transaction appends a message, for a receiver or for a group; no other one has its text.

    `copy` has the sender who gets a copy, if any.
    """

    to: str
    is_group: bool
    text: int
    copy: str | None = None


@dataclass(frozen=True)
class Changed:
    """A transaction gives the message with a text another one, or None: it is recalled.

    `copy` has the sender who has a copy, if any.
    """

    to: str
    is_group: bool
    before: int
    text: int | None
    copy: str | None = None


@dataclass(frozen=True)
class Asked:
    """A transaction has read a message to change it, and so can conflict, whether it changes it or not."""


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


@dataclass(frozen=True)
class Forgot:
    """A transaction forgets a receiver, and with it so many messages of each group; later ones still come."""

    user: str
    delivered: Mapping[str | None, int]


FeedNote = Forgot | Sent | Asked | Changed | Moved | Seen


@dataclass(frozen=True)
class Entry:
    """What a receiver gets: the message that was sent as `key`, or an event of it. None: its text was recalled."""

    key: int | None
    is_event: bool


class FeedModel:
    """A feed, as its commits say.

    Attributes:
        expected: of each receiver, its messages and events in commit order, by group; None for those of no group.
        texts: of each message, as it was sent, the text that it has now; None if it was recalled.
    """

    def __init__(self) -> None:
        self.expected: dict[str, dict[str | None, list[Entry]]] = defaultdict(lambda: defaultdict(list))
        self.texts: dict[int, int | None] = {}
        self._keys: dict[int, int] = {}  # of every text that a message has ever had
        self._commits = 0
        self._sent: dict[int, int] = {}  # the commits of the messages
        # The users with the commit of their join, in one order in every process.
        self._members: dict[str, dict[str, int]] = defaultdict(dict)
        self._changes: dict[int, int] = defaultdict(int)
        self._seen: dict[tuple[str, str], list[Message]] = defaultdict(list)
        self._has_missed: set[tuple[str, str]] = set()

    def commit(self, notes: Sequence[FeedNote]) -> None:
        """A transaction is committed; all later ones come behind. Raises `Violation`."""
        self._commits += 1
        for note in notes:
            if isinstance(note, Moved) and note.joined:
                self._members[note.group].setdefault(note.user, self._commits)
            elif isinstance(note, Moved):
                self._members[note.group].pop(note.user, None)
        for note in notes:  # who joins or leaves in a transaction does so before what it sends
            if isinstance(note, Sent):
                self._keys[note.text] = note.text
                self.texts[note.text], self._sent[note.text] = note.text, self._commits
                self._deliver(note, Entry(note.text, False))
            elif isinstance(note, Changed):
                self._change(note)
            elif isinstance(note, Seen):
                self._see(note)
            elif isinstance(note, Forgot):
                self._forget(note)

    def _forget(self, note: Forgot) -> None:
        expected = self.expected[note.user]
        expected[None].clear()
        for group, number in note.delivered.items():
            del expected[group][:number]
        for terminal in [each for each in self._seen if each[0] == note.user]:
            del self._seen[terminal]
            self._has_missed.discard(terminal)

    def _change(self, note: Changed) -> None:
        key = self._keys[note.before]
        if self.texts[key] != note.before:
            raise Violation(f"{note} is a change of {key}, whose text is {self.texts[key]}")
        self.texts[key] = note.text
        self._changes[key] += 1
        if note.text is not None:
            self._keys[note.text] = key
        self._deliver(note, Entry(key, True))

    def _deliver(self, note: Sent | Changed, entry: Entry) -> None:
        """An event reaches those who have been members since the message."""
        since = self._sent[entry.key or 0] if entry.is_event else self._commits
        members = [user for user, joined in self._members[note.to].items() if joined <= since]
        for user in members if note.is_group else dict.fromkeys((note.to, note.copy or note.to)):
            self.expected[user][note.to if note.is_group else None].append(entry)

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
        expected = {group: entries for group, entries in self.expected[user].items() if entries}
        for group, messages in kept.items():
            entries = expected.get(group, [])[-len(messages) :]
            found = [(each.changes is not None, each.body) for each in messages]
            if found != [(entry.is_event, self._text(group, entry, entries)) for entry in entries]:
                raise Violation(
                    f"{user} has {messages} of {group}, expected the last of {expected.get(group)}"
                )
        count = sum(map(len, expected.values()))
        if len(inbox) + removed != count:
            raise Violation(
                f"{user} has {kept}, and {removed} removed before, expected {count} in all: {expected}"
            )
        for (whose, terminal), seen in self._seen.items():
            if whose == user:
                self._check_seen(user, terminal, seen, inbox)

    def _text(self, group: str | None, entry: Entry, kept: Sequence[Entry]) -> int | None:
        """The text that a message or event must have; an event of a message that was removed has none."""
        is_there = group is not None or not entry.is_event or Entry(entry.key, False) in kept
        return self.texts[entry.key or 0] if is_there else None

    def _check_seen(
        self, user: str, terminal: str, seen: Sequence[Message], inbox: Sequence[Message]
    ) -> None:
        """Each message once, in order: all of them, unless it was told that some were removed before."""
        if [each.id for each in seen[len(seen) - len(inbox) :]] != [each.id for each in inbox]:
            raise Violation(f"{user}'s {terminal} has not seen what there is: {seen}, of {inbox}")
        has_missed = (user, terminal) in self._has_missed
        found = {group: list(map(self._entry, messages)) for group, messages in by_group(seen).items()}
        for group, entries in self.expected[user].items():
            mine = found.get(group, [])
            if not has_missed and not (len(mine) == len(entries) and all(map(self._is_of, mine, entries))):
                raise Violation(f"{user}'s {terminal} has seen {mine} of {group}, expected {entries}")
        for group, mine in found.items():
            messages = [entry for entry in mine if entry.key is not None and not entry.is_event]
            places = [self.expected[user][group].index(entry) for entry in messages]
            if places != sorted(set(places)):
                raise Violation(
                    f"{user}'s {terminal} has seen {mine} of {group}, expected {self.expected[user]}"
                )
        if not has_missed:
            self._check_view(user, terminal, seen)

    def _entry(self, message: Message) -> Entry:
        return Entry(None if message.body is None else self._keys[message.body], message.changes is not None)

    def _is_of(self, seen: Entry, expected: Entry) -> bool:
        # A text that a terminal has not seen was recalled, or its message was removed before the event.
        is_gone = seen.key is None and (expected.is_event or self.texts[expected.key or 0] is None)
        return seen.is_event == expected.is_event and (seen.key == expected.key or is_gone)

    def _check_view(self, user: str, terminal: str, seen: Sequence[Message]) -> None:
        """A terminal that applies every event has the present text of each message, if all events reach it."""
        view: dict[bytes, tuple[str | None, int, int | None]] = {}
        for message in seen:
            id_ = message.changes or message.origin or message.id
            if message.changes is None and message.body is not None:
                view[id_] = message.group, self._keys[message.body], message.body
            elif id_ in view:
                view[id_] = *view[id_][:2], message.body
        for group, key, text in view.values():
            reached = self.expected[user][group].count(Entry(key, True))
            is_gone = group is None and text is None  # the message was removed before its event was read
            if reached == self._changes[key] and text != self.texts[key] and not is_gone:
                raise Violation(f"{user}'s {terminal} has {text} for {key}, expected {self.texts[key]}")


def by_group(messages: Sequence[Message]) -> dict[str | None, list[Message]]:
    """Messages by group."""
    found: dict[str | None, list[Message]] = defaultdict(list)
    for message in messages:
        found[message.group].append(message)
    return dict(found)
