"""The recount of the demo of a chat.

It uses the ledger of the committed actions, which has the members of each group at each message, and so the expected
messages of every user, in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from cq.cli.demos.chat.ledger import entries
from cq.cli.demos.chat.roles import FEED, FLOODED, FLOODER
from cq.cli.demos.harness.crew import DemoDiffers
from cq.feeds.feed import Feed, Message
from cq.store.api import Database
from cq.store.transact import transact

_PAGE: Final = 1_000


class MessageRecount:
    """The expected messages of every user, computed from the ledger only.

    Attributes:
        messages: number of sent messages.
    """

    def __init__(self, db: Database) -> None:
        self.messages = 0
        # By group: messages from different groups have no order in the ledger that receivers must keep.
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
        """Raise `DemoDiffers` unless the user has the expected messages, with the numbers 1, 2, 3 ..."""
        found: dict[str | None, list[object]] = defaultdict(list)
        for message in inbox:
            found[message.group].append(message.body)
        expected = self._expected[user]
        for group in {*found, *expected}:
            if found[group] != expected[group]:
                of = "" if group is None else f" of {group}"
                raise DemoDiffers(
                    f"{user} has {len(found[group]):,} messages{of}, and in the recount {len(expected[group]):,}, "
                    "or has them in another order"
                )
        if [message.number for message in inbox] != list(range(1, len(inbox) + 1)):
            raise DemoDiffers(f"the messages of {user} have other numbers than 1 to {len(inbox):,}")


class DelayRecorder:
    """Delays of messages: of the flooded user, and of other users during the flood and without it.

    Attributes:
        number: number of messages that terminals have seen.
    """

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
            if took >= 0:  # otherwise the terminal was offline
                by = "by group" if message.group is not None else "direct"
                self._found.append(("the flooded user" if user == FLOODED else by, message.sent, took))

    def by_kind(self) -> dict[str, dict[str, float]]:
        """{kind of messages: their number, and quantiles of the milliseconds until an online terminal had them}."""
        begin, end = min(self._flood, default=0.0), max(self._flood, default=0.0)
        kinds: dict[str, list[float]] = defaultdict(list)
        for kind, sent, took in self._found:
            when = "during the flood" if begin <= sent <= end else "without it"
            kinds[kind if kind == "the flooded user" else f"others, {kind}, {when}"].append(took)
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
        page = transact(db, lambda tr: feed.read_numbered(tr.snapshot, user, number, _PAGE))  # noqa: B023
        yield from page.messages
        if not page.more:
            return
        number += len(page.messages)
