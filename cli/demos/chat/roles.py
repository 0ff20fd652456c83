"""The processes of the demo of a chat: senders, one flooder, and terminals that are sometimes offline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from threading import Event
from typing import Any, Final

import cq
from cq import runtime
from cq.cli.demos.chat.ledger import Action, LedgerEntry, Sighting, note_seen, note_sent, position_of
from cq.feeds.feed import Feed
from cq.store.api import Database
from cq.store.transact import transact

FEED: Final = "demo_chat"
FLOODED: Final = "user 0"
"""The flooded receiver."""
FLOODER: Final = "flooder"
_BATCH: Final = 50
_LOOK_SECONDS: Final = 0.1
_PAGE: Final = 200
_PAUSE: Final = 0.005  # average seconds between two actions of a sender
_ONLINE_SECONDS: Final = (1.0, 4.0)
_OFFLINE_SECONDS: Final = (0.1, 1.0)


@dataclass(frozen=True)
class Sender:
    """Does random actions: messages to users and to groups, joins and leaves of users.

    Attributes:
        url: URL of the store.
        name: name of the sender.
        seed: seed of its actions.
        number: number of its actions.
        users, groups: the receivers.
    """

    url: str | None
    name: str
    seed: str
    number: int
    users: Sequence[str]
    groups: Sequence[str]

    def run(self, stop: Event) -> None:
        """Do all remaining actions."""
        db, rng = cq.open(self.url), Random()  # noqa: S311 - random pauses
        actions = list(self.actions())  # the same ones after a restart: the position counts them
        place = transact(db, position_of(self.name).read)
        while place < len(actions) and not stop.wait(rng.expovariate(1 / _PAUSE)):
            entry = LedgerEntry(self.name, place, actions[place])
            transact(db, partial(act, place=place, entry=entry))
            place += 1

    def actions(self) -> Iterator[Action]:
        """All actions of the sender; the same in each run with the same seed."""
        rng = Random(self.seed)  # noqa: S311 - a repeatable load
        for _ in range(self.number):
            drawn = rng.random()
            if drawn < 0.05:
                yield Action(rng.choice(("join", "leave")), rng.choice(self.groups), rng.choice(self.users))
            elif drawn < 0.25:
                yield Action("group", rng.choice(self.groups))
            else:
                yield Action("message", rng.choice(self.users))


def flood(stop: Event, *, url: str, number: int, begin: int, senders: Sequence[str]) -> None:
    """Flood one receiver with `number` messages, in transactions of 50.

    Begins after each of the senders has done `begin` actions: so there are delays without the flood, too.
    """

    def may_begin(tr: Any) -> bool:
        return all(position_of(sender).read(tr.snapshot) >= begin for sender in senders)

    db = cq.open(url)
    while not transact(db, may_begin) and not stop.wait(_LOOK_SECONDS):
        pass
    place = transact(db, position_of(FLOODER).read)
    while place * _BATCH < number and not stop.is_set():
        first = place * _BATCH
        action = Action("message", FLOODED, messages=min(_BATCH, number - first))
        transact(db, partial(act, place=place, entry=LedgerEntry(FLOODER, first, action)))
        place += 1


def act(tr: Any, *, place: int, entry: LedgerEntry) -> None:
    """Do an action, unless an earlier commit whose answer was lost has done it."""
    if position_of(entry.sender).read(tr) != place:
        return  # with a conflict on the position: of two tries at once, only one can commit
    feed, (kind, to, user, messages) = Feed(FEED), entry.action
    bodies = [[entry.sender, entry.first + number] for number in range(messages)]
    if kind == "message":
        feed.append_many(tr, to, bodies)
    elif kind == "group":
        feed.append_to_group(tr, to, bodies[0])
    elif kind == "join":
        feed.join(tr, to, user)
    else:
        feed.leave(tr, to, user)
    note_sent(tr, place, entry)


def follow(stop: Event, *, url: str, terminals: Sequence[tuple[str, str]]) -> None:
    """Run several terminals, (user, name) each, in threads; they go offline, and later continue at their positions."""
    db = cq.open(url)
    with ThreadPoolExecutor(len(terminals)) as threads:
        following = [threads.submit(_Terminal(db, *each).run, stop) for each in terminals]
        for each in following:
            each.result()  # raises the error of the thread


class _Terminal:
    """One terminal of a user."""

    def __init__(self, db: Database, user: str, terminal: str) -> None:
        self._db = db
        self._user = user
        self._terminal = terminal
        self._feed = Feed(FEED)
        self._rng = Random()  # noqa: S311 - random times offline
        self._online_since = 0.0

    def run(self, stop: Event) -> None:
        while not stop.wait(self._rng.uniform(*_OFFLINE_SECONDS)):
            self._online_since = runtime.time()
            self._follow(runtime.monotonic() + self._rng.uniform(*_ONLINE_SECONDS), stop)

    def _follow(self, until: float, stop: Event) -> None:
        """Read existing and new messages until the time `until`."""
        while (left := until - runtime.monotonic()) > 0 and not stop.is_set():
            position = transact(self._db, self._position)
            # At most 1 s, so that a stop is noticed.
            page = self._feed.wait(self._db, self._user, position, limit=1, timeout=min(left, 1.0))
            if page.messages:
                transact(self._db, self._see)

    def _position(self, tr: Any) -> bytes:
        return self._feed.position(tr, self._user, self._terminal)

    def _see(self, tr: Any) -> None:
        """Store the next messages as seen, and move the position of the terminal in the same transaction."""
        # The position is read with a conflict, the messages without: new ones must not abort this transaction.
        page = self._feed.read(tr.snapshot, self._user, self._position(tr), _PAGE)
        now = runtime.time()
        # -1: sent before the terminal was online, so that the delay says nothing about the system.
        sights = [
            Sighting(message.id, (now - message.sent) * 1000 if message.sent >= self._online_since else -1.0)
            for message in page.messages
        ]
        if sights:
            note_seen(tr, self._user, self._terminal, sights)
            self._feed.advance(tr, self._user, self._terminal, page.position)
