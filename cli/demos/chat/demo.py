"""The demo of a chat: processes are killed, one receiver is flooded, and a recount checks all messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import cq
from cq.cli.demos.chat.ledger import KEYS, Action, LedgerEntry, position_of, seen
from cq.cli.demos.chat.recount import DelayRecorder, MessageRecount, inbox_of
from cq.cli.demos.chat.roles import FEED, FLOODER, Sender, act, flood, follow
from cq.cli.demos.harness.crew import DemoDiffers
from cq.cli.demos.harness.demo import Demo, delete_earlier, killed, shown_progress
from cq.cli.demos.harness.worker import run_worker
from cq.cli.shared.options import make_store
from cq.cli.shared.output import note, print_table, quantity
from cq.feeds.feed import Feed
from cq.feeds.verify import verify_feed
from cq.observers.feeds.tasks import read_status
from cq.store.api import Transaction
from cq.store.transact import transact

_TERMINALS: Final = ("phone", "tablet")


@dataclass
class ChatDemo(Demo):
    """The demo; its fields are the options of the command."""

    url: str
    users: int
    groups: int
    messages: int
    flood: int
    senders: int
    workers: int

    def start(self, stack: ExitStack, rng: Random) -> None:
        self._db = make_store(self.url)
        self._feed = Feed(FEED)
        with suppress(cq.FeedNotConfigured):
            self._feed.delete(self._db)
        delete_earlier(self._db, KEYS)
        self._feed.configure(self._db, numbers=True)
        self._users = [f"user {number}" for number in range(self.users)]
        groups = [f"group {number}" for number in range(self.groups)]
        self._senders = [f"sender {number + 1}" for number in range(self.senders)]
        self._share = self.messages // self.senders  # so the last few of `messages` may be missing
        seed = rng.random()
        self.work = {
            **{
                name: Sender(self.url, name, f"{seed} {name}", self._share, self._users, groups).run
                for name in self._senders
            },
            FLOODER: partial(
                flood, url=self.url, number=self.flood, begin=self._share // 3, senders=self._senders
            ),
        }
        self.services = {
            # With an identity: a restarted worker gets the tasks of its killed predecessor at once.
            **{
                f"worker {number + 1}": partial(
                    run_worker, url=self.url, queues=[FEED], identity=f"demo chat {number}"
                )
                for number in range(self.workers)
            },
            **{
                terminal: partial(follow, url=self.url, terminals=[(user, terminal) for user in self._users])
                for terminal in _TERMINALS
            },
        }
        self._found_groups(groups, rng)
        self._show_progress = stack.enter_context(shown_progress("sent"))

    def _found_groups(self, groups: Sequence[str], rng: Random) -> None:
        """Add about half of the users to each group."""
        joins = [
            Action("join", group, user) for group in groups for user in self._users if rng.random() < 0.5
        ]
        for place, action in enumerate(joins):
            transact(self._db, partial(act, place=place, entry=LedgerEntry("founder", place, action)))

    def look(self) -> None:
        positions = [position_of(name) for name in self._senders]
        done = transact(self._db, lambda tr: sum(each.read(tr.snapshot) for each in positions))
        self._show_progress(done, self._share * self.senders)

    def is_settled(self) -> bool:
        return transact(self._db, self._is_seen)

    def _is_seen(self, tr: Transaction) -> bool:
        """Whether all messages are delivered, and seen by all terminals."""
        status = read_status(tr.snapshot, FEED)
        if status.to_deliver or status.to_number:
            return False
        return all(
            self._feed.position(tr.snapshot, user, terminal) == self._feed.latest(tr.snapshot, user)
            for user in self._users
            for terminal in _TERMINALS
        )

    def recount(self) -> dict[str, Any]:
        for difference in verify_feed(self._db, FEED):
            raise DemoDiffers(": ".join(difference))
        recount, delays, received = MessageRecount(self._db), DelayRecorder(), 0
        for user in self._users:
            inbox = list(inbox_of(self._db, user))
            recount.compare(user, inbox)
            received += len(inbox)
            for terminal in _TERMINALS:
                found = seen(self._db, user, terminal)
                # The same order, too: a terminal that skips a message and reads it later is wrong.
                if [sight.id for sight in found] != [message.id for message in inbox]:
                    raise DemoDiffers(
                        f"{user}'s {terminal} has not seen each message of {user} once and in order"
                    )
                delays.add(user, inbox, [sight.milliseconds for sight in found])
        return {
            "messages": recount.messages,
            "received": received,
            "seen": delays.number,
            "delays": delays.by_kind(),
        }

    def show(self, figures: Mapping[str, Any]) -> None:
        rows = (
            [kind, f"{delay['number']:,}", f"{delay['p50']:,.0f} ms", f"{delay['p99']:,.0f} ms"]
            for kind, delay in figures["delays"].items()
        )
        columns = ["from sender to terminal", "messages", "p50", "p99"]
        print_table(columns, rows, right=columns[1:])
        note(
            f"{quantity(figures['messages'], 'message')} sent in {figures['seconds']:.1f} s, "
            f"{figures['received']:,} received, {figures['seen']:,} seen by terminals, {killed(figures)}: "
            "all as recounted"
        )
