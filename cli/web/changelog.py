"""Changelogs: the open streams, each with a position of its own; streams at one position share its next read."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from cq.backoff import delay_after
from cq.cli.web.sampler import problem_of, wait_for_event
from cq.encoding.json_values import to_json
from cq.errors import CqError, InvalidData, NotInStore, QueueNotConfigured, StoreError
from cq.feeds.messages import Message
from cq.keys.queue import valid_name
from cq.observers.feeds.changelog import ChangelogPage, change_of, check_position, read_changelog
from cq.plain_text import describe
from cq.store import OpenDatabase
from cq.store.api import Transaction, TransactionRead, Void, error_code
from cq.store.transact import transact
from cq.store.watch import WatchSlot

HEARTBEAT: Final = ": no change\n\n"
"""A comment, which detects closed connections."""


class Entry(NamedTuple):
    """A message of a changelog: its position, and its event; empty if the message is not a change."""

    position: bytes
    text: str


class EntryPage(NamedTuple):
    """A page of a changelog as entries; `begin` and `more` are those of `ChangelogPage`."""

    begin: bytes
    entries: list[Entry]
    more: bool

    @property
    def end(self) -> bytes:
        """The position after this page."""
        return self.entries[-1].position if self.entries else self.begin


def entries_of(page: ChangelogPage) -> EntryPage:
    """The messages of a page as entries."""
    return EntryPage(page.begin, [_entry(message) for message in page.messages], page.more)


def _entry(message: Message[Any]) -> Entry:
    change = change_of(message)
    if change is None:
        return Entry(message.id, "")
    data = {"key": to_json(change.key)}
    if change.old is not None or change.new is not None:
        data |= {"old": to_json(change.old), "new": to_json(change.new)}
    # The event has the position of its own change, not that of its page: a client that has received a part of the page
    # resumes after this part.
    return Entry(message.id, _event(message.id, data))


def start_event(position: bytes) -> str:
    """The first event of a stream: so a client that receives no change resumes from here, too."""
    return _event(position, {"position": position.hex()}, "start")


def reset_event(given: bytes, begin: bytes) -> str:
    """The event for a position that does not count any more: changes between it and `begin` may be missing."""
    reason = (
        "changes after the given position are not stored any more: read all values, then continue from here"
    )
    return _event(begin, {"given": given.hex(), "position": begin.hex(), "reason": reason}, "reset")


def problem_event(reason: str) -> str:
    """The last event of a stream that the server cannot continue; without a position, so the client keeps its own."""
    return f"event: problem\ndata: {json.dumps({'reason': reason})}\n\n"


def _event(position: bytes, data: Mapping[str, Any], name: str = "") -> str:
    # In ASCII: then no character of a value can end a line.
    kind = f"event: {name}\n" if name else ""
    return f"{kind}id: {position.hex()}\ndata: {json.dumps(data)}\n\n"


MAX_PAGES: Final = 20
"""Pages of a queue in memory, for streams that are slower than others."""
REST_SECONDS: Final = 0.05
"""Least time between two reads without a backlog."""
_PAGE_ENTRIES: Final = 500
_PAGE_BYTES: Final = 100_000
_CHECK_SECONDS: Final = 15.0
"""After this time without a change, read again: the queue's configuration may be another one."""

_log = logging.getLogger(__name__)


class Followed:
    """A queue that is followed, for the tasks of one event loop.

    Args:
        db: a database of either store.
        queue: name of the queue.
        pool: for reads.

    Attributes:
        streams: the number of its streams.
    """

    def __init__(self, db: OpenDatabase, queue: str, pool: Executor) -> None:
        self.streams = 0
        self._db, self._queue, self._pool = db, queue, pool
        self._loop = asyncio.get_running_loop()
        self._pages: dict[bytes, asyncio.Task[EntryPage]] = {}
        self._watch, self._woken = WatchSlot(), asyncio.Event()
        self._watched = b""  # the position after which the watch waits for changes
        self._rests_until = 0.0
        self._is_closed = False

    def after(self, position: bytes) -> asyncio.Task[EntryPage]:
        """The read of the changes after a position; streams share it, and must not cancel it.

        It ends as soon as there are changes, or if the position does not count any more. It raises errors of cq, except
        for those after which a later read may succeed: then it tries again.
        """
        found = self._pages.get(position)
        if found is None:
            found = self._pages[position] = self._loop.create_task(self._next(position))
            # Also if the streams that wait for it have ended: asyncio logs errors that nobody takes.
            found.add_done_callback(lambda done: done.cancelled() or done.exception())
            done = [each for each, page in self._pages.items() if page.done()]
            for each in done[: max(0, len(done) - MAX_PAGES)]:
                del self._pages[each]
        return found

    def close(self) -> None:
        """End all reads."""
        self._is_closed = True
        self._watch.cancel()
        for page in self._pages.values():
            page.cancel()

    async def _next(self, position: bytes) -> EntryPage:
        failures = 0
        while True:
            woken = self._woken
            if position == self._watched:
                await wait_for_event(woken, _CHECK_SECONDS)
                if self._watch.failures:  # else watches that fail at once would cause reads without a rest
                    await asyncio.sleep(delay_after(self._watch.failures, longest=1.0))
                woken = self._woken
            await asyncio.sleep(max(0.0, self._rests_until - self._loop.time()))
            try:
                page = await self._loop.run_in_executor(self._pool, self._read, position)
            except Exception as error:
                if isinstance(error, StoreError) or error_code(error) is not None:
                    failures += 1
                    await asyncio.sleep(delay_after(failures))
                    continue
                if not isinstance(error, CqError):  # a bug: the other queues continue
                    _log.exception("cq web: the changelog of queue %s cannot be read", self._queue)
                del self._pages[position]  # a later stream tries again
                raise
            failures = 0
            if not page.more:
                self._rests_until = self._loop.time() + REST_SECONDS
                if not woken.is_set():  # else the watch may have fired already
                    self._watched = page.end
            if page.entries or page.begin != position:
                return page

    def _read(self, position: bytes) -> EntryPage:
        """Read the next changes, and watch for later ones; runs in a thread of the pool."""
        page, watch = transact(self._db, partial(self._read_or_watch, position=position))
        if watch is not None:
            self._watch.hold(watch, self._wake_up, self._wake_up)
            if self._is_closed:
                self._watch.cancel()
        return entries_of(page)

    def _read_or_watch(self, tr: Transaction, position: bytes) -> tuple[ChangelogPage, Void | None]:
        changelog = read_changelog(tr.snapshot, self._queue)
        page = changelog.read(tr.snapshot, position, _PAGE_ENTRIES, _PAGE_BYTES)
        # The watch belongs to the read version of the page, so a change between the two fires it.
        return page, None if page.more else changelog.watch(tr)

    def _wake_up(self) -> None:
        """Read again; for any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._announce)

    def _announce(self) -> None:
        woken, self._woken, self._watched = self._woken, asyncio.Event(), b""
        woken.set()


# Streams


MAX_STREAMS: Final = 500
"""Streams of changelogs that a server has open at once."""
MAX_QUEUES: Final = 16
"""Queues that a server follows at once."""
LATEST: Final = "latest"
"""The position after the last stored change, in addresses."""
SILENCE_SECONDS: Final = 15.0
"""After this time without a change a stream gets a comment."""
_RETRY: Final = "retry: 2000\n\n"
_THREADS: Final = 2
_SENT_CHARACTERS: Final = 64_000
"""About the most that a stream gives to its connection at once; the next part follows when this one is taken."""


class Changelogs:
    """The streams of a server, for the tasks of one event loop.

    Args:
        db: a database of either store.
    """

    def __init__(self, db: OpenDatabase) -> None:
        self._db = db
        self._followed: dict[str, Followed] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "cq-web-changelog")
        self._is_stopped = False

    @property
    def open(self) -> int:
        """The number of open streams."""
        return sum(each.streams for each in self._followed.values())

    def stop(self) -> None:
        """End all streams; call it in the event loop."""
        self._is_stopped = True
        for each in self._followed.values():
            each.close()

    def close(self) -> None:
        """Wait for the end of the reads under way, after `stop`."""
        self._threads.shutdown(cancel_futures=True)

    async def answer(self, request: Request) -> Response:
        """The stream of a queue's changes after the position in `Last-Event-ID` or `after`; by default, of all."""
        queue = request.path_params["queue"]
        if valid_name(queue.encode(errors="replace")) is None:
            return PlainTextResponse("there is no such queue", 404)
        if self.open >= MAX_STREAMS or (queue not in self._followed and len(self._followed) >= MAX_QUEUES):
            return PlainTextResponse("too many open changelogs: close some, or try again later", 503)
        # A browser that connects again sends the address of its first request, so the header counts.
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        try:
            find = partial(self._first_position, queue, given)
            position = await asyncio.get_running_loop().run_in_executor(self._threads, find)
        except Exception as error:
            if problem := problem_of(error):
                return PlainTextResponse(problem, _status(error))
            raise
        events = self._events(queue, position, request.state.is_live)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, queue: str, position: bytes, is_live: Callable[[], bool]) -> AsyncIterator[str]:
        with self._following(queue) as followed:
            yield _RETRY + start_event(position)
            while not self._is_stopped:
                read = followed.after(position)
                await asyncio.wait({read}, timeout=SILENCE_SECONDS)
                if read.cancelled() or not is_live():
                    return
                if not read.done():
                    yield HEARTBEAT
                    continue
                if error := read.exception():
                    yield problem_event(problem_of(error) or describe(error))
                    return
                page = read.result()
                if page.begin != position:
                    yield reset_event(position, page.begin)
                    position = page.begin
                for part in _parts(page.entries):
                    yield "".join(entry.text for entry in part) or HEARTBEAT
                    position = part[-1].position

    @contextmanager
    def _following(self, queue: str) -> Iterator[Followed]:
        """A context in which a queue is followed."""
        found = self._followed.setdefault(queue, Followed(self._db, queue, self._threads))
        found.streams += 1
        try:
            yield found
        finally:
            found.streams -= 1
            if not found.streams:
                found.close()
                del self._followed[queue]

    def _first_position(self, queue: str, given: str) -> bytes:
        """The position that a request names."""

        def read(tr: TransactionRead) -> bytes:
            changelog = read_changelog(tr, queue)
            if given == LATEST:
                return changelog.end(tr)
            return check_position(given) if given else changelog.begin(tr)

        return transact(self._db, lambda tr: read(tr.snapshot))


def _parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in parts of about `_SENT_CHARACTERS`."""
    begin, size = 0, 0
    for place, entry in enumerate(entries):
        size += len(entry.text)
        if size >= _SENT_CHARACTERS:
            yield entries[begin : place + 1]
            begin, size = place + 1, 0
    if begin < len(entries):
        yield entries[begin:]


def _status(error: Exception) -> int:
    """The status of an answer to a request that cannot be served."""
    if isinstance(error, InvalidData):
        return 400
    if not isinstance(error, CqError) or isinstance(error, StoreError):
        return 503
    return 404 if isinstance(error, QueueNotConfigured | NotInStore) else 409
