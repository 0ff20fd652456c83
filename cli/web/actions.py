"""The forms of actions: an operator confirms each action, and each is an event in the server's log."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from functools import partial
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from cq.cli.web.access import WebAccess, form_of
from cq.cli.web.operate import OPERATIONS, Operation, perform
from cq.cli.web.rendering import Renderer
from cq.keys.queue import valid_name
from cq.observers.telemetry.bus import emit
from cq.store import OpenDatabase

_MOST_RESULTS: Final = 100
_ID_CHARACTERS: Final = 8
"""Characters of a session's id in the log: they tell sessions apart, and are no cookie."""


class Actions:
    """The actions of a server, and their latest results, which the next page shows.

    Args:
        db: a database of either store.
        access: of the server.
        renderer: of its pages.
    """

    def __init__(self, db: OpenDatabase, access: WebAccess, renderer: Renderer) -> None:
        self._db, self._access, self._renderer = db, access, renderer
        self._results: OrderedDict[str, str] = OrderedDict()

    async def answer(self, request: Request) -> Response:
        """The form of an action; or for a confirmed form, the action's result on the page of the queue."""
        name, queue = request.path_params["action"], request.query_params.get("queue", "")
        operation = OPERATIONS.get(name)
        if operation is None or valid_name(queue.encode(errors="replace")) is None:
            text = "There is no such action."
            form_token = self._access.sessions.form_token(request.state.session)
            return HTMLResponse(self._renderer.render("missing.html", text=text, form_token=form_token), 404)
        if request.method != "POST":
            return self._form(request, operation, queue, dict(request.query_params))
        fields = await form_of(request) or {}
        if not self._access.sessions.is_form_token(request.state.session, fields.pop("form_token", "")):
            return PlainTextResponse("this form is outdated: open it again", 403)
        done = await run_in_threadpool(partial(perform, self._db, operation, queue, fields))
        given = ", ".join(f"{field} {value!r}" for field, value in fields.items() if value)
        emit(
            "operator_acted" if done.is_done else "operator_failed",
            session=request.state.session.id[:_ID_CHARACTERS],
            action=name,
            queue=queue,
            given=given or "no fields",
            result=done.text,
        )
        if not done.is_done:
            return self._form(request, operation, queue, fields, done.text)
        return RedirectResponse(f"/queues/{queue}?done={self._kept(done.text)}", 303)

    def result(self, request: Request) -> str | None:
        """The result of the action that led to this page; None for other pages."""
        return self._results.get(request.query_params.get("done", ""))

    def _form(
        self,
        request: Request,
        operation: Operation,
        queue: str,
        fields: dict[str, str],
        problem: str = "",
    ) -> Response:
        text = self._renderer.render(
            "action.html",
            operation=operation,
            queue=queue,
            fields=fields,
            problem=problem,
            form_token=self._access.sessions.form_token(request.state.session),
        )
        return HTMLResponse(text, 400 if problem else 200)

    def _kept(self, text: str) -> str:
        """Keep a result for the next page; returns its id."""
        name = secrets.token_hex(8)
        self._results[name] = text
        while len(self._results) > _MOST_RESULTS:
            self._results.popitem(last=False)
        return name
