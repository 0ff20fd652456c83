"""The checks of `cq doctor`: the installation, the store, its queues and their exports.

Each check is a function that returns its finding, or raises an error that says what to do.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Final, NamedTuple

import apsw

from cq import runtime
from cq.app import App
from cq.distribution import page_address, version
from cq.errors import CqError, InvalidConfiguration, InvalidUrl
from cq.observers.links.outbox.state import OutboxSettings
from cq.observers.links.registry import opened_link, opened_outbox
from cq.observers.links.target import LinkFailed
from cq.observers.monitoring.doctor_cluster import ClusterStore
from cq.observers.monitoring.doctor_embedded import ROOM, EmbeddedStore
from cq.observers.monitoring.findings import (
    OF_SYSTEMS,
    OF_WORKERS,
    Finding,
    Remark,
    find_remarks,
)
from cq.observers.monitoring.link_status import LinkStatus
from cq.observers.monitoring.store_overview import Overview, overview
from cq.plain_text import message_of
from cq.store import OpenDatabase, located, space_at
from cq.store.api import error_code
from cq.store.space import Space

TIMEOUT_SECONDS: Final = 5.0
"""Time limit of each transaction, so that every check ends."""
ANSWER_SECONDS = 60.0
"""How long to wait for a target or a database, which mostly have shorter time limits of their own."""
_AT_ONCE: Final = 32
"""Receivers that are asked at the same time: each may take 30 seconds to answer."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: of the checked object.
        ok: whether it is in order.
        message: the finding, or what to do.
    """

    name: str
    ok: bool
    message: str


def doctor(url: str | None = None, app: App | None = None) -> Iterator[Check]:
    """Check this installation, the store of `url` (as `cq.open` takes it), its queues and their exports.

    Skips checks that depend on a failed one. Creates no store and changes no data.
    """
    yield _check("python", lambda: f"{platform.python_version()}, SQLite {apsw.sqlite_lib_version()}")
    yield _check("cq", version)
    try:
        scheme, path = located(url)
        space = space_at(url)
    except (InvalidUrl, InvalidConfiguration) as error:
        yield Check("store", False, str(error))
        return
    store = ClusterStore(path) if scheme == "fdb" else EmbeddedStore(path)
    before = list(starmap(_check, store.before().items()))
    yield from before
    # A full disk can be read, and what it causes is of interest.
    if all(each.ok or each.name == ROOM for each in before) and store.exists():
        try:
            yield from _opened(store, space, app)
        finally:
            store.close()


def _opened(store: ClusterStore | EmbeddedStore, space: Space, app: App | None) -> Iterator[Check]:
    """The checks that need the store."""
    read: list[Overview] = []

    def look() -> str:
        db = space.database(store.open())
        db.options.set_transaction_timeout(int(TIMEOUT_SECONDS * 1000))
        read.append(overview(db))
        return f"it answers; queues: {sum(each.level_of is None for each in read[0].queues)}"

    answered = _check("store", look)
    yield answered
    if not answered.ok:
        return
    yield from starmap(_check, store.after().items())
    db, seen = space.database(store.db), read[0]
    queues, found = sorted(each.name for each in seen.queues), find_remarks(seen)
    yield from _queues(seen, found)
    yield from _workers(seen, found)
    for each in found:
        if each.finding is Finding.FEED:
            yield Check(f"feed {each.name}", False, _advice(each))
    for queue in queues:
        yield from starmap(_check, store.of_queue(queue, space).items())
    asked = [*_links(db, app, seen), *_outbox_tables(db)]
    answers = _asked(asked)
    for system, answer in zip(asked, answers, strict=True):
        of_system = [each for each in found if each.name in system.subjects and each.finding in OF_SYSTEMS]
        yield from _of_asked(system.name, of_system, _answer(system.name, answer))


class _AskedSystem(NamedTuple):
    """A system that a check asks: name and function of the check, and how findings name the link to the system."""

    name: str
    check: Callable[[], str]
    subjects: Collection[str] = ()


def _asked(receivers: Sequence[_AskedSystem]) -> list[Future[Check]]:
    """The checks of receivers, in their order; they are asked at the same time, as each may be slow."""
    answers: list[Future[Check]] = [Future() for _ in receivers]
    waiting = iter(list(zip(receivers, answers, strict=True)))  # of a list, so that threads can share it

    def ask() -> None:
        for receiver, answer in waiting:
            try:
                answer.set_result(_check(receiver.name, receiver.check))
            except BaseException as error:  # noqa: BLE001 - who waits for the answer raises it
                answer.set_exception(error)

    for _ in range(min(_AT_ONCE, len(receivers))):
        runtime.start_thread(ask, "cq-doctor")  # ^C does not wait for it, as it would for a pool's threads
    return answers


def _answer(name: str, answer: Future[Check]) -> Check:
    """The check of a system, or that it hangs: the target of an application may have no time limit."""
    try:
        return answer.result(ANSWER_SECONDS)
    except TimeoutError:
        return Check(name, False, f"it has not answered within {ANSWER_SECONDS:.0f} s")


def _links(db: OpenDatabase, app: App | None, seen: Overview) -> Iterator[_AskedSystem]:
    """The target of each link, and the database of each outbox."""

    def check(each: LinkStatus) -> str:
        with opened_link(db, each.queue, each.link, app=app) as opened:
            return opened.check()

    def check_outbox(queue: str) -> str:
        with opened_outbox(db, queue) as opened:
            return opened.check()

    for each in seen.links:
        yield _AskedSystem(f"link {each.name}", partial(check, each), (each.name,))
    for queue, outbox in seen.outboxes.items():
        yield _AskedSystem(f"outbox of {queue}", partial(check_outbox, queue), (queue, outbox.name))


def _of_asked(name: str, found: Sequence[Remark], check: Check) -> Iterator[Check]:
    """The findings about a system, and the check of it if it has more to say."""
    advice = [_advice(each) for each in found]
    for each, text in zip(found, advice, strict=True):
        yield Check(name, not each.is_urgent, text)
    if not found or not (check.ok or any(check.message in text for text in advice)):
        yield check


def _queues(seen: Overview, found: Sequence[Remark]) -> Iterator[Check]:
    """A check of each queue, followed by those of its levels that have something to do of their own."""
    others = (*OF_WORKERS, *OF_SYSTEMS)
    for queue in seen.queues:
        of_queue = [each for each in found if each.name == queue.name and each.finding not in others]
        urgent = [each for each in of_queue if each.is_urgent]
        for each in urgent:
            yield Check(f"queue {queue.name}", False, _advice(each))
        if not urgent and queue.level_of is None:
            levels = [f"levels: {', '.join(queue.levels)}"] if queue.levels else []
            notes = [each.text for each in of_queue]
            about = ", ".join(["active", f"buckets: {queue.settings['buckets']}", *levels])
            yield Check(f"queue {queue.name}", True, "; ".join([about, *notes]))


def _workers(seen: Overview, found: Sequence[Remark]) -> Iterator[Check]:
    """A check of the workers together, and of each one that has something to do."""
    alive = sum(worker.alive for worker in seen.workers)
    missing = next((each for each in found if each.finding is Finding.NO_WORKER), None)
    if missing is None:
        yield Check("workers", True, f"alive: {alive}")
    else:
        yield Check("workers", not missing.is_urgent, _advice(missing) if missing.is_urgent else missing.text)
    for each in found:
        if each.finding in OF_WORKERS and each.is_urgent:
            yield Check(f"worker {each.name}", False, _advice(each))


def _advice(remark: Remark) -> str:
    """The text of a finding and what to do, in one line."""
    text, todo = remark.text.removesuffix("."), remark.instruction.removesuffix(".")
    return " ".join(f"{text}. {todo} (see {page_address(remark.finding.page)})".split())


def _check(name: str, check: Callable[[], str]) -> Check:
    """Run a check; raises errors other than those of cq, the store and the system."""
    try:
        return Check(name, True, check())
    except (CqError, OSError) as error:
        message = str(error)
    except Exception as error:
        if error_code(error) is None:
            raise
        message = f"the store failed: {message_of(error)}"
    return Check(name, False, " ".join(message.split()))


def _outbox_tables(db: OpenDatabase) -> Iterator[_AskedSystem]:
    """Each table that has rows of outboxes."""
    from cq.observers.links.outbox import operate  # late: it imports SQLAlchemy

    def check(settings: OutboxSettings, queues: list[str]) -> str:
        if strays := operate.stray_rows(db, settings, queues):
            raise LinkFailed(operate.stray_text(strays))
        return "each row is of a queue with an outbox"

    for settings, queues in operate.outbox_tables(db).items():
        yield _AskedSystem(f"outbox table in {operate.place_of(settings)}", partial(check, settings, queues))
