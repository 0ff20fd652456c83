"""Calls of `CombineQueue.ask_now` share transactions, as those of `add_now` do, and then one wait for their answers.

The caller that has committed a group waits for the answers to all its requests: by one watch for each bucket, and one
transaction that reads all answers. So a bucket without a worker does not delay the answers of other buckets. The caller
wakes the others when their answers are there or their time is over, and lets another one wait in its place when it has
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

from cq import runtime
from cq.config.queue import read_config
from cq.durations import Span, timeout_of
from cq.errors import NoAnswer, Withdrawn
from cq.queue.answers import (
    StoredAnswer,
    bucket_of_ticket,
    content_of,
    is_older_than_answers,
    kept_answers,
    no_answer,
    wait_for_answer,
    watch_answer,
    withdraw,
)
from cq.queue.requests import Request, operation_of
from cq.queue.shared_adds import AddCall, AddGroup, copied
from cq.store.api import Database, Transaction, Void
from cq.store.transact import transact
from cq.store.watch import wait_until


class AskCall(AddCall):
    """One call of `ask_now`.

    Args:
        key, request, once, timeout, withdraw: as for `CombineQueue.ask_now`; raises `InvalidData`.

    Attributes:
        request: the request, as `CombineQueue.ask` takes it.
        answer: the stored answer, once it was read.
        is_late: whether there was no answer in time.
    """

    __slots__ = ("_end", "answer", "is_late", "request", "withdraw")

    def __init__(
        self,
        key: Any,
        request: Any,
        once: str | bytes | None = None,
        *,
        timeout: Span | None = 10.0,
        withdraw: bool = False,
    ) -> None:
        self.request = Request(request, operation_of(key, once))
        super().__init__([key], [self.request], self.request.operation)
        self.withdraw = withdraw
        self.answer: StoredAnswer | None = None
        self.is_late = False
        seconds = timeout_of(timeout)
        self._end = inf if seconds is None else runtime.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether it waits no more."""
        return self.answer is not None or self.is_late or self.error is not None

    def follow(self, db: Database, group: AddGroup) -> None:
        """Wait for the answers to all calls of the group, until this one is over."""
        calls = [each for each in group.calls if isinstance(each, AskCall) and not each.is_over]
        while not self.is_over:
            calls = [each for each in calls if not each.is_over and not each.is_abandoned]
            left = max(0.0, min(each._end for each in calls) - runtime.monotonic())
            try:
                wait_until(db, partial(self._read_or_watch, group.queue, calls), left)
            except Exception as error:  # noqa: BLE001 - each caller gets it
                for each in calls:
                    each.error = copied(error)
                    self._wake(each)
                return
            now = runtime.monotonic()
            for each in calls:
                if now >= each._end and not each.is_over:
                    each.is_late = True
                    self._wake(each)

    def _read_or_watch(
        self, queue: str, calls: Sequence[AskCall], tr: Transaction
    ) -> tuple[None, *tuple[Void | None, ...]]:
        """Give the answers that are there to their calls; watch one of each bucket, unless this call is over."""
        waiting = {each.request.ticket or b"": each for each in calls if not each.is_over}
        for ticket, answer in kept_answers(tr, queue, list(waiting)).items():
            call = waiting.pop(ticket)
            call.answer = answer
            self._wake(call)
        if self.is_over or not waiting:
            return None, None
        buckets = read_config(tr.snapshot, queue).buckets
        following = {bucket_of_ticket(ticket, buckets): ticket for ticket in reversed(waiting)}
        return None, *(watch_answer(tr, queue, ticket) for ticket in following.values())

    def _wake(self, call: AskCall) -> None:
        if call is not self and not call.is_abandoned:
            call.wake()


def answer_to(db: Database, queue: str, call: AskCall) -> Any:
    """The answer to a call that is over without an error; raises as `CombineQueue.ask_now` does."""
    ticket = str(call.request)
    if call.answer is not None:
        return content_of(call.answer, queue, ticket)
    error = no_answer(db, queue, ticket)
    if not call.withdraw:
        raise error
    if not withdraw(db, queue, ticket):
        return wait_for_answer(db, queue, ticket, 0.0)
    operation = call.request.operation
    if operation is not None and transact(db, lambda tr: is_older_than_answers(tr, queue, operation)):
        raise NoAnswer(
            f"{error}. It was first asked before the answers that are kept, so it may have been decided then",
            ticket,
        )
    raise Withdrawn(f"{error}; it is withdrawn and will not be decided", ticket)
