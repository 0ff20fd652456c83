"""Waiting for workers: what a command waits for, how much is left, whether a worker does it, and what ^C leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from cq.admin.queue_status import QueueStatus
from cq.cli.shared.output import note, progress, quantity, stderr
from cq.errors import ConfigurationError, NotNow
from cq.keys.link import LinkKeys
from cq.observers.monitoring.findings import Finding, find_remarks
from cq.observers.monitoring.link_status import link_status
from cq.observers.monitoring.store_overview import overview
from cq.store.api import Database

POLL_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 2.0
_LINE_SECONDS: Final = 10.0
"""Without a terminal, a line is printed as often if less is left than before."""
_NO_WORKER: Final = (Finding.NO_WORKER, Finding.NOT_COMBINED, Finding.CODE_MISSING)


class AwaitedWork(NamedTuple):
    """What a command waits for.

    Attributes:
        queue: the queue.
        what: what workers do, such as "combine the queued updates of".
        left: how much is left, from the status of the queue and its levels.
        interrupted: what goes on after ^C.
    """

    queue: str
    what: str
    left: Callable[[Sequence[QueueStatus]], str]
    interrupted: str


def wait_for_workers(
    db: Database, awaited: AwaitedWork, is_done: Callable[[], bool], deadline: float | None = None
) -> None:
    """Wait until `is_done`, and report what is left, and whether no worker does it.

    Raises `ConfigurationError` if a queue is paused, `NotNow` after the deadline.
    """
    if is_done():
        return
    with reported_interrupt(awaited.interrupted), progress(counted=False) as display:
        task = display.add_task(f"waiting for workers to {awaited.what} queue {awaited.queue!r}")
        reporter = _Reporter(db, awaited, lambda text: display.update(task, description=text))
        while True:
            reporter.report_if_due()
            if deadline is not None and time.monotonic() > deadline:
                raise NotNow(
                    f"queue {awaited.queue!r} is not drained in time ({reporter.left}): are workers running? See "
                    "`cq status`"
                )
            time.sleep(POLL_SECONDS)
            if is_done():
                return


@contextmanager
def reported_interrupt(what: str) -> Iterator[None]:
    """Report what ^C in the block leaves."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped waiting: {what}")
        raise


def report_unsent(db: Database, link: LinkKeys, seconds: float) -> float:
    """Report the changes of a link that a comparison with its table waits for.

    Returns the seconds to wait: `seconds`, or 0.0 if the link is stopped or paused.
    """
    found = next((each for each in link_status(db, link.queue) if each.link == link.link), None)
    if found is None or not (found.waiting_buckets and seconds):
        return seconds
    about = "" if found.exact else "about "
    rows = f"changes of queue {link.queue!r} that are not sent yet: {about}{quantity(found.rows or 0, 'row')}"
    if found.state in ("stopped", "paused"):
        error = f": {found.error}" if found.error else ""
        note(f"{rows}; not waiting for them, as the link is {found.state}{error}")
        return 0.0
    note(f"{rows}; waiting for workers to send them, for up to {seconds:g} s")
    return seconds


def queued(found: Sequence[QueueStatus]) -> str:
    """The queued rows of a queue and its levels."""
    about = "" if all(each.exact for each in found) else "about "
    rows, buckets = sum(each.rows for each in found), sum(each.waiting_buckets for each in found)
    return f"{about}{quantity(rows, 'row')} in {quantity(buckets, 'bucket')}"


class _Reporter:
    """Reports what is left: in the display of a terminal, else by lines."""

    def __init__(self, db: Database, awaited: AwaitedWork, show: Callable[[str], object]) -> None:
        self.left = ""
        self._db, self._awaited, self._show = db, awaited, show
        self._printed = ""
        self._missing = ""
        self._next_look = self._next_line = 0.0

    def report_if_due(self) -> None:
        """Look at the queue and the workers, if the latest look is old enough; raises for a pause."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        seen = overview(self._db, self._awaited.queue)
        for each in seen.queues:
            if each.paused:
                todo = f"run `cq resume {self._awaited.queue}`, then workers continue"
                raise ConfigurationError(f"queue {each.name!r} is paused ({each.reason}): {todo}")
        self.left = self._awaited.left(seen.queues)
        if not self.left:  # it was done between two looks
            return
        text = f"{self.left}: waiting for workers to {self._awaited.what} queue {self._awaited.queue!r}"
        self._show(text)
        if not stderr.is_terminal and text != self._printed and now >= self._next_line:
            note(text)
            self._printed, self._next_line = text, now + _LINE_SECONDS
        found = [each for each in find_remarks(seen) if each.finding in _NO_WORKER and each.is_urgent]
        missing = f"{found[0]}: run `{found[0].command}`" if found else ""
        if missing != self._missing:
            note(missing or "a worker is at work now")
            self._missing = missing
