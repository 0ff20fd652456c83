"""`cq demo chat`: messages in feeds, while processes are killed and one receiver is flooded.

The ledger has a row for each transaction of a sender, with the versionstamp of its commit in the key. Its rows in order
are the history that the recount uses: it has the members of each group at each message, and so the expected messages of
every user, and the last text of each. Each terminal stores the messages that it has seen, edits among them, in the
transaction that moves its position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from threading import Event
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.cli.demos.command import ChatOptions
from cq.cli.demos.harness import (
    DemoDiffers,
    DemoRun,
    Figures,
    Steps,
    check,
    delete_earlier,
    shown_steps,
    workers,
)
from cq.cli.shared.options import make_store
from cq.cli.shared.output import note, print_table, quantity
from cq.encoding import codec
from cq.feeds.feed import Feed, Message
from cq.feeds.verify import verify_feed
from cq.keys import VERSIONSTAMP_BYTES, prefix_end
from cq.keys.queue import stamped
from cq.observers.feeds.tasks import read_status
from cq.store.api import Database, Transaction
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact

FEED: Final = "demo_chat"
FLOODED: Final = "user 0"
"""The flooded receiver."""
FLOODER: Final = "flooder"
KEYS: Final = b"demo_chat/"
"""The prefix of the demo's own keys."""
_LEDGER: Final = KEYS + b"ledger/"
_SEEN: Final = KEYS + b"seen/"
_IDS: Final = KEYS + b"id/"
_TERMINALS: Final = ("phone", "tablet")
_BATCH: Final = 50
_LOOK_SECONDS: Final = 0.1
_PAGE: Final = 200
_CHANGED_SHARE: Final = 0.15  # of the actions of a sender that edit or recall a message
_RECENT: Final = 20  # actions of a sender, whose messages it may edit or recall
_INBOX_PAGE: Final = 1_000
_PAUSE: Final = 0.005  # average seconds between two actions of a sender
_ONLINE_SECONDS: Final = (1.0, 4.0)
_OFFLINE_SECONDS: Final = (0.1, 1.0)


class Action(NamedTuple):
    """An action of a sender.

    Attributes:
        sender: its name.
        first: number of its first message.
        kind: "message", "group", "join", "leave", "edit" or "recall".
        to: the receiver, or the group.
        user: the user who joins or leaves; otherwise empty.
        messages: number of messages.
        changes: number of the message that is edited or recalled; otherwise None.
        is_group: whether a message to a group is edited or recalled.
    """

    sender: str
    first: int
    kind: str
    to: str
    user: str = ""
    messages: int = 1
    changes: int | None = None
    is_group: bool = False

    @property
    def bodies(self) -> list[list[object]]:
        """The bodies of the messages."""
        return [[self.sender, self.first + number] for number in range(self.messages)]

    @property
    def inboxes(self) -> list[str]:
        """Who has a message that goes to no group: the receiver and, of some senders, the sender a copy."""
        return [self.to] if self.sender == FLOODER else [self.to, self.sender]

    @property
    def text(self) -> list[object] | None:
        """What an edit or a recall makes of the body."""
        return [self.sender, self.changes, self.first] if self.kind == "edit" else None


Sight = tuple[bytes, float]
"""The id of a message that a terminal has seen, and the milliseconds since it was sent; -1: it was offline then."""


def run(options: ChatOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    db, url = make_store(options.store), options.store
    make_feed(db)
    users = [f"user {number}" for number in range(options.users)]
    steps = {
        name: Steps.stored(demo.folder / name, KEYS + b"position/" + name.encode(), actions)
        for name, actions in drawn_actions(options, users, demo.rng).items()
    }
    run_sender(runtime.event(), url=url, steps=steps.pop("founder"))
    flooding, senders = steps.pop(FLOODER), list(steps.values())
    users += [*steps]  # senders have terminals, too, which read their copies
    send = {name: partial(run_sender, url=url, steps=each, pause=_PAUSE) for name, each in steps.items()}
    send[FLOODER] = partial(run_sender, url=url, steps=flooding, after=senders)
    services = workers(options.workers, url, [FEED])
    services |= {each: partial(follow, url=url, terminal=each, users=users) for each in _TERMINALS}
    look = partial(shown_steps, db, senders, "action")
    figures = demo.complete(send, services, look, lambda: transact(db, partial(is_seen, users=users)))
    return figures | recount(db, users)


def make_feed(db: Database) -> None:
    """Create the feed, and delete all data of an earlier demo."""
    feed = Feed(FEED)
    with suppress(cq.errors.FeedNotConfigured):
        feed.delete(db)
    delete_earlier(db, KEYS)
    feed.configure(db, numbers=True, unread=True)


def is_seen(tr: Transaction, users: Sequence[str]) -> bool:
    """Whether all messages are delivered, and seen by all terminals."""
    feed, status = Feed(FEED), read_status(tr.snapshot, FEED)
    return not (status.to_deliver or status.to_number) and all(
        feed.position(tr.snapshot, user, terminal) == feed.latest(tr.snapshot, user)
        for user in users
        for terminal in _TERMINALS
    )


def drawn_actions(options: ChatOptions, users: Sequence[str], rng: Random) -> dict[str, list[Action]]:
    """{sender: its actions}; the founder adds about half of the users to each group."""
    groups = [f"group {number}" for number in range(options.groups)]
    joins = [(group, user) for group in groups for user in users if rng.random() < 0.5]
    share = options.messages // options.senders  # so the last few of `messages` may be missing
    return {
        "founder": [Action("founder", place, "join", *join) for place, join in enumerate(joins)],
        FLOODER: [
            Action(FLOODER, first, "message", FLOODED, messages=min(_BATCH, options.flood - first))
            for first in range(0, options.flood, _BATCH)
        ],
        **{
            name: drawn_for(rng, name, share, users, groups)
            for name in (f"sender {number + 1}" for number in range(options.senders))
        },
    }


def drawn_for(
    rng: Random, sender: str, share: int, users: Sequence[str], groups: Sequence[str]
) -> list[Action]:
    """The random actions of a sender; some of them edit or recall one of its last messages."""
    actions: list[Action] = []
    for place in range(share):
        action = drawn_action(rng, sender, place, users, groups)
        before = [each for each in actions[-_RECENT:] if each.kind in ("message", "group")]
        if before and rng.random() < _CHANGED_SHARE:
            changed = rng.choice(before)
            kind = rng.choice(("edit", "edit", "recall"))
            is_group = changed.kind == "group"
            action = Action(sender, place, kind, changed.to, changes=changed.first, is_group=is_group)
        actions.append(action)
    return actions


def drawn_action(rng: Random, sender: str, place: int, users: Sequence[str], groups: Sequence[str]) -> Action:
    """A random action: a message to a user or a group, or a user joins or leaves a group."""
    drawn = rng.random()
    if drawn < 0.05:
        return Action(sender, place, rng.choice(("join", "leave")), rng.choice(groups), rng.choice(users))
    if drawn < 0.25:
        return Action(sender, place, "group", rng.choice(groups))
    return Action(sender, place, "message", rng.choice(users))


# The processes


def run_sender(
    stop: Event, *, url: str, steps: Steps, pause: float = 0.0, after: Sequence[Steps] = ()
) -> None:
    """Do the remaining actions of a sender.

    Args:
        stop: set when the process must end.
        url: URL of the store.
        steps: the actions.
        pause: average seconds between two actions.
        after: senders that first do a third of their actions: so there are delays without the flood, too.
    """
    db, rng = cq.open(url), Random()  # noqa: S311 - random pauses
    while not all(transact(db, each.done) >= each.number // 3 for each in after):
        if stop.wait(_LOOK_SECONDS):
            return
    for place, action in steps.left(db):
        if stop.wait(rng.expovariate(1 / pause) if pause else 0.0):
            return
        transact(db, partial(steps.once, act, [(place, action)]))


def act(tr: Any, steps: Sequence[tuple[int, Any]]) -> None:
    """Do an action, and note it in the ledger."""
    feed, action = Feed(FEED), Action(*steps[0][1])
    if action.sender == FLOODER:
        feed.append_many(tr, action.to, action.bodies)
    elif action.kind in ("message", "group"):
        if action.kind == "message":
            end = feed.send(tr, action.sender, action.to, action.bodies[0])
        else:
            end = feed.append_to_group(tr, action.to, action.bodies[0], sender=action.sender)
        # The store writes the versionstamp in front of the end of the id.
        tr.set_versionstamped_value(
            _id_key(action.sender, action.first), bytes(VERSIONSTAMP_BYTES) + end + bytes(4)
        )
    elif action.kind == "join":
        feed.join(tr, action.to, action.user)
    elif action.kind == "leave":
        feed.leave(tr, action.to, action.user)
    else:
        change(tr, feed, action)
    tr.set_versionstamped_key(stamped(_LEDGER), codec.encode(list(action)))


def change(tr: Any, feed: Feed, action: Action) -> None:
    """Edit or recall a message of the sender."""
    id_ = tr.get(_id_key(action.sender, action.changes)).value
    if action.kind == "edit":
        feed.edit(tr, action.to, id_, action.text, sender=action.sender, to_group=action.is_group)
    else:
        feed.recall(tr, action.to, id_, sender=action.sender, to_group=action.is_group)


def _id_key(sender: str, number: int | None) -> bytes:
    return _IDS + f"{sender}/{number}".encode()


def follow(stop: Event, *, url: str, terminal: str, users: Sequence[str]) -> None:
    """Run a terminal of each user, in threads; they go offline, and later continue at their positions."""
    db = cq.open(url)
    with ThreadPoolExecutor(len(users)) as threads:
        list(threads.map(lambda user: _follow(stop, db, user, terminal), users))  # raises errors


def _follow(stop: Event, db: Database, user: str, terminal: str) -> None:
    """Read existing and new messages while the terminal is online."""
    feed, rng = Feed(FEED), Random()  # noqa: S311 - random times offline
    position = partial(feed.position, receiver=user, terminal=terminal)
    while not stop.wait(rng.uniform(*_OFFLINE_SECONDS)):
        since, until = runtime.time(), runtime.monotonic() + rng.uniform(*_ONLINE_SECONDS)
        see = partial(_see, user=user, terminal=terminal, since=since)
        while (left := until - runtime.monotonic()) > 0 and not stop.is_set():
            # At most 1 s, so that a stop is noticed.
            page = feed.wait(db, user, transact(db, position), limit=1, timeout=min(left, 1.0))
            if page.messages:
                transact(db, see)


def _see(tr: Any, *, user: str, terminal: str, since: float) -> None:
    """Store the next messages as seen, and move the position of the terminal in the same transaction.

    `since` is the time at which the terminal went online.
    """
    feed, now = Feed(FEED), runtime.time()
    # The position is read with a conflict, the messages without: new ones must not abort this transaction.
    page = feed.read(tr.snapshot, user, feed.position(tr, user, terminal), _PAGE)
    unread, number = feed.unread(tr.snapshot, user, terminal), number_unread(page.messages)
    is_right = unread >= number if page.more else unread == number
    check(is_right, f"{user}'s {terminal} has {unread:,} unread messages, and reads {number:,}")
    sights = [
        (message.id, (now - message.sent) * 1000 if message.sent >= since else -1.0)
        for message in page.messages
    ]
    if sights:
        # Ids of messages ascend, so the rows of a terminal are in the order in which it has seen them.
        tr.set(_of_terminal(user, terminal) + page.messages[-1].id, codec.encode(sights))
        feed.advance(tr, user, terminal, page.position)


def number_unread(messages: Iterable[Message]) -> int:
    """How many of these messages count as unread: events and copies for the sender do not."""
    return sum(message.changes is None and message.to is None for message in messages)


def _of_terminal(user: str, terminal: str) -> bytes:
    return _SEEN + f"{user}/{terminal}/".encode()


# The recount


def recount(db: Database, users: Sequence[str]) -> Figures:
    """Compare what users have and terminals have seen with the ledger; returns the figures. Raises `DemoDiffers`."""
    for difference in verify_feed(db, FEED):
        raise DemoDiffers(": ".join(difference))
    expected, sights, received = MessageRecount(db), list[tuple[str, Message, float]](), 0
    for user in users:
        inbox = list(inbox_of(db, user))
        expected.compare(user, inbox)
        received += len(inbox)
        compare_unread(db, user, inbox)
        for terminal in _TERMINALS:
            found = seen(db, user, terminal)
            # The same order, too: a terminal that skips a message and reads it later is wrong.
            is_right = [id_ for id_, _ in found] == [message.id for message in inbox]
            check(is_right, f"{user}'s {terminal} has not seen each message of {user} once and in order")
            sights += [(user, message, took) for message, (_, took) in zip(inbox, found, strict=True)]
    return {
        "messages": expected.messages,
        "changes": expected.changes,
        "received": received,
        "seen": len(sights),
        "delays": delays_by_kind(sights),
    }


def compare_unread(db: Database, user: str, inbox: Iterable[Message]) -> None:
    """Raise `DemoDiffers` unless terminals that have read all have 0 unread messages, and a new terminal has all."""
    feed, expected = Feed(FEED), [0] * len(_TERMINALS) + [number_unread(inbox)]
    found = transact(db, lambda tr: [feed.unread(tr.snapshot, user, each) for each in (*_TERMINALS, "new")])
    check(found == expected, f"{user} has {found} unread messages, and in the recount {expected}")


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    rows = (
        [kind, f"{delay['number']:,}", f"{delay['p50']:,.0f} ms", f"{delay['p99']:,.0f} ms"]
        for kind, delay in figures["delays"].items()
    )
    columns = ["from sender to terminal", "messages", "p50", "p99"]
    print_table(columns, rows, right=columns[1:])
    note(
        f"{quantity(figures['messages'], 'message')} sent, {figures['changes']:,} edited or recalled, "
        f"{figures['received']:,} received, {figures['seen']:,} seen by terminals"
    )


def seen(db: Database, user: str, terminal: str) -> list[Sight]:
    """All messages that a terminal has seen, in that order."""
    prefix = _of_terminal(user, terminal)
    return [sight for _, value in scan_rows(db, prefix, prefix_end(prefix)) for sight in codec.decode(value)]


_Key = tuple[str, int]
"""The sender and the number of a message."""


class MessageRecount:
    """The expected messages of every user, computed from the ledger only.

    Attributes:
        messages: number of sent messages.
        changes: number of edits and recalls.
    """

    def __init__(self, db: Database) -> None:
        self.messages = self.changes = 0
        self._bodies: dict[_Key, list[object] | None] = {}
        self._sent: dict[_Key, int] = {}  # places in the ledger
        # By group: messages from different groups have no order in the ledger that receivers must keep. With each
        # message, whether it is an event.
        self._expected: dict[str, dict[str | None, list[tuple[bool, _Key]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        members: dict[str, dict[str, int]] = defaultdict(dict)  # with the place of the join
        for place, (_, value) in enumerate(scan_rows(db, _LEDGER, prefix_end(_LEDGER))):
            action = Action(*codec.decode(value))
            if action.kind == "join":
                members[action.to].setdefault(action.user, place)
            elif action.kind == "leave":
                members[action.to].pop(action.user, None)
            elif action.kind in ("edit", "recall"):
                self._change(action, members[action.to])
            else:
                self._send(action, members[action.to], place)

    def _send(self, action: Action, members: Mapping[str, int], place: int) -> None:
        self.messages += action.messages
        group = action.to if action.kind == "group" else None
        for number, body in enumerate(action.bodies, action.first):
            self._sent[action.sender, number] = place
            self._tell(members if group else action.inboxes, group, (action.sender, number), body)

    def _change(self, action: Action, members: Mapping[str, int]) -> None:
        """An event reaches those who have been members since the message."""
        key = action.sender, action.changes or 0
        if self._bodies[key] is None:
            return  # recalled before: nothing is left to change
        self.changes += 1
        since = [user for user, joined in members.items() if joined <= self._sent[key]]
        group = action.to if action.is_group else None
        self._tell(since if action.is_group else action.inboxes, group, key, action.text, is_event=True)

    def _tell(
        self,
        users: Iterable[str],
        group: str | None,
        key: _Key,
        body: list[object] | None,
        *,
        is_event: bool = False,
    ) -> None:
        self._bodies[key] = body
        for user in users:
            self._expected[user][group].append((is_event, key))

    def compare(self, user: str, inbox: Sequence[Message]) -> None:
        """Raise `DemoDiffers` unless the user has the expected messages, with the numbers 1, 2, 3 ..."""
        found: dict[str | None, list[tuple[bool, object]]] = defaultdict(list)
        for message in inbox:
            found[message.group].append((message.changes is not None, message.body))
        for group in {*found, *self._expected[user]}:
            entries = [(is_event, self._bodies[key]) for is_event, key in self._expected[user][group]]
            of = "" if group is None else f" of {group}"
            check(
                found[group] == entries,
                f"{user} has {len(found[group]):,} messages{of}, and in the recount {len(entries):,}, or has them "
                "in another order, or with other texts",
            )
        numbers = [message.number for message in inbox]
        is_right = numbers == list(range(1, len(inbox) + 1))
        check(is_right, f"the messages of {user} have other numbers than 1 to {len(inbox):,}")


def delays_by_kind(seen: Sequence[tuple[str, Message, float]]) -> dict[str, dict[str, float]]:
    """{kind of messages: their number, and quantiles of the milliseconds until an online terminal had them}.

    The kinds are the messages of the flooded user, and of other users during the flood and without it. `seen` has a
    user, a message and milliseconds for each message that a terminal of the user has seen.
    """
    flood = [message.sent for _, message, _ in seen if message.body and message.body[0] == FLOODER]
    begin, end = min(flood, default=0.0), max(flood, default=0.0)
    kinds: dict[str, list[float]] = defaultdict(list)
    for user, message, took in seen:
        if took >= 0:  # otherwise the terminal was offline
            when = "during the flood" if begin <= message.sent <= end else "without it"
            kinds["the flooded user" if user == FLOODED else f"others, {when}"].append(took)
    delays = {}
    for kind, found in sorted(kinds.items()):
        found.sort()
        quantiles = {f"p{share}": found[len(found) * share // 100] for share in (50, 99)}
        delays[kind] = {"number": len(found), **quantiles}
    return delays


def inbox_of(db: Database, user: str) -> Iterator[Message]:
    """All messages of a user with their numbers, read in several transactions."""
    feed, number = Feed(FEED), 0
    while True:
        page = transact(db, lambda tr: feed.read_numbered(tr.snapshot, user, number, _INBOX_PAGE))  # noqa: B023
        yield from page.messages
        if not page.more:
            return
        number += len(page.messages)
