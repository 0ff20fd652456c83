"""The web application of the dashboard: its routes, from requests to pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from cq.cli.web.access import (
    CHANGELOG,
    Guard,
    WebAccess,
    asked_page,
    form_of,
    is_sign_in,
    signed_in,
    signed_out,
)
from cq.cli.web.actions import Actions
from cq.cli.web.changelog import Changelogs
from cq.cli.web.charts import series_line
from cq.cli.web.command import WebOptions
from cq.cli.web.pages import SECTIONS, WebPage, aside_page
from cq.cli.web.queue_pages import PAGE, queue_page, queues_page
from cq.cli.web.reads import READERS, Checks, Lookup, look_up
from cq.cli.web.rendering import Renderer, environment
from cq.cli.web.sampler import OVERVIEW, Sampler, StoreSnapshot
from cq.keys.queue import valid_name
from cq.observers.monitoring.store_overview import Overview
from cq.observers.top.html import cloud_style
from cq.store import OpenDatabase

STATIC: Final = Path(__file__).parent / "static"
MAX_LOOKUPS: Final = 4
"""Lookups of keys that run at once; others wait."""
MAX_STREAMS: Final = 500
"""Streams of pages that a server has open at once."""
_SILENCE_SECONDS: Final = 15.0
"""After this time without a change a stream gets a comment, which detects closed connections."""
_RETRY_MILLISECONDS: Final = 2_000
_NUMBER: Final = re.compile("(?!1$)[1-9][0-9]{0,5}")
_OF_QUEUES: Final[dict[str, Callable[[str], WebPage]]] = {"queues": queue_page, "aside": aside_page}


class Dashboard:
    """The pages of one store, and their streams.

    Args:
        db: a database of either store.
        access: of the server.
        options: of the command.
    """

    def __init__(self, db: OpenDatabase, access: WebAccess, options: WebOptions) -> None:
        self._db, self._access = db, access
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._open_streams = 0
        self.renderer = Renderer(environment(), options.operate)
        self.sampler = Sampler(db, {**READERS, "checks": Checks(options.store).reader()})
        self.changelogs = Changelogs(db)
        self.actions = Actions(db, access, self.renderer)

    def stop(self) -> None:
        """End all streams and the sampler; call it in the event loop."""
        self.sampler.stop()
        self.changelogs.stop()

    async def page(self, request: Request) -> Response:
        """A page."""
        page = page_of(request.url.path)
        if page is None:
            return self._missing(request, "There is no such page.")
        notice = self.actions.result(request)
        snapshot = await self.sampler.answered(page.topics, again=notice is not None)
        if page.queue and not _is_queue(page.queue, snapshot):
            return self._missing(request, f"There is no queue {page.queue}.")
        found = await self._found(request, page)
        more = {"notice": notice, "form_token": self._form_token(request)}
        return HTMLResponse(await self.renderer.in_thread(partial(self.draw, page, snapshot, found, **more)))

    def draw(self, page: WebPage, snapshot: StoreSnapshot, found: Lookup | None, **more: Any) -> str:
        """The HTML of a page, with the answer to a lookup."""
        line = series_line(found.series) if found and found.series else None
        about = {"source": _source(page, snapshot), "events": f"/events?path={page.path}"}
        return self.renderer.page(page, snapshot, lookup=found, line=line, **about, **more)

    async def events(self, request: Request) -> Response:
        """A stream of the changes of a page, until the page is closed, its session ends or the sampler is stopped."""
        page = page_of(request.query_params.get("path", ""))
        if page is None:
            return PlainTextResponse("no such page", 404)
        if self._open_streams >= MAX_STREAMS:
            return PlainTextResponse("too many open pages: close some, or try again later", 503)
        return StreamingResponse(self._events(page, request.state.is_live), media_type="text/event-stream")

    async def _events(self, page: WebPage, is_live: Callable[[], bool]) -> AsyncIterator[str]:
        self._open_streams += 1
        try:
            with self.sampler.watching(page.topics):
                yield f"retry: {_RETRY_MILLISECONDS}\n\n"
                number, sent = -1, dict[str, str]()
                while not self.sampler.is_stopped:
                    snapshot, changes = await self.sampler.newer(number, _SILENCE_SECONDS), None
                    if not is_live():
                        return
                    if snapshot is not None:
                        number = snapshot.number
                        find = partial(self.renderer.changes, page, snapshot, sent)
                        changes = await self.renderer.in_thread(find)
                    yield f"data: {changes}\n\n" if changes else ": nothing new\n\n"
        finally:
            self._open_streams -= 1

    async def sign_in(self, request: Request) -> Response:
        """The page for requests without a session, and its form with the token."""
        is_form = request.method == "POST" and is_sign_in(request)
        if is_form:
            form = await form_of(request)
            answer = signed_in(request, self._access, (form or {}).get("token", "").strip())
            if answer is not None:
                return answer
        is_wrong = is_form or "token" in request.query_params
        is_lost = request.method == "POST" and not is_form
        page = "/" if is_lost else asked_page(request)
        shown = self.renderer.render("sign_in.html", is_wrong=is_wrong, is_lost=is_lost, page=page)
        return HTMLResponse(shown, 401)

    async def ask_to_sign_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `sign_in`, as an application."""
        answer = await self.sign_in(Request(scope, receive))
        await answer(scope, receive, send)

    async def _found(self, request: Request, page: WebPage) -> Lookup | None:
        """The value of the key that a request looks up: one transaction, and few at once."""
        word, by = request.query_params.get("key"), request.query_params.get("by", "")
        if word is None or not page.queue:
            return None
        async with self._lookups:
            return await run_in_threadpool(partial(look_up, self._db, page.queue, word, by))

    def _missing(self, request: Request, text: str) -> Response:
        form_token = self._form_token(request)
        return HTMLResponse(self.renderer.render("missing.html", text=text, form_token=form_token), 404)

    def _form_token(self, request: Request) -> str:
        return self._access.form_token(request.state.session)


def page_of(path: str) -> WebPage | None:
    """The page of a path; None if there is none."""
    if path == "/":
        return queues_page()
    if path in SECTIONS:
        return SECTIONS[path]
    if (number := _NUMBER.fullmatch(path.removeprefix(PAGE))) and path.startswith(PAGE):
        return queues_page(int(number[0]))
    kind, _, name = path.removeprefix("/").partition("/")
    if kind in _OF_QUEUES and valid_name(name.encode(errors="replace")) is not None:
        return _OF_QUEUES[kind](name)
    return None


def _is_queue(name: str, snapshot: StoreSnapshot) -> bool:
    """Whether there is such a queue, also if the store cannot be read now."""
    seen = snapshot.value(OVERVIEW, Overview)
    return seen is None or any(queue.name == name for queue in seen.queues)


def _source(page: WebPage, snapshot: StoreSnapshot) -> str | None:
    """The queue whose level the page is about; None for other pages, or if the store cannot be read now."""
    seen = snapshot.value(OVERVIEW, Overview)
    queues = seen.queues if seen and page.section == "/" else []
    return next((queue.level_of for queue in queues if queue.name == page.queue), None)


async def _cloud_style(request: Request) -> Response:
    return Response(cloud_style(), media_type="text/css")


async def _broken(request: Request, error: Exception) -> Response:
    return PlainTextResponse("the server could not make this page: its log says why", 500)


def make_app(db: OpenDatabase, access: WebAccess, options: WebOptions) -> tuple[Starlette, Dashboard]:
    """The application on a store, and its pages; their `stop()` ends the open streams."""
    dashboard = Dashboard(db, access, options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(dashboard.sampler.run())
        try:
            yield
        finally:
            dashboard.stop()
            await sampling
            dashboard.changelogs.close()
            dashboard.renderer.close()

    routes = [
        Route("/events", dashboard.events),
        Route(CHANGELOG + "{queue}", dashboard.changelogs.answer, methods=["GET"]),
        Route("/login{page:path}", dashboard.sign_in, methods=["GET", "POST"]),
        Route("/logout", partial(signed_out, access=access), methods=["POST"]),
        Route("/static/cloud.css", _cloud_style),
        Mount("/static", StaticFiles(directory=STATIC)),
        *(
            [Route("/actions/{action}", dashboard.actions.answer, methods=["GET", "POST"])]
            if options.operate
            else []
        ),
        Route("/{path:path}", dashboard.page),
    ]
    guard = Middleware(Guard, access=access, sign_in=dashboard.ask_to_sign_in)
    app = Starlette(
        routes=routes, middleware=[guard], lifespan=lifespan, exception_handlers={Exception: _broken}
    )
    return app, dashboard
