"""The status of links: their backlog, its age, and failures."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from cq.admin.backfill import current_generation
from cq.admin.queue_status import current_version
from cq.config.queue import ObserverConfig, queue_names, read_config
from cq.errors import CqError
from cq.keys.link import LinkKeys
from cq.observers.links.log import BUCKETS, oldest_versions
from cq.observers.links.spec import link_name, links_in, shown_target
from cq.observers.links.state import count_aside, read_failures, read_view
from cq.store.api import Database, Transaction
from cq.store.bounded_reads import read_each
from cq.store.sizes import count_rows
from cq.store.transact import transact
from cq.store.version_clock import clock_of

PAUSED: Final = "paused"
"""The state of a link that an operator has paused."""
_MAX_ASIDE: Final = 1_000


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The status of a link.

    Attributes:
        queue, link: the queue, and the link's name.
        target: where it goes: the table, the topic ... with the environment variable of the address; None: unknown.
        waiting_buckets, buckets: number of buckets with entries, and of all.
        rows, bytes: number and size of the packed rows in its log; None: unknown.
        exact: whether these were counted; else they are estimates, up to a few times off.
        oldest_seconds: age of the oldest queued entry, None if there is none.
        aside: entries set aside (at most 1,000 are counted); None: unknown, of an outbox, see `cq outbox aside`.
        state: `active`; `filling` during a backfill, or until rows of earlier generations are swept; `failing`;
            `stopped`; `paused`; `unreadable`, if stored data of the link cannot be read.
        error: the latest error, empty if the link does not fail.
        failing_since: time of the first failure, in seconds since 1970.
        tries: number of consecutive failures.
        entries_per_second: entries that live workers send, as they have written lately.
    """

    queue: str
    link: str
    target: str | None = None
    waiting_buckets: int = 0
    buckets: int = BUCKETS
    rows: int | None = None
    bytes: int | None = None
    exact: bool = False
    oldest_seconds: float | None = None
    aside: int | None = 0
    state: str = "unreadable"
    error: str = ""
    failing_since: float | None = None
    tries: int = 0
    entries_per_second: float = 0.0

    @property
    def name(self) -> str:
        """The queue and the link, as commands take them."""
        return f"{self.queue} {self.link}"

    @property
    def has_failed(self) -> bool:
        """Whether it has an error and is not paused: nobody tries a paused link, so its latest error may be past."""
        return bool(self.error) and self.state != PAUSED


def link_status(db: Database, queue: str | None = None) -> list[LinkStatus]:
    """The status of the links of one queue, or of all; raises `QueueNotConfigured` if the queue does not exist."""
    if queue is None:
        names = transact(db, lambda tr: queue_names(tr.snapshot))
        links = [each for found in read_each(db, names, _links) for each in found]
    else:
        links = transact(db, lambda tr: configured_links(tr, queue))
    now = current_version(db)
    found = []
    for name, observer in links:
        try:
            found.append(transact(db, partial(read_link_status, queue=name, observer=observer, now=now)))
        except CqError as error:
            # A status with the error, so that the others are shown.
            found.append(LinkStatus(name, link_name(observer.name), error=str(error)))
    return found


def _links(tr: Transaction, queue: str) -> list[tuple[str, ObserverConfig]]:
    with suppress(CqError):  # the status of the queue itself reports the error
        return configured_links(tr, queue)
    return []


def configured_links(tr: Transaction, queue: str) -> list[tuple[str, ObserverConfig]]:
    """The queue with the observer of each of its links, by their names; raises `QueueNotConfigured`."""
    return [(queue, each) for _, each in sorted(links_in(read_config(tr.snapshot, queue)).items())]


def read_link_status(tr: Transaction, queue: str, observer: ObserverConfig, now: int) -> LinkStatus:
    """The status of one link, of which `configured_links` gives the observer, at the version `now`."""
    name = link_name(observer.name)
    snapshot, keys = tr.snapshot, LinkKeys(queue, name)
    oldest = oldest_versions(snapshot, keys)
    rows, size, exact = count_rows(snapshot, *keys.all_rows())
    failures = read_failures(snapshot, keys).values()
    view = read_view(snapshot, keys, ())()
    worst = max(failures, key=lambda failure: failure.tries, default=None)
    is_backfilled = current_generation(snapshot, queue, observer.name) == observer.generation
    states = {
        "stopped": view.stopped is not None,
        PAUSED: view.control.paused,
        "failing": worst is not None,
        "filling": not (is_backfilled and view.control.swept >= observer.generation),
    }
    return LinkStatus(
        queue,
        name,
        target=shown_target(observer, queue),
        waiting_buckets=len(oldest),
        rows=rows,
        bytes=size,
        exact=exact,
        oldest_seconds=clock_of(tr.db).age(min(oldest), now) if oldest else None,
        aside=count_aside(snapshot, keys, _MAX_ASIDE),
        state=next((state for state, holds in states.items() if holds), "active"),
        error=view.stopped or (worst.error if worst else ""),
        failing_since=min((failure.since for failure in failures), default=None),
        tries=worst.tries if worst else 0,
    )
