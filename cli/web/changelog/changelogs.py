"""The open streams of changelogs: each has a position of its own, and those of one queue share its last changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from cq.cli.web.changelog.entries import (
    HEARTBEAT,
    Entry,
    EntryPage,
    entries_of,
    problem_event,
    reset_event,
    start_event,
)
from cq.cli.web.changelog.tail import Tail
from cq.cli.web.sampling.problems import problem_of
from cq.errors import CqError, InvalidData, NotInStore, QueueNotConfigured, StoreError
from cq.keys.queue import valid_name
from cq.observers.feeds.changelog import check_position, read_changelog
from cq.store import OpenDatabase
from cq.store.api import TransactionRead
from cq.store.transact import transact

T = TypeVar("T")

MOST_STREAMS: Final = 500
"""Streams of changelogs that a server has open at once."""
MOST_QUEUES: Final = 16
"""Queues that a server follows at once."""
LATEST: Final = "latest"
"""The position after the last stored change, in addresses."""
SILENCE_SECONDS: Final = 15.0
"""After this time without a change a stream gets a comment."""
_RETRY: Final = "retry: 2000\n\n"
_SENT_CHARACTERS: Final = 64_000
"""About the most that a stream gives to its connection at once; the next part follows when this one is taken."""
_READ_ENTRIES: Final = 500
_READ_BYTES: Final = 100_000


@dataclass(slots=True)
class _Followed:
    """A queue with open streams."""

    tail: Tail
    task: asyncio.Task[None]
    streams: int = 0


class Changelogs:
    """The streams of a server, for the tasks of one event loop.

    The number of streams does not change the reads from the store. Each queue has one tail, and one thread reads page
    after page for streams with older positions.

    Args:
        db: a database of either store.
    """

    def __init__(self, db: OpenDatabase) -> None:
        self._db = db
        self._followed: dict[str, _Followed] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._tails = ThreadPoolExecutor(1, "cq-web-changelog")
        self._older = ThreadPoolExecutor(1, "cq-web-changelog-older")
        self._is_stopped = False

    @property
    def open(self) -> int:
        """The number of open streams."""
        return sum(each.streams for each in self._followed.values())

    def stop(self) -> None:
        """End all streams; call it in the event loop."""
        self._is_stopped = True
        for each in self._followed.values():
            each.tail.stop()

    async def close(self) -> None:
        """Wait for the end of all reads, after `stop`."""
        await asyncio.gather(*self._ending, *(each.task for each in self._followed.values()))
        self._tails.shutdown()
        self._older.shutdown(cancel_futures=True)

    async def answer(self, request: Request) -> Response:
        """The stream of a queue's changes after the position in `Last-Event-ID` or `after`; by default, of all."""
        queue = request.path_params["queue"]
        if valid_name(queue.encode(errors="replace")) is None:
            return PlainTextResponse("there is no such queue", 404)
        if self.open >= MOST_STREAMS or (queue not in self._followed and len(self._followed) >= MOST_QUEUES):
            return PlainTextResponse("too many open changelogs: close some, or try again later", 503)
        # A browser that connects again sends the address of its first request, so the header counts.
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        try:
            position = await self._in_older(partial(self._first_position, queue, given))
        except Exception as error:
            if problem := problem_of(error):
                return PlainTextResponse(problem, _status(error))
            raise
        return StreamingResponse(
            self._events(queue, position, request.state.is_live), media_type="text/event-stream"
        )

    async def _events(self, queue: str, position: bytes, is_live: Callable[[], bool]) -> AsyncIterator[str]:
        with self._following(queue) as tail:
            yield _RETRY + start_event(position)
            while not self._is_stopped and not tail.problem and is_live():
                changed = tail.changed  # before the look: a change after it must wake this task
                found = _first_part(tail, position) if tail.is_loaded else []
                if found is None:
                    page = await self._page(queue, position)
                    if isinstance(page, str):
                        yield problem_event(page)
                        return
                    if page.begin != position:
                        yield reset_event(position, page.begin)
                        position = page.begin
                    found = page.entries
                if found:
                    for part in _parts(found):
                        yield "".join(entry.text for entry in part) or HEARTBEAT
                        position = part[-1].position
                elif not await _is_set(changed, SILENCE_SECONDS):
                    yield HEARTBEAT
            if tail.problem:
                yield problem_event(tail.problem)

    @contextmanager
    def _following(self, queue: str) -> Iterator[Tail]:
        """A context in which the tail of a queue is kept current."""
        followed = self._followed.get(queue)
        if followed is None:
            tail = Tail(self._db, queue, self._tails)
            followed = self._followed[queue] = _Followed(tail, asyncio.create_task(tail.run()))
        followed.streams += 1
        try:
            yield followed.tail
        finally:
            followed.streams -= 1
            if not followed.streams:
                del self._followed[queue]
                followed.tail.stop()
                self._ending.add(followed.task)
                followed.task.add_done_callback(self._ending.discard)

    async def _page(self, queue: str, position: bytes) -> EntryPage | str:
        """The changes after a position that the tail lacks, or why they cannot be read."""
        try:
            return await self._in_older(partial(self._read_page, queue, position))
        except Exception as error:
            if problem := problem_of(error):
                return problem
            raise

    def _read_page(self, queue: str, position: bytes) -> EntryPage:
        return entries_of(
            transact(
                self._db,
                lambda tr: read_changelog(tr.snapshot, queue).read(
                    tr.snapshot, position, _READ_ENTRIES, _READ_BYTES
                ),
            )
        )

    def _first_position(self, queue: str, given: str) -> bytes:
        """The position that a request names."""

        def read(tr: TransactionRead) -> bytes:
            changelog = read_changelog(tr, queue)
            if given == LATEST:
                return changelog.read_last(tr, 1, 1).end
            return check_position(given) if given else changelog.begin(tr)

        return transact(self._db, lambda tr: read(tr.snapshot))

    async def _in_older(self, read: Callable[[], T]) -> T:
        """Run a read in the thread that all streams share."""
        return await asyncio.get_running_loop().run_in_executor(self._older, read)


def _first_part(tail: Tail, position: bytes) -> Sequence[Entry] | None:
    """The next changes in memory, in one part: a slow client must not keep more of them than the tail does."""
    found = tail.after(position)
    return found and next(_parts(found))


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


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Whether an event is set within `seconds`."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


def _status(error: Exception) -> int:
    """The status of an answer to a request that cannot be served."""
    if isinstance(error, InvalidData):
        return 400
    if not isinstance(error, CqError) or isinstance(error, StoreError):
        return 503
    return 404 if isinstance(error, QueueNotConfigured | NotInStore) else 409
