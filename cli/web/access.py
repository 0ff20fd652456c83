"""Who may use the dashboard: the token, sessions, host names, the origin of forms, and the headers of all answers.

Values are data, so every page needs the token. Its URL is exchanged for a cookie at once, so that the token stays in
neither the history of the browser nor in links.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cq.cli.web.sessions import SESSION_SECONDS, Session, WebAccess
from cq.observers.telemetry.hosts import is_host

MAX_BODY_BYTES: Final = 64_000
_MAX_FIELDS: Final = 100
CHANGELOG: Final = "/changelog/"
"""The path of changelogs, before the name of a queue."""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of all answers, also of those about errors of the server."""


def is_own(headers: Headers) -> bool | None:
    """Whether a browser sent this request from a page of the server itself; None if neither header says so.

    It is None for the requests of programs, and for an address that somebody has typed.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return False
    if site in (None, "none"):
        return None if origin is None or site else True
    return site == "same-origin"


async def form_of(request: Request) -> dict[str, str] | None:
    """The fields of a form, each with its last value; None if it has more than 64 kB or 100 fields."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        return None
    return {name: values[-1] for name, values in fields.items()}


class Guard:
    """Middleware: refuses other hosts, requests without a session and foreign forms.

    It sets `request.state.session` and `request.state.is_live`, a function by which streams notice the end of the
    session. `/static/` needs no session, and neither does `/login`. A changelog needs a session, or the token as a
    header, and refuses pages of other sites.
    """

    def __init__(self, app: ASGIApp, access: WebAccess, sign_in: ASGIApp) -> None:
        self._app, self._access, self._sign_in = app, access, sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._answer(Request(scope, receive))
        await (answer or self._app)(scope, receive, send)

    def _answer(self, request: Request) -> ASGIApp | None:
        """The answer to a request that the pages must not see; None for the others."""
        headers, access = request.headers, self._access
        if not is_host(headers.get("host", ""), access.hosts):
            return _refusal(
                "this server does not answer under that host name; `cq web --host NAME` adds one", 421
            )
        if request.method == "POST" and not is_own(headers):
            return _refusal("this form comes from a page of another site", 403)
        if request.url.path.startswith("/static/") or request.url.path == "/login":
            return None
        if request.url.path.startswith(CHANGELOG):
            return self._answer_to_program(request)
        token = request.query_params.get("token")
        if token is not None and request.method == "GET":
            return signed_in(request, access, token) or self._sign_in
        session = access.find(request.cookies.get(access.cookie, ""))
        if session is None:
            return self._sign_in
        _remember(request, access, session)
        return None

    def _answer_to_program(self, request: Request) -> ASGIApp | None:
        """The refusal of a request for a changelog; None if it has the token or a session."""
        if is_own(request.headers) is False:
            return _refusal("pages of other sites cannot read a changelog", 403)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._access.is_token(token.strip()):
            request.state.is_live = lambda: True
            return None
        session = self._access.find(request.cookies.get(self._access.cookie, ""))
        if session is not None:
            _remember(request, self._access, session)
            return None
        return _refusal("send the token of this server in the header `Authorization: Bearer TOKEN`", 401)


def _remember(request: Request, access: WebAccess, session: Session) -> None:
    request.state.session = session
    request.state.is_live = partial(access.is_live, session)


def signed_in(request: Request, access: WebAccess, token: str) -> Response | None:
    """A redirection to the page without the token, with a cookie; None for a wrong token."""
    if not access.is_token(token):
        return None
    rest = request.url.remove_query_params("token")
    path = "/" if rest.path == "/login" else rest.path
    # Only the path: the host of a redirection must not come from the request. Without a second slash at its beginning,
    # with which browsers would read it as a host.
    answer = RedirectResponse("/" + path.lstrip("/") + (f"?{rest.query}" if rest.query else ""), 303)
    answer.set_cookie(
        access.cookie,
        access.begin(),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=access.is_secure,
    )
    return answer


async def signed_out(request: Request, access: WebAccess) -> Response:
    """End the session of a form with its token: a redirection to the sign-in page, without the cookie."""
    fields = await form_of(request) or {}
    if not access.is_form_token(request.state.session, fields.get("form_token", "")):
        return _refusal("this form is outdated: open the page again", 403)
    access.end(request.state.session)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(access.cookie, httponly=True, samesite="strict", secure=access.is_secure)
    return answer


def _refusal(text: str, status: int) -> Response:
    return PlainTextResponse(text, status)
