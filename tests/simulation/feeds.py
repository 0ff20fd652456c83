"""The system of a feed: senders, users who join and leave groups, terminals that come back, and workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from cq.errors import InvalidData
from cq.feeds import feed as feed_module
from cq.feeds.feed import Feed
from cq.feeds.verify import verify_feed
from cq.keys.feed import encode_name, split_removed
from cq.observers.feeds import deliver
from cq.observers.feeds import round_robin as numbering
from cq.observers.feeds.deliver import DeliveryTask
from cq.observers.feeds.round_robin import NumberingTask
from cq.observers.feeds.tasks import read_status
from cq.store.api import error_code
from cq.store.transact import transact
from tests.simulation.actors import WorkerPool
from tests.simulation.feedmodel import Asked, Changed, FeedModel, Forgot, Moved, Seen, Sent
from tests.simulation.hub import Process
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.scenario import Scenario
from tests.simulation.store import CommitRequest

FEED: Final = "feed"
TERMINALS: Final = ("phone", "tablet")
_MOST: Final = 10_000


class FeedWorld(Scenario):
    """One run."""

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        rng = self.rng
        self.feed = Feed(FEED)
        self.model = FeedModel()
        self.users = [f"u{number}" for number in range(rng.randint(1, 6))]
        self.groups = [f"g{number}" for number in range(rng.randint(1, 3))] if "groups" in plan else []
        self.pause = rng.choice((0.02, 0.2, 1.0))
        self.most = rng.choice((1, 3, 12))
        self.bounds = rng.choice((True, False))
        self.terminals = [
            (user, terminal)
            for user in self.users
            for terminal in TERMINALS[: rng.randint(1, len(TERMINALS))]
        ]
        self._texts = 0
        concurrency, beat_seconds = rng.choice((1, 2, 4)), rng.choice((0.5, 2.0, 4.0))
        make = partial(self.worker, concurrency=concurrency, beat=beat_seconds)
        self.workers = WorkerPool(self, make)

    def around(self) -> AbstractContextManager[object]:
        """Small steps, so that there are many."""
        stack = ExitStack()
        if self.bounds:
            for owner, name, value in (
                (feed_module, "SHARED_BYTES", 1),
                (deliver, "WRITES", self.rng.choice((2, 5))),
                (deliver, "MESSAGES", self.rng.choice((1, 3))),
                (numbering, "MESSAGES", self.rng.choice((2, 6))),
                (DeliveryTask, "names_per_step", 2),
                (NumberingTask, "names_per_step", 2),
            ):
                stack.enter_context(patch.object(owner, name, value))
        return stack

    def begin(self) -> None:
        """Make the feed, and start everybody."""
        keeps = "numbers" in self.plan and "keep" in self.plan
        self.feed.configure(
            self.inner,
            numbers="numbers" in self.plan,
            unread=True,
            keep_last=self.rng.choice((1, 5)) if keeps else None,
        )
        for _ in range(self.rng.randint(1, 3)):
            self.start_process("sender", "add", self._send)
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        for user, terminal in self.terminals:
            self.start_process(terminal, "follow", partial(self._read, user, terminal))
        if "come and go" in self.plan:
            self.hub.start(self.process("administrator"), "change", self._come_and_go)
        if "forget" in self.plan and not (
            keeps and self.groups
        ):  # else nobody knows which messages were removed
            self.start_process("administrator", "change", self._forget)

    # Those who send

    def _send(self, process: Process) -> None:
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.pause))
            _tried(lambda: transact(self.db(process), self._send_some))

    def _send_some(self, tr: Any) -> None:
        """A few things in one transaction; each try has other messages."""
        rng, changes = self.hub.rng, "changes" in self.plan
        if changes and rng.random() < 0.3:
            self._change(tr)
        for _ in range(rng.randint(1, self.most)):
            drawn = rng.random()
            if self.groups and drawn < 0.2:
                moved = Moved(rng.choice(self.groups), rng.choice(self.users), rng.random() < 0.7)
                (self.feed.join if moved.joined else self.feed.leave)(tr, moved.group, moved.user)
                tr.notes.append(moved)
                continue
            is_group = bool(self.groups) and drawn < 0.6
            flooded = "flood" in self.plan and rng.random() < 0.8
            receivers = self.groups if is_group else self.users
            to = receivers[0] if flooded else rng.choice(receivers)
            sender = rng.choice(self.users) if changes and rng.random() < 0.7 else None
            text = self._text()
            if sender is not None and not is_group and rng.random() < 0.5:
                self.feed.send(tr, sender, to, text)
                tr.notes.append(Sent(to, is_group, text, sender))
                continue
            (self.feed.append_to_group if is_group else self.feed.append)(tr, to, text, sender=sender)
            tr.notes.append(Sent(to, is_group, text))

    def _text(self) -> int:
        self._texts += 1
        return self._texts

    def _change(self, tr: Any) -> None:
        """Edit or recall one of the last messages of a receiver; now and then somebody else tries."""
        rng, user = self.hub.rng, self.hub.rng.choice(self.users)
        messages = [each for each in self._inbox(tr.snapshot, user)[-20:] if each.changes is None]
        if not messages:
            return
        message = rng.choice(messages)
        is_group = message.group is not None
        to, id_ = (message.group, message.origin) if is_group else (message.to or user, message.id)
        is_mine = message.sender is not None and rng.random() < 0.9
        sender, text = message.sender if is_mine else "nobody", None if rng.random() < 0.3 else self._text()
        tr.notes.append(Asked())
        try:
            if text is None:
                is_changed = self.feed.recall(tr, to, id_, sender=sender, to_group=is_group)
            else:
                is_changed = self.feed.edit(tr, to, id_, text, sender=sender, to_group=is_group)
        except InvalidData:
            # A message to a group without a sender is not stored once, and not found.
            if is_mine:
                raise
            return
        if is_changed != (is_mine and message.body is not None):
            self.violations.append(f"{sender} has changed {message}: {is_changed}")
        if is_changed:
            # Retention may have removed one of the two.
            having = [
                each for each in (to, message.sender) if not is_group and self._has(tr.snapshot, each, id_)
            ]
            having = having or [to]
            tr.notes.append(Changed(having[0], is_group, message.body, text, having[-1]))

    # Those who read

    def _read(self, user: str, terminal: str, process: Process) -> None:
        """Catch up, and wait for more, again and again; offline now and then."""
        db, rng = self.db(process), self.hub.rng
        while True:
            if not self.is_calm and rng.random() < 0.1:
                self.hub.wait(rng.expovariate(1 / 10))
            position = _tried(lambda: transact(db, lambda tr: self.feed.position(tr, user, terminal)))
            page = (
                None
                if position is None
                else _tried(
                    lambda: self.feed.wait(db, user, position, timeout=5.0)  # noqa: B023
                )
            )
            if page is not None and page.messages:
                _tried(lambda: transact(db, lambda tr: self._see(tr, user, terminal)))

    def _see(self, tr: Any, user: str, terminal: str) -> None:
        position = self.feed.position(tr, user, terminal)
        self._compare_unread(tr.snapshot, user, terminal)
        page = self.feed.read(tr.snapshot, user, position, self.hub.rng.choice((1, 3, 100)))
        self.feed.advance(tr, user, terminal, page.position)
        tr.notes.append(Seen(user, terminal, page.messages, page.missed))

    def _compare_unread(self, tr: Any, user: str, terminal: str) -> None:
        """The unread count must be the number of messages of others after the position, at any version."""
        unread, position = self.feed.unread(tr, user, terminal), self.feed.position(tr, user, terminal)
        messages = self.feed.read(tr, user, position, _MOST).messages
        of_others = (
            each for each in messages if each.to is None and (each.group is None or each.sender != user)
        )
        found = sum(each.changes is None for each in of_others)
        if unread != found:
            self.violations.append(
                f"{user}'s {terminal} has {found} unread messages, and the count is {unread}"
            )

    def _come_and_go(self) -> None:
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / 5))
            for process in list(self.workers.running)[:1]:
                self.workers.stop(process)
            self.workers.start()

    def _forget(self, process: Process) -> None:
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / 2))
            _tried(lambda: transact(self.db(process), self._forget_one))

    def _forget_one(self, tr: Any) -> None:
        """Forget a receiver; with groups, the read of what has been delivered to it conflicts with deliveries."""
        user = self.hub.rng.choice(self.users)
        inbox = self._inbox(tr, user) if self.groups else ()
        self.feed.forget(tr, user)
        tr.notes.append(Forgot(user, Counter(each.group for each in inbox)))

    # What is committed, and the end

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        self.model.commit(tr.notes)

    def refused(self, store: str, tr: CommitRequest, code: int) -> None:
        """Who sends, joins or leaves conflicts with nobody; who changes a message does with its other changes."""
        is_change = any(isinstance(note, Asked) for note in tr.notes)
        if code == 1020 and not is_change and any(isinstance(note, Sent | Moved) for note in tr.notes):
            self.violations.append(f"who only appends has a conflict: {tr.notes}")

    def settle(self) -> None:
        if not self.workers.running:
            self.workers.start()

    def left(self) -> str:
        def look(tr: Any) -> str:
            status = read_status(tr, FEED)
            if status.to_deliver or status.to_number:
                return f"{status.to_deliver} groups to deliver, {status.to_number} receivers to number"
            for group in self.groups:
                bounds = self.feed.keys.group_messages(encode_name("group", group))
                if tr.get_range(*bounds, limit=1).to_list():
                    return f"messages to {group}"
            for user, terminal in self.terminals:
                position, latest = self.feed.position(tr, user, terminal), self.feed.latest(tr, user)
                self._compare_unread(tr, user, terminal)
                if position != latest:
                    return f"{user}'s {terminal} is at {position.hex()}, not at {latest.hex()}"
                if status.config.keep_last and len(self._inbox(tr, user)) > status.config.keep_last:
                    return f"more of {user} than is kept"
            return ""

        return transact(self.inner, look)

    def check(self) -> None:
        def look(tr: Any) -> None:
            config = read_status(tr, FEED).config
            for user in self.users:
                inbox = self._inbox(tr, user)
                _, removed, _ = split_removed(tr.get(self.feed.keys.removed(encode_name("user", user))).value)
                self.model.check(user, inbox, removed)
                if config.numbers:
                    found = self.feed.read_numbered(tr, user, limit=_MOST).messages
                    numbers = list(range(removed + 1, removed + 1 + len(inbox)))
                    if [(each.number, each.id) for each in found] != [
                        (number, each.id) for number, each in zip(numbers, inbox, strict=True)
                    ]:
                        raise Violation(f"{user}'s messages have the numbers {found}, expected {numbers}")

        transact(self.inner, look)
        if differences := list(verify_feed(self.inner, FEED)):
            raise Violation(f"cq feed verify finds {differences}")

    def _has(self, tr: Any, user: str, id_: bytes) -> bool:
        return bool(tr.get(self.feed.keys.message(encode_name("receiver", user), id_)).present())

    def _inbox(self, tr: Any, user: str) -> tuple[Any, ...]:
        return self.feed.read(tr, user, limit=_MOST).messages


def _tried(call: Callable[[], Any]) -> Any:
    """What a call returns; None when the store refuses it, which whoever asks tries again."""
    try:
        return call()
    except Exception as error:
        if error_code(error) is None:
            raise
        return None
