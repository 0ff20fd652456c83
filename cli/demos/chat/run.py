"""The demo of a chat: processes are killed, one receiver is flooded, and a recount checks all messages.

The recount uses the ledger of the committed actions. It has the members of each group at each message, and so the
expected messages of every user, in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, NamedTuple

import cq
from cq import runtime
from cq.cli.demos.chat import ledger
from cq.cli.demos.chat.ledger import Action, LedgerEntry, entries, place_of, seen
from cq.cli.demos.chat.roles import FEED, FLOODED, FLOODER, Flooder, Sender, Terminals, act
from cq.cli.demos.crew.crew import DemoCrew, DemoRole
from cq.cli.demos.crew.errors import DemoFailed
from cq.cli.demos.crew.worker import WorkerRole
from cq.feeds.feed import Feed, Message
from cq.feeds.verify import verify_feed
from cq.observers.feeds.tasks import read_status
from cq.store.api import Database, Transaction
from cq.store.transact import transact

_TERMINALS: Final = ("phone", "tablet")
_PAGE: Final = 1_000
_SECONDS: Final = 600.0


@dataclass(frozen=True)
class ChatSettings:
    """The settings of the demo.

    Attributes:
        users: number of users, each with two terminals.
        groups: number of groups.
        messages: number of actions of all senders.
        flood: number of additional messages to one user, written as fast as possible.
        senders, workers: numbers of processes.
        kill_every: average seconds between two kills of a process.
    """

    users: int = 16
    groups: int = 4
    messages: int = 800
    flood: int = 10_000
    senders: int = 2
    workers: int = 2
    kill_every: float = 1.0


class Delay(NamedTuple):
    """The delay of messages, from sending until an online terminal had them.

    Attributes:
        number: number of measured messages.
        p50, p99: milliseconds.
    """

    number: int
    p50: float
    p99: float


@dataclass(frozen=True)
class ChatOutcome:
    """The figures of a successful run.

    Attributes:
        messages: number of messages sent to users and to groups.
        received: number of messages in the inboxes of all users.
        seen: number of messages seen by all terminals.
        kills: number of killed processes.
        seconds: from the first start of a process until all messages were seen.
        delays: {kind of messages: their delay}.
    """

    messages: int
    received: int
    seen: int
    kills: int
    seconds: float
    delays: Mapping[str, Delay]


def run(
    db: Database,
    url: str | None,
    settings: ChatSettings,
    rng: Random,
    notify: Callable[[int, int], object] = lambda done, total: None,
) -> ChatOutcome:
    """Run the demo on a store, with a new feed.

    Args:
        db: the database of the store.
        url: URL of the store, for the processes.
        settings: the settings of the demo.
        rng: random source of the actions and the kills.
        notify: called repeatedly with the number of finished actions of the senders, and the number of all.

    Raises `DemoFailed` for a difference from the recount.
    """
    _make_feed(db)
    demo = _ChatDemo(db, url, settings, rng)
    begun = runtime.monotonic()
    kills = demo.run(rng, notify)
    seconds = runtime.monotonic() - begun
    for difference in verify_feed(db, FEED):
        raise DemoFailed(": ".join(difference))
    recount = MessageRecount(db)
    received, sights = 0, _DelayRecorder()
    for user in demo.users:
        inbox = list(inbox_of(db, user))
        recount.compare(user, inbox)
        received += len(inbox)
        for terminal in _TERMINALS:
            found = seen(db, user, terminal)
            if [sight.id for sight in found] != [message.id for message in inbox]:
                raise DemoFailed(f"{user}'s {terminal} has not seen each message of {user} once and in order")
            sights.add(user, inbox, [sight.milliseconds for sight in found])
    return ChatOutcome(recount.messages, received, sights.number, kills, seconds, sights.delays())


class _ChatDemo:
    """The processes of the demo."""

    def __init__(self, db: Database, url: str | None, settings: ChatSettings, rng: Random) -> None:
        self.users = [f"user {number}" for number in range(settings.users)]
        self._db = db
        self._settings = settings
        groups = [f"group {number}" for number in range(settings.groups)]
        share = settings.messages // settings.senders
        seed = rng.random()
        self._senders = {
            name: Sender(url, name, f"{seed} {name}", share, self.users, groups, 0.005)
            for name in (f"sender {number + 1}" for number in range(settings.senders))
        }
        self._flooder = Flooder(url, settings.flood, share // 3, list(self._senders))
        self._workers = {
            f"worker {number + 1}": WorkerRole(url, [FEED], identity=f"demo chat {number}")
            for number in range(settings.workers)
        }
        self._terminals = {
            terminal: Terminals(url, [(user, terminal) for user in self.users]) for terminal in _TERMINALS
        }
        _found_groups(db, groups, self.users, rng)

    def run(self, rng: Random, notify: Callable[[int, int], object]) -> int:
        """Run the processes until all messages are sent, delivered and seen; returns the number of kills."""
        roles: dict[str, DemoRole] = {
            **self._senders,
            FLOODER: self._flooder,
            **self._workers,
            **self._terminals,
        }
        total = sum(sender.number for sender in self._senders.values())

        def sent() -> bool:
            notify(transact(self._db, self._done), total)
            return crew.ended >= {*self._senders, FLOODER}

        with DemoCrew(roles, rng, self._settings.kill_every) as crew:
            crew.run(sent, _SECONDS)
            crew.run(lambda: transact(self._db, self._is_seen), _SECONDS)
        return crew.kills

    def _done(self, tr: Transaction) -> int:
        return sum(place_of(tr.snapshot, name) for name in self._senders)

    def _is_seen(self, tr: Transaction) -> bool:
        status = read_status(tr.snapshot, FEED)
        if status.to_deliver or status.to_number:
            return False
        feed = Feed(FEED)
        return all(
            feed.position(tr.snapshot, user, terminal) == feed.latest(tr.snapshot, user)
            for user in self.users
            for terminal in _TERMINALS
        )


class MessageRecount:
    """The expected messages of every user, computed from the ledger only.

    Attributes:
        messages: number of sent messages.
    """

    def __init__(self, db: Database) -> None:
        self.messages = 0
        self._expected: dict[str, dict[str | None, list[list[object]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        members: dict[str, set[str]] = defaultdict(set)
        for sender, first, (kind, to, user, count) in entries(db):
            bodies: list[list[object]] = [[sender, first + number] for number in range(count)]
            if kind == "join":
                members[to].add(user)
            elif kind == "leave":
                members[to].discard(user)
            elif kind == "group":
                self.messages += 1
                for member in members[to]:
                    self._expected[member][to] += bodies
            else:
                self.messages += count
                self._expected[to][None] += bodies

    def compare(self, user: str, inbox: Sequence[Message]) -> None:
        """Raise `DemoFailed` unless the user has the expected messages, with the numbers 1, 2, 3 ..."""
        found: dict[str | None, list[object]] = defaultdict(list)
        for message in inbox:
            found[message.group].append(message.body)
        expected = self._expected[user]
        for group in {*found, *expected}:
            if found[group] != expected[group]:
                of = "" if group is None else f" of {group}"
                raise DemoFailed(
                    f"{user} has {len(found[group]):,} messages{of}, and in the recount {len(expected[group]):,}, "
                    "or has them in another order"
                )
        if [message.number for message in inbox] != list(range(1, len(inbox) + 1)):
            raise DemoFailed(f"the messages of {user} have other numbers than 1 to {len(inbox):,}")


class _DelayRecorder:
    """Delays of messages: of the flooded user, and of other users during the flood and without it."""

    def __init__(self) -> None:
        self.number = 0
        self._flood: list[float] = []
        self._found: list[tuple[str, float, float]] = []

    def add(self, user: str, inbox: Sequence[Message], milliseconds: Sequence[float]) -> None:
        """Add the messages that one terminal has seen."""
        self.number += len(inbox)
        for message, took in zip(inbox, milliseconds, strict=True):
            if message.body[0] == FLOODER:
                self._flood.append(message.sent)
            if took >= 0:
                by = "by group" if message.group is not None else "direct"
                self._found.append(("the flooded user" if user == FLOODED else by, message.sent, took))

    def delays(self) -> dict[str, Delay]:
        """The delays by kind of messages."""
        begin, end = min(self._flood, default=0.0), max(self._flood, default=0.0)
        kinds: dict[str, list[float]] = defaultdict(list)
        for kind, sent, took in self._found:
            when = "during the flood" if begin <= sent <= end else "without it"
            kinds[kind if kind == "the flooded user" else f"others, {kind}, {when}"].append(took)
        return {kind: _delay(sorted(found)) for kind, found in sorted(kinds.items())}


def inbox_of(db: Database, user: str) -> Iterator[Message]:
    """All messages of a user with their numbers, read in several transactions."""
    feed, number = Feed(FEED), 0
    while True:
        page = transact(db, lambda tr: feed.read_numbered(tr.snapshot, user, number, _PAGE))  # noqa: B023
        yield from page.messages
        if not page.more:
            return
        number += len(page.messages)


def _make_feed(db: Database) -> None:
    """Create the feed, and delete all data of an earlier demo."""
    feed = Feed(FEED)
    with suppress(cq.FeedNotConfigured):
        feed.delete(db)
    transact(db, ledger.clear)
    feed.configure(db, numbers=True)


def _found_groups(db: Database, groups: Sequence[str], users: Sequence[str], rng: Random) -> None:
    """Add about half of the users to each group."""
    joins = [Action("join", group, user) for group in groups for user in users if rng.random() < 0.5]
    for place, action in enumerate(joins):
        transact(db, partial(act, place=place, entry=LedgerEntry("founder", place, action)))


def _delay(found: Sequence[float]) -> Delay:
    return Delay(len(found), found[len(found) // 2], found[len(found) * 99 // 100])
