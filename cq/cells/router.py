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
from io import BytesIO
from threading import Lock
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl, quote, unquote_plus, urlsplit

from cq.cells.cells import CACHED_USERS, Cells, Location
from cq.cells.old_ids import OldId, find_old_id
from cq.encoding.hashing import bucket_of
from cq.errors import CqError, InvalidConfiguration, UserDeleted, UserNotPlaced
from cq.keys import cell as keys
from cq.plain_text import describe
from cq.queue.byte_sizes import bytes_of
from cq.store.api import Transaction, Void, error_code
from cq.store.follower import StoreFollower

T = TypeVar("T")

_READ_EVERY: Final = 10.0
"""Seconds between two reads without a change, in case that a watch is lost."""
log = logging.getLogger("cq.cells")
MAX_FORM_BYTES: Final = 1_000_000
_MAX_FIELDS: Final = 1_000
_FORM: Final = "application/x-www-form-urlencoded"
# These stay as they are in a query: all that RFC 3986 reserves, and the percent sign of what is encoded already.
_KEPT: Final = "/?:@!$&'()*+,;=-._~%[]"
_REASONS: Final = {
    307: "307 Temporary Redirect",
    400: "400 Bad Request",
    404: "404 Not Found",
    413: "413 Content Too Large",
    502: "502 Bad Gateway",
    503: "503 Service Unavailable",
}
Fields = Mapping[str, str]
_Receive = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class DirectoryChanges:
    """The latest changes of a directory.

    Attributes:
        version: counts the changes that this process has seen.
        stamps: {bucket: versionstamp of its latest change}.
    """

    version: int
    stamps: dict[int, bytes]


class DirectoryCache(StoreFollower[DirectoryChanges]):
    """The cells of users and the web addresses of cells, in memory for all threads and tasks of a process.

    While the store cannot be watched, each read is one of the directory. Create one for each process, after forking,
    and close it at the end.

    Args:
        cells: the cells.
    """

    _has_watch = True

    def __init__(self, cells: Cells) -> None:
        self._directory = cells.directory
        self._keeping = Lock()
        self._kept: dict[tuple[int, Any], Any] = {}
        self._changes = [0] * (keys.OF_ANY + 1)  # seen by this process, by buckets
        super().__init__(cells.directory.db, "the directory of cells", _READ_EVERY)

    def location(self, user: Any) -> Location:
        """Return the location of a user; raises `UserNotPlaced`, `UserDeleted`, `InvalidData`."""
        encoded = keys.encoded_user(user)

        def read() -> Location:
            record = self._directory.record(user)
            return Location(record.cell, record.epoch)

        return self._get(bucket_of(encoded, keys.OF_CELLS), encoded, read)

    def address(self, cell: str) -> str:
        """Return the web address of a cell, empty if it has none; raises `CellNotKnown`."""
        return self._get(keys.OF_CELLS, cell, lambda: self._directory.cell(cell).web)

    def _get(self, bucket: int, name: Any, read: Callable[[], T]) -> T:
        if self.latest is None or self.problem:
            return read()
        found: T | None = self._kept.get((bucket, name))
        if found is None:
            changes = self._changes[bucket]
            found = read()
            self._keep(bucket, name, found, changes)
        return found

    def _keep(self, bucket: int, name: Any, found: object, changes: int) -> None:
        """Keep what was read, unless a change was seen since then: it may have been read before that change."""
        with self._keeping:
            if self._changes[bucket] == changes:
                if len(self._kept) >= CACHED_USERS:
                    self._kept.clear()
                self._kept[bucket, name] = found

    def _fetch(self, tr: Transaction) -> tuple[DirectoryChanges | None, Void | None]:
        rows = tr.get_range(*keys.all_changed())
        stamps = {keys.changed_of(row.key): row.value for row in rows}
        before = self.latest
        if before is not None and before.stamps == stamps:
            return None, tr.watch(keys.changed(keys.OF_ANY))
        known = {} if before is None else before.stamps
        self._forget({bucket for bucket, stamp in stamps.items() if known.get(bucket) != stamp})
        return DirectoryChanges(1 if before is None else before.version + 1, stamps), None

    def _forget(self, buckets: set[int]) -> None:
        with self._keeping:
            for bucket in buckets:
                self._changes[bucket] += 1
            for each in [each for each in self._kept if each[0] in buckets]:
                del self._kept[each]


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

    def find(self, path: str, query: Fields, form: Fields) -> str | None:
        """Return the text of the user or the former id in a request, if there is one."""
        match = self._pattern.fullmatch(path)
        if match is None:
            return None
        if self.query is not None:
            return query.get(self.query)
        return match[1] if self.form is None else form.get(self.form)


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


class _InvalidRequest(Exception):
    """The request is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.answer = WebAnswer(status, text)


class Router:
    """Middleware that leads requests to the cells of their users; see `cq.cells.router`.

    Create one for each process, after forking, and close it at the end; it is also a context manager. It keeps
    the cells of users in memory. A thread watches the directory and forgets the users who move.

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
        for rule in self._rules:
            if rule.to is not None:
                path, query = _page_of(rule.to, OldId(1, 1))
                if not any(
                    each.to is None and each.find(path, _fields(query), {}) == "1" for each in self._rules
                ):
                    raise InvalidConfiguration(f"no rule finds the user in the pages of {rule}")
        self._cache = DirectoryCache(cells)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching the directory."""
        self._cache.close()

    def _reads_form(self, path: str, content_type: str) -> bool:
        """Whether it needs the body of such a request."""
        is_form = content_type.partition(";")[0].strip().lower() == _FORM
        return is_form and any(rule.form is not None and rule.applies(path) for rule in self._rules)

    def _reads_query(self, path: str) -> bool:
        """Whether a rule finds users or former ids in the query of such a page: other queries may be of any form."""
        return any(rule.query is not None and rule.applies(path) for rule in self._rules)

    def route(self, request: WebRequest) -> WebAnswer | None:
        """Return the answer to a request; None if the application answers."""
        try:
            return self._routed(request)
        except _InvalidRequest as refused:
            return refused.answer
        except ValueError:  # also `InvalidData`, and texts that are not encoded as they should be
            return WebAnswer(400, "The request is not valid.")
        except Exception as error:
            if not isinstance(error, CqError) and error_code(error) is None:
                raise
            log.warning("a request cannot be routed: %s", describe(error))
            return WebAnswer(503, "The directory of users does not answer: try again.")

    def _routed(self, request: WebRequest) -> WebAnswer | None:
        query = _fields(request.query if self._reads_query(request.path) else "")
        form = _fields(request.form.decode("ascii"))
        is_unknown = False
        for rule in self._rules:
            text = rule.find(request.path, query, form)
            if text is None:
                continue
            found = rule.type(text)
            try:
                if rule.to is None:
                    return self._lead(request, self._cache.location(found).cell)
                if (old := find_old_id(self._cells, found)) is not None:
                    return self._lead_old(request, rule, old)
            except (UserNotPlaced, UserDeleted):
                pass
            is_unknown = True
        return WebAnswer(404, "There is no such user.") if is_unknown else None

    def _lead(self, request: WebRequest, cell: str) -> WebAnswer | None:
        address = "" if cell == self.here else self._cache.address(cell)
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
        own = urlsplit(self._cache.address(self.here))
        return to.netloc != own.netloc or to.path == own.path

    def _lead_old(self, request: WebRequest, rule: Rule, old: OldId) -> WebAnswer:
        """Redirect to the page of a former id; raises as `location`, so that nobody is led to and fro."""
        cell = self._cache.location(old.user).cell
        path, query = _page_of(rule.to or "", old)
        rest = [each for each in request.query.split("&") if not _is_field(each, rule.query)]
        whole = "&".join(filter(None, (query, *rest)))
        return _redirect(self._cache.address(cell) + quote(request.root) + path, whole)

    # The interfaces

    def wsgi(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """Return a WSGI application that leads requests, and calls `app` for those of this cell."""

        def routed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            answer = self._route_wsgi(environ)
            if answer is None:
                return app(environ, start_response)
            start_response(_REASONS[answer.status], answer.headers())
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [answer.body()]

        return routed

    def _route_wsgi(self, environ: dict[str, Any]) -> WebAnswer | None:
        try:
            # The interface has bytes as characters.
            root, path = (
                _text(environ.get(name, "").encode("latin-1")) for name in ("SCRIPT_NAME", "PATH_INFO")
            )
            form = b""
            if self._reads_form(path, environ.get("CONTENT_TYPE", "")):
                form = self._read_form(environ)
                environ["wsgi.input"] = BytesIO(form)  # for the application
        except _InvalidRequest as refused:
            return refused.answer
        query = quote(environ.get("QUERY_STRING", "").encode("latin-1"), _KEPT)
        return self.route(WebRequest(root, path, query, form, environ.get("HTTP_HOST", "")))

    def _read_form(self, environ: dict[str, Any]) -> bytes:
        given = environ.get("CONTENT_LENGTH") or ""
        if not given:  # a server that decodes chunks says that the input ends
            size = self._max_form_bytes + 1 if environ.get("wsgi.input_terminated") else 0
        elif given.isascii() and given.isdigit():
            size = int(given[:20])
            self._check_size(size)
        else:
            raise _InvalidRequest(400, "The length of the request is not valid.")
        form: bytes = environ["wsgi.input"].read(size)
        self._check_size(len(form))
        if given and len(form) < size:
            raise _InvalidRequest(400, "The request has ended too early.")
        return form

    def _check_size(self, size: int) -> None:
        if size > self._max_form_bytes:
            raise _InvalidRequest(413, f"The form exceeds {self._max_form_bytes:,} bytes.")

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
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        form = b""
        if self._reads_form(path, headers.get(b"content-type", "")):
            try:
                form, receive = await self._receive_form(receive)
            except _InvalidRequest as refused:
                return refused.answer, receive
        query = quote(scope["query_string"], _KEPT)
        request = WebRequest(root, path, query, form, headers.get(b"host", ""))
        return await asyncio.to_thread(self.route, request), receive  # the directory may have to be read

    async def _receive_form(self, receive: _Receive) -> tuple[bytes, _Receive]:
        """Return the body, and a function that gives it to the application again."""
        form, has_more = bytearray(), True  # bytes would be copied for each piece
        while has_more:
            message = await receive()
            if message["type"] != "http.request":
                raise _InvalidRequest(400, "The request has ended too early.")
            form += message.get("body", b"")
            self._check_size(len(form))
            has_more = message.get("more_body", False)
        whole = iter([{"type": "http.request", "body": bytes(form), "more_body": False}])

        async def again() -> dict[str, Any]:
            return next(whole, None) or await receive()

        return bytes(form), again


def _text(encoded: bytes) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise _InvalidRequest(400, "The path is not in UTF-8.") from None


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
