"""Actions of operators: what each does, its form, which an operator confirms, and its run, an event in the log."""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cq import admin
from cq.cli.queues.set_aside import dropped, retried, wanted_aside
from cq.cli.shared.options import seconds_of
from cq.cli.shared.output import quantity, with_levels
from cq.cli.web.access import WebAccess, form_of
from cq.cli.web.rendering import Renderer
from cq.cli.web.sampler import problem_of
from cq.config.flags import read_flags
from cq.config.queue import read_config
from cq.errors import InvalidConfiguration
from cq.keys.queue import valid_name
from cq.observers.links.operate import OpenLink
from cq.observers.links.registry import opened_link, pause_link
from cq.observers.links.target import LinkFailed, NotDeclared
from cq.observers.telemetry.bus import emit
from cq.queue.limits import MODES
from cq.queue.set_aside import drop_aside, retry_aside
from cq.store import OpenDatabase
from cq.store.transact import transact

_MAX_RESULTS: Final = 100
_ID_CHARACTERS: Final = 8
"""Characters of a session's id in the log: they tell sessions apart, and are no cookie."""

Fields = Mapping[str, str]


class FormField(NamedTuple):
    """A field of a form.

    Attributes:
        name: in the form.
        label, help: its texts.
        choices: its values; empty for any text.
        required: whether it must not be empty.
    """

    name: str
    label: str
    help: str
    choices: Sequence[str] = ()
    required: bool = False


class Operation(NamedTuple):
    """An action of an operator on a queue.

    Attributes:
        title: the heading of its form, and its button.
        effect: what it does, for the operator who confirms it.
        run: does it, and returns the result in one line.
        fields: of its form, in addition to the queue.
        is_dangerous: whether its result cannot be undone.
        present: reads the present values of its fields, with which the form begins.
    """

    title: str
    effect: str
    run: Callable[[OpenDatabase, str, Fields], str]
    fields: Sequence[FormField] = ()
    is_dangerous: bool = False
    present: Callable[[OpenDatabase, str], Fields] | None = None


def present_values(db: OpenDatabase, operation: Operation, queue: str) -> Fields:
    """The present values of a form's fields; an empty dict if they cannot be read, or the form begins empty."""
    try:
        return {} if operation.present is None else operation.present(db, queue)
    except Exception as error:
        if problem_of(error):
            return {}
        raise


def changed_meanwhile(operation: Operation, present: Fields) -> str:
    """The message for a form that showed other values when it was opened than the present ones."""
    now = ", ".join(f"{each.label.lower()} {present.get(each.name) or 'none'}" for each in operation.fields)
    return (
        f"nothing was changed, as these settings were changed after the form was opened ({now}). Check it, and confirm "
        "it again"
    )


def perform(db: OpenDatabase, operation: Operation, queue: str, fields: Fields) -> tuple[str, bool]:
    """Run an action; returns its result or its error, and whether it is done."""
    try:
        return operation.run(db, queue, fields), True
    except Exception as error:
        if problem := problem_of(error):
            return problem, False
        raise


def _pause(db: OpenDatabase, queue: str, fields: Fields) -> str:
    admin.pause(db, queue, _given(fields, "reason") or "by hand", duration=_seconds(fields, "duration"))
    return _with_levels(db, queue, f"queue {queue!r} is paused")


def _resume(db: OpenDatabase, queue: str, fields: Fields) -> str:
    admin.resume(db, queue)
    return _with_levels(db, queue, f"queue {queue!r} is active")


def _rebucket(db: OpenDatabase, queue: str, fields: Fields) -> str:
    admin.rebucket(db, queue, _whole(fields, "buckets"))
    text = _with_levels(db, queue, f"queue {queue!r} has {quantity(_whole(fields, 'buckets'), 'bucket')}")
    return f"{text}: workers drain the former ones"


def _limit(db: OpenDatabase, queue: str, fields: Fields) -> str:
    seconds = _seconds(fields, "max_age")
    size = _given(fields, "max_bytes")
    admin.limit(db, queue, max_age=seconds, max_bytes=size, when_full=_given(fields, "when_full") or MODES[0])
    text = (
        f"queue {queue!r} has no limits"
        if seconds is None and size is None
        else f"queue {queue!r} is limited"
    )
    return _with_levels(db, queue, text)


def _present_limits(db: OpenDatabase, queue: str) -> Fields:
    flags = transact(db, lambda tr: read_flags(tr.snapshot, queue))
    age = "" if flags.max_seconds is None else f"{flags.max_seconds:.15g}s"
    size = "" if flags.max_bytes is None else str(flags.max_bytes)
    return {"max_age": age, "max_bytes": size, "when_full": flags.when_full}


def _retry(db: OpenDatabase, queue: str, fields: Fields) -> str:
    return retried(queue, retry_aside(db, queue, wanted_aside(db, queue, _key(fields))))


def _drop(db: OpenDatabase, queue: str, fields: Fields) -> str:
    return dropped(queue, drop_aside(db, queue, wanted_aside(db, queue, _key(fields))))


def _set_link(db: OpenDatabase, queue: str, fields: Fields, *, paused: bool) -> str:
    name = pause_link(db, queue, _given(fields, "link"), paused=paused)
    return f"link {name!r} of queue {queue!r} is {'paused' if paused else 'active'}"


def _rebuild_link(db: OpenDatabase, queue: str, fields: Fields) -> str:
    with _opened_link(db, queue, fields, "rebuild") as opened:
        opened.rebuild()
        return f"workers send all values of queue {queue!r} to link {opened.keys.link!r} again"


def _rebase_link(db: OpenDatabase, queue: str, fields: Fields) -> str:
    with _opened_link(db, queue, fields, "rebase") as opened:
        opened.rebase()
        return f"link {opened.keys.link!r} of queue {queue!r} continues from the current state"


@contextmanager
def _opened_link(db: OpenDatabase, queue: str, fields: Fields, command: str) -> Iterator[OpenLink]:
    """The link in a form; the error about missing code of the application names the command, which can load it."""
    link = _given(fields, "link")
    try:
        with opened_link(db, queue, link) as opened:
            yield opened
    except NotDeclared as error:
        words = " ".join(filter(None, (command, queue, link)))
        raise LinkFailed(
            "the dashboard has no code of applications, which this link needs: run "
            f"`cq link {words} --app MODULE:APP`"
        ) from error


def _with_levels(db: OpenDatabase, queue: str, text: str) -> str:
    return with_levels(text, transact(db, lambda tr: read_config(tr.snapshot, queue)).level_names)


def _given(fields: Fields, name: str) -> str | None:
    return fields.get(name, "").strip() or None


def _key(fields: Fields) -> str | None:
    """The key of a form as it was typed: a key may begin or end with blanks, or consist of them."""
    return fields.get("key") or None


def _seconds(fields: Fields, name: str) -> float | None:
    text = _given(fields, name)
    return None if text is None else seconds_of(text)


def _whole(fields: Fields, name: str) -> int:
    text = fields.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidConfiguration(
            f"expected a whole number for {name.replace('_', ' ')}, got: {text[:80]!r}"
        )
    return int(text)


_LINK: Final = FormField("link", "Link", "The name of the link. Empty: the queue's only one.")
_KEY: Final = FormField("key", "Key", "One key, as on the command line. Empty: all keys.")
OPERATIONS: Final[Mapping[str, Operation]] = {
    "pause": Operation(
        "Pause",
        "Workers stop combining this queue and its levels. Adds and reads continue, so its backlog grows until it is "
        "resumed.",
        _pause,
        (
            FormField("reason", "Reason", "Operators and workers see it."),
            FormField("duration", "Duration", "Such as 90s, 10m or 2h. Empty: until it is resumed."),
        ),
    ),
    "resume": Operation("Resume", "Workers combine this queue and its levels again, at once.", _resume),
    "rebucket": Operation(
        "Change the number of buckets",
        "The queue stays in use, and no update is lost. Workers drain the former buckets.",
        _rebucket,
        (
            FormField(
                "buckets", "Buckets", "1 to 4,096: the number of passes that can run at once.", required=True
            ),
        ),
    ),
    "limit": Operation(
        "Change the limits",
        "Workers and adds notice within two seconds that a limit is exceeded. Updates queued in its levels count, "
        "too. An empty field removes its limit.",
        _limit,
        (
            FormField("max_age", "Maximum age", "Of queued updates, such as 90s, 10m or 2h."),
            FormField("max_bytes", "Maximum size", "Of all queued updates, such as 500MB or 1GB."),
            FormField("when_full", "Adds to a full queue", "raise: they fail. admit: they continue.", MODES),
        ),
        present=_present_limits,
    ),
    "pause-link": Operation(
        "Pause the link",
        "Workers stop sending the changes of this link, which stay queued until it is resumed.",
        partial(_set_link, paused=True),
        (_LINK,),
    ),
    "resume-link": Operation(
        "Resume the link",
        "Workers send the changes of this link again.",
        partial(_set_link, paused=False),
        (_LINK,),
    ),
    "rebuild-link": Operation(
        "Send all values again",
        "Workers send all values to the target, and then delete what keys without a value have left there. It also "
        "lets a stopped link continue.",
        _rebuild_link,
        (_LINK,),
    ),
    "rebase-link": Operation(
        "Continue from the current state",
        "The queued changes follow, and no value is sent again: what the target lacks stays missing.",
        _rebase_link,
        (_LINK,),
        is_dangerous=True,
    ),
    "retry": Operation(
        "Retry what was set aside",
        "The updates are added to the queue again, after all queued ones. Repair the cause first.",
        _retry,
        (_KEY,),
    ),
    "drop": Operation(
        "Drop what was set aside",
        "The updates will never count. This cannot be undone.",
        _drop,
        (_KEY,),
        is_dangerous=True,
    ),
}
"""{name in addresses: the action}."""


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
            form_token = self._access.form_token(request.state.session)
            return HTMLResponse(self._renderer.render("missing.html", text=text, form_token=form_token), 404)
        present = await run_in_threadpool(present_values, self._db, operation, queue)
        shown = json.dumps(present)
        if request.method != "POST":
            return self._form(request, operation, queue, {**request.query_params, **present, "shown": shown})
        fields = await form_of(request) or {}
        if not self._access.is_form_token(request.state.session, fields.pop("form_token", "")):
            text = (
                "nothing was changed, as this form is from an earlier session. Check it, and confirm it again"
            )
            return self._form(request, operation, queue, {"shown": shown, **fields}, text, status=403)
        if fields.pop("shown", shown) != shown:
            text = changed_meanwhile(operation, present)
            return self._form(request, operation, queue, {**fields, "shown": shown}, text)
        text, is_done = await run_in_threadpool(partial(perform, self._db, operation, queue, fields))
        given = ", ".join(f"{field} {value!r}" for field, value in fields.items() if value)
        emit(
            "operator_acted" if is_done else "operator_failed",
            session=request.state.session.id[:_ID_CHARACTERS],
            action=name,
            queue=queue,
            given=given or "no fields",
            result=text,
        )
        if not is_done:
            return self._form(request, operation, queue, {**fields, "shown": shown}, text)
        return RedirectResponse(f"/queues/{queue}?done={self._kept(text)}", 303)

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
        *,
        status: int = 400,
    ) -> Response:
        text = self._renderer.render(
            "action.html",
            operation=operation,
            queue=queue,
            fields=fields,
            problem=problem,
            form_token=self._access.form_token(request.state.session),
        )
        return HTMLResponse(text, status if problem else 200)

    def _kept(self, text: str) -> str:
        """Keep a result for the next page; returns its id."""
        name = secrets.token_hex(8)
        self._results[name] = text
        while len(self._results) > _MAX_RESULTS:
            self._results.popitem(last=False)
        return name
