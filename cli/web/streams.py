"""Streams of server-sent events: each open page has one, and receives the parts of the page that changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from cq.cli.web.pages.web_page import WebPage
from cq.cli.web.rendering import Renderer
from cq.cli.web.sampling.sampler import Sampler

MOST_STREAMS: Final = 500
"""Streams that a server has open at once."""
_SILENCE_SECONDS: Final = 15.0
"""After this time without a change a stream gets a comment, which detects closed connections."""
_RETRY_MILLISECONDS: Final = 2_000


class Streams:
    """The open streams of a server."""

    def __init__(self, sampler: Sampler, renderer: Renderer) -> None:
        self._sampler, self._renderer = sampler, renderer
        self.open = 0

    def answer(self, page: WebPage, is_live: Callable[[], bool]) -> Response:
        """A stream of the changes of a page, until the page is closed, its session ends or the sampler is stopped."""
        if self.open >= MOST_STREAMS:
            return PlainTextResponse("too many open pages: close some, or try again later", 503)
        return StreamingResponse(self._events(page, is_live), media_type="text/event-stream")

    async def _events(self, page: WebPage, is_live: Callable[[], bool]) -> AsyncIterator[str]:
        self.open += 1
        try:
            with self._sampler.watching(page.topics):
                yield f"retry: {_RETRY_MILLISECONDS}\n\n"
                number, sent = -1, dict[str, str]()
                while not self._sampler.is_stopped:
                    snapshot = await self._sampler.newer(number, _SILENCE_SECONDS)
                    if not is_live():
                        return
                    if snapshot is not None:
                        number = snapshot.number
                    changes = None
                    if snapshot is not None:
                        changes = await self._renderer.in_thread(
                            partial(self._renderer.changes, page, snapshot, sent)
                        )
                    yield f"data: {changes}\n\n" if changes else ": nothing new\n\n"
        finally:
            self.open -= 1
