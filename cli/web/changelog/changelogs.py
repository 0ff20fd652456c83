"""The open streams of changelogs: each has a position of its own, and streams at one position share its next read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from cq.cli.web.changelog.followed import HEARTBEAT, Entry, Followed, problem_event, reset_event, start_event
from cq.cli.web.sampling.problems import problem_of
from cq.errors import CqError, InvalidData, NotInStore, QueueNotConfigured, StoreError
from cq.keys.queue import valid_name
from cq.observers.feeds.changelog import check_position, read_changelog
from cq.plain_text import describe
from cq.store import OpenDatabase
from cq.store.api import TransactionRead
from cq.store.transact import transact

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
                return changelog.read_last(tr, 1, 1).end
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
