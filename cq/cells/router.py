"""WSGI and ASGI middleware that leads each request to the web servers of its user's cell.

    router = Router(cells, "eu-1", [Rule("/u/{user}"), Rule("/post", form="user")])
    application = router.wsgi(application)  # or router.asgi(application)

A request of a user of this cell goes to the application; one of a user of another cell is redirected there, by 307,
which repeats the method and the body. A rule with `to` finds former ids, and redirects to the page of their user.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_plus, urlsplit

from cq import runtime
from cq.cells.cells import CACHED_USERS, Cells
from cq.cells.old_ids import OldId, find_old_id
from cq.errors import CqError, InvalidConfiguration, UserDeleted, UserNotPlaced
from cq.keys import cell as keys
from cq.plain_text import describe
from cq.queue.byte_sizes import bytes_of
from cq.store.api import error_code

KEPT_SECONDS: Final = 60.0
"""How long a router knows that a user is in its cell, after it has read so."""
log = logging.getLogger("cq.cells")
MAX_FORM_BYTES: Final = 1_000_000
_MAX_FIELDS: Final = 1_000
_FORM: Final = "application/x-www-form-urlencoded"
# These stay as they are in a query: all that RFC 3986 reserves, and the percent sign of what is encoded already.
_KEPT: Final = "/?:@!$&'()*+,;=-._~%[]"
Fields = Mapping[str, str]
_Receive = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Rule:
    """Where a request has its user, or a former id.

    Exactly one of the placeholder in `path`, `query` and `form` says where it is.

    Args:
        path: path of the pages, and of all pages below them; `{user}` is the user, such as in `/u/{user}`. With `to`,
            `{old}` is the former id, and there are no pages below.
        query: name of the parameter in the query with the user or the former id.
        form: name of the field in a form, of the type `application/x-www-form-urlencoded`.
        to: for former ids: the path, and perhaps the query, of the page with `{user}` and `{number}`, which another
            rule must understand.
        type: makes the user or the former id of its text; `int`, for example. Its `ValueError` is the answer 400.

    Raises:
        InvalidConfiguration: these do not fit together.
    """

    path: str = "/"
    query: str | None = None
    form: str | None = None
    to: str | None = None
    type: Callable[[str], Any] = str
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = "{user}" if self.to is None else "{old}"
        before, placeholder, after = self.path.partition(name)
        sources = [bool(placeholder), self.query is not None, self.form is not None]
        if sources.count(True) != 1 or not self.path.startswith("/"):
            raise InvalidConfiguration(
                f"expected a path from '/' on, and {name} in it, or else `query` or `form`, got: {self}"
            )
        if self.to is not None and not (self.to.startswith("/") and "{user}" in self.to):
            raise InvalidConfiguration(f"expected `to` to be a path with {{user}}, got: {self}")
        below = "" if placeholder and self.to is not None else "(?:/.*)?"
        pattern = re.escape(before) + ("([^/]+)" if placeholder else "") + re.escape(after)
        object.__setattr__(self, "_pattern", re.compile(pattern.rstrip("/") + below, re.DOTALL))

    def applies(self, path: str) -> bool:
        """Whether it is about this path."""
        return self._pattern.fullmatch(path) is not None

    def find(self, path: str, query: str, form: bytes) -> str | None:
        """Return the text of the user or the former id in a request, if there is one; raises `ValueError`."""
        match = self._pattern.fullmatch(path)
        if match is None:
            return None
        if self.query is not None:
            return _fields(query).get(self.query)
        return match[1] if self.form is None else _fields(form.decode("ascii")).get(self.form)


class WebAnswer(NamedTuple):
    """What a router answers instead of the application: a status, and the URL of a redirection, or a text."""

    status: int
    text: str

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers; the body is empty after a redirection."""
        if self.status == 307:
            return [("Location", self.text), ("Content-Length", "0"), ("Cache-Control", "no-store")]
        length = str(len(self.body()))
        return [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", length)]

    def body(self) -> bytes:
        """Return the body."""
        return b"" if self.status == 307 else f"{self.text}\n".encode()


@dataclass(frozen=True)
class WebRequest:
    """What a router reads of a request.

    Attributes:
        root: path of the application, before `path`.
        path: path of the page in the application.
        query: the query as it was sent; what should have been percent-encoded is.
        form: the body of a form; empty if there is none.
        host: host and port as the client names them.
    """

    root: str
    path: str
    query: str
    form: bytes
    host: str


_INVALID: Final = WebAnswer(400, "The request is not valid.")


class Router:
    """Middleware that leads requests to the cells of their users; see `cq.cells.router`.

    It remembers the users of its cell for a minute, and reads the directory for all others: so nobody is led to and
    fro, and requests of a user who has just moved away may still go to the application.

    A request in which no rule finds a user goes to the application, as does one of a user whose cell has no web
    address: `Cells.transact` reaches users of all cells. Users without a cell, and deleted ones, get 404, and invalid
    requests 400.

    Args:
        cells: the cells. A web address of each is given to `Cells.add_cell`.
        here: the name of the cell whose requests the application answers.
        rules: rules that find users, in their order, then those that find former ids; see `map_old_ids`.
        max_form_bytes: larger forms, as a number of bytes or a size such as `"1MB"`, get 413, if a rule needs them.

    Raises:
        InvalidConfiguration: no rule finds the user in the page that a rule for former ids redirects to.
    """

    def __init__(
        self, cells: Cells, here: str, rules: Sequence[Rule], *, max_form_bytes: int | str = MAX_FORM_BYTES
    ) -> None:
        self.here = here
        self._cells = cells
        # Rules with `to` are last: a page that names a user is never looked up among former ids first.
        self._rules = sorted(rules, key=lambda rule: rule.to is not None)
        self._max_form_bytes = bytes_of(max_form_bytes)
        self._users: dict[bytes, float] = {}  # {user of this cell: until when that is known}
        for rule in self._rules:
            if rule.to is not None:
                page = _page_of(rule.to, OldId(1, 1))
                if not any(each.to is None and each.find(*page, b"") == "1" for each in self._rules):
                    raise InvalidConfiguration(f"no rule finds the user in the pages of {rule}")

    def cell_of(self, user: Any) -> str:
        """Return the cell of a user; raises `UserNotPlaced`, `UserDeleted`, `InvalidData`."""
        encoded = keys.encoded_user(user)
        now = runtime.monotonic()
        if self._users.get(encoded, now) > now:
            return self.here
        cell = self._cells.directory.record(user).cell
        if cell == self.here:
            if len(self._users) >= CACHED_USERS:
                self._users.clear()
            self._users[encoded] = now + KEPT_SECONDS
        return cell

    def route(self, request: WebRequest) -> WebAnswer | None:
        """Return the answer to a request; None if the application answers."""
        if len(request.form) > self._max_form_bytes:
            return WebAnswer(413, f"The form exceeds {self._max_form_bytes:,} bytes.")
        try:
            return self._routed(request)
        except ValueError:  # also `InvalidData`, and texts that are not encoded as they should be
            return _INVALID
        except Exception as error:
            if not isinstance(error, CqError) and error_code(error) is None:
                raise
            log.warning("a request cannot be routed: %s", describe(error))
            return WebAnswer(503, "The directory of users does not answer: try again.")

    def _routed(self, request: WebRequest) -> WebAnswer | None:
        is_unknown = False
        for rule in self._rules:
            text = rule.find(request.path, request.query, request.form)
            if text is None:
                continue
            found = rule.type(text)
            try:
                if rule.to is None:
                    return self._lead(request, self.cell_of(found))
                if (old := find_old_id(self._cells, found)) is not None:
                    return self._lead_old(request, rule, old)
            except (UserNotPlaced, UserDeleted):
                pass
            is_unknown = True
        return WebAnswer(404, "There is no such user.") if is_unknown else None

    def _lead(self, request: WebRequest, cell: str) -> WebAnswer | None:
        address = "" if cell == self.here else self._cells.directory.cell(cell).web
        if not address:
            return None
        if self._leads_here(address, request.host):
            # It would come back here for ever.
            log.error("the web address of cell %r, %s, leads to servers of cell %r", cell, address, self.here)
            return WebAnswer(502, "The web address of the user's cell leads to servers of another cell.")
        return _redirect(address + quote(request.root + request.path), request.query)

    def _leads_here(self, address: str, host: str) -> bool:
        """Whether requests to an address come to the servers of this cell: one host may have cells at several paths."""
        to = urlsplit(address)
        if to.netloc.lower() != host.lower():
            return False
        own = urlsplit(self._cells.directory.cell(self.here).web)
        return to.netloc != own.netloc or to.path == own.path

    def _lead_old(self, request: WebRequest, rule: Rule, old: OldId) -> WebAnswer:
        """Redirect to the page of a former id; raises as `cell_of`, so that nobody is led to and fro."""
        address = self._cells.directory.cell(self.cell_of(old.user)).web
        path, query = _page_of(rule.to or "", old)
        rest = [each for each in request.query.split("&") if not _is_field(each, rule.query)]
        return _redirect(address + quote(request.root) + path, "&".join(filter(None, (query, *rest))))

    # The interfaces

    def wsgi(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """Return a WSGI application that leads requests, and calls `app` for those of this cell."""

        def routed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            try:
                answer = self.route(self._read_wsgi(environ))
            except ValueError:
                answer = _INVALID
            if answer is None:
                return app(environ, start_response)
            start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", answer.headers())
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [answer.body()]

        return routed

    def _read_wsgi(self, environ: dict[str, Any]) -> WebRequest:
        """Return a request, with its form if a rule needs it; raises `ValueError`."""
        # The interface has bytes as characters.
        root, path = (
            environ.get(name, "").encode("latin-1").decode() for name in ("SCRIPT_NAME", "PATH_INFO")
        )
        form = b""
        if self._reads_form(path, environ.get("CONTENT_TYPE", "")):
            # A server that decodes chunks gives no length, and says that the input ends.
            is_ended = environ.get("wsgi.input_terminated")
            size = int(environ.get("CONTENT_LENGTH") or (self._max_form_bytes + 1 if is_ended else 0))
            form = environ["wsgi.input"].read(min(max(0, size), self._max_form_bytes + 1))
            environ["wsgi.input"] = BytesIO(form)  # for the application
        query = quote(environ.get("QUERY_STRING", "").encode("latin-1"), _KEPT)
        return WebRequest(root, path, query, form, environ.get("HTTP_HOST", ""))

    def _reads_form(self, path: str, content_type: str) -> bool:
        """Whether a rule needs the body of such a request."""
        is_form = content_type.partition(";")[0].strip().lower() == _FORM
        return is_form and any(rule.form is not None and rule.applies(path) for rule in self._rules)

    def asgi(self, app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Return an ASGI application that leads requests, and calls `app` for those of this cell.

        WebSockets, which clients do not redirect, and events of the server go to `app`.
        """

        async def routed(scope: dict[str, Any], receive: _Receive, send: Callable[..., Any]) -> None:
            answer = None
            if scope["type"] == "http":
                answer, receive = await self._route_asgi(scope, receive)
            if answer is None:
                await app(scope, receive, send)
                return
            headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers()]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            body = b"" if scope.get("method") == "HEAD" else answer.body()
            await send({"type": "http.response.body", "body": body})

        return routed

    async def _route_asgi(
        self, scope: dict[str, Any], receive: _Receive
    ) -> tuple[WebAnswer | None, _Receive]:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"]
        if f"{path}/".startswith(f"{root}/"):  # servers differ: the path begins with the root, or follows it
            path = path.removeprefix(root)
        form = bytearray()  # bytes would be copied for each piece
        if self._reads_form(path, headers.get(b"content-type", "")):
            has_more = True
            while has_more and len(form) <= self._max_form_bytes:
                message = await receive()
                if message["type"] != "http.request":  # the client is gone
                    return _INVALID, receive
                form += message.get("body", b"")
                has_more = message.get("more_body", False)
            receive = _again(bytes(form), receive)
        query = quote(scope["query_string"], _KEPT)
        request = WebRequest(root, path, query, bytes(form), headers.get(b"host", ""))
        return await asyncio.to_thread(self.route, request), receive  # the directory may have to be read


def _again(form: bytes, receive: _Receive) -> _Receive:
    """Return a function that gives a form to the application again."""
    whole = iter([{"type": "http.request", "body": form, "more_body": False}])

    async def again() -> dict[str, Any]:
        return next(whole, None) or await receive()

    return again


def _fields(encoded: str) -> Fields:
    """The first value of each field of a query or a form; raises `ValueError`.

    Texts that are not in UTF-8 are those of no user, but may be in other fields: `InvalidData` refuses them as users.
    """
    pairs = parse_qsl(encoded, keep_blank_values=True, errors="surrogateescape", max_num_fields=_MAX_FIELDS)
    return dict(reversed(pairs))


def _is_field(encoded: str, name: str | None) -> bool:
    return name is not None and unquote_plus(encoded.partition("=")[0]) == name


def _page_of(to: str, old: OldId) -> tuple[str, str]:
    """Return the path and the query of the page of a former id, as they are in its URL."""
    for name, value in (("{user}", old.user), ("{number}", old.number)):
        to = to.replace(name, quote(str(value), ""))
    path, _, query = to.partition("?")
    return path, query


def _redirect(url: str, query: str) -> WebAnswer:
    return WebAnswer(307, f"{url}?{query}" if query else url)
