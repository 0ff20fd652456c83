"""Calls by threads that share a transaction, as the commit before it is held up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from cq.queue import shared_adds
from tests.kit.faults import WrappedDatabase, WrappedTransaction


class HeldCommits(WrappedDatabase):
    """A database of which the first commit waits until `go` is set; counts the commits that write."""

    is_local = True

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.begun, self.go = threading.Event(), threading.Event()
        self.commits = 0

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "commit":
            self.commits += 1
            if not self.begun.is_set():
                self.begun.set()
                assert self.go.wait(30)
        return super().call(tr, what, *args, **kwargs)


@contextmanager
def held_calls(
    db: HeldCommits, queue: str, calls: Sequence[Callable[[], Any]]
) -> Iterator[list[Future[Any]]]:
    """Calls to a queue in their order; all but the first wait while its commit is under way."""
    shared = shared_adds.shared_adds(db, queue, None)
    with ThreadPoolExecutor(len(calls)) as threads:
        try:
            found: list[Future[Any]] = []
            for number, call in enumerate(calls):
                found.append(threads.submit(call))
                assert db.begun.wait(30)
                until(lambda number=number: len(shared._waiting) == number)  # type: ignore[misc]
            yield found
        finally:
            db.go.set()


def until(holds: Callable[[], bool]) -> None:
    """Yield to other threads until something holds."""
    for _ in range(1_000_000):
        if holds():
            return
        threading.Event().wait(0.0001)
    raise AssertionError("it never holds")
