"""Who may use the dashboard: the token, sessions, host names, the origin of forms, and the headers of all answers.

Values are data, so every page needs the token. Its URL is exchanged for a cookie at once, so that the token stays in
neither the history of the browser nor in links. Sessions are signed cookies for 12 hours, or until their browser signs
out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qs

from itsdangerous import BadData, Signer, TimestampSigner
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cq import runtime
from cq.observers.telemetry.hosts import is_host

S = TypeVar("S", bound=Signer)

SESSION_SECONDS: Final = 12 * 3_600
"""The lifetime of a session."""
_NAME_BYTES: Final = 16


class _SessionSigner(TimestampSigner):
    """Signs a session's id with the time of its begin, by the clock of `cq.runtime`."""

    def get_timestamp(self) -> int:
        return int(runtime.time())


class Session(NamedTuple):
    """A session: its id, and its end in seconds since 1970."""

    id: str
    ends: float


class WebAccess:
    """Who may use a server: its token, its sessions, and the host names under which browsers may open it.

    The cookie has a random id, its time and a signature; the server stores only the ids that were signed out. So a
    server with the same token and port accepts a session after a restart, and no other server accepts it.

    Browsers send a cookie to all ports of a host. So its name depends on the token and the port, too: two servers on
    one host do not replace each other's cookies.

    Args:
        token: the secret of the server.
        port: at which it listens.
        hosts: names in addition to localhost, this machine's name, and all IP addresses.
        is_secure: whether browsers may send the cookie over https only.

    Attributes:
        cookie: the name of the cookie.
    """

    def __init__(
        self, token: str, port: int, hosts: frozenset[str] = frozenset(), *, is_secure: bool = False
    ) -> None:
        def signer(kind: type[S], purpose: str) -> S:
            salt = f"cq web {port} {purpose}"
            return kind(token, salt=salt, key_derivation="hmac", digest_method=hashlib.sha256)

        self._sessions, self._forms = signer(_SessionSigner, "session"), signer(Signer, "form")
        name = f"cq-web-{signer(Signer, 'cookie').get_signature('name').hex()[:12]}"
        # Browsers refuse a cookie with this prefix from another host, from a path, and without https.
        self.cookie = f"__Host-{name}" if is_secure else name
        self.hosts, self.is_secure = hosts, is_secure
        self._token = token.encode()
        self._ended: dict[str, float] = {}

    def is_token(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def begin(self) -> str:
        """A new session, as the value of the cookie."""
        return self._sessions.sign(secrets.token_hex(_NAME_BYTES)).decode()

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None unless this server signed it in the past 12 hours and it was not signed out."""
        try:
            # Without a maximum age: with one, a session that began before the clock was set back would be refused.
            name, begun = self._sessions.unsign(cookie.encode(errors="replace"), return_timestamp=True)
        except BadData:
            return None
        session = Session(name.decode(), begun.timestamp() + SESSION_SECONDS)
        return session if self.is_live(session) else None

    def is_live(self, session: Session) -> bool:
        """Whether a session has not ended."""
        return session.id not in self._ended and runtime.time() < session.ends

    def end(self, session: Session) -> None:
        """Sign a session out: its cookie is refused from now on, also in copies."""
        now = runtime.time()
        self._ended = {name: ends for name, ends in self._ended.items() if ends > now} | {
            session.id: session.ends
        }

    def form_token(self, session: Session) -> str:
        """The token that forms of a session send."""
        return self._forms.get_signature(session.id).decode()

    def is_form_token(self, session: Session, given: str) -> bool:
        """Whether a form has the token of its session, compared in constant time."""
        return self._forms.verify_signature(session.id, given.encode(errors="replace"))


# Requests


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
    # Without it, nginx keeps the events of streams back until it has some kilobytes of them.
    "X-Accel-Buffering": "no",
}
"""The headers of all answers, also of those about errors of the server."""


def is_own(headers: Headers) -> bool | None:
    """Whether a browser sent this request from a page of the server itself; None if neither header says so.

    It is None for the requests of programs, and for an address that a user has typed.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        # It counts alone: a proxy may have replaced the host name, but pages cannot set this header.
        return None if site == "none" else site == "same-origin"
    return None if origin is None else origin.partition("://")[2] == headers.get("host")


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
    session. `/static/` needs no session, and neither does the form of `/login`. A changelog needs a session, or the
    token as a header, and refuses pages of other sites.
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
            return _refusal(
                "this form comes from a page of another site, or a proxy has replaced the header Host", 403
            )
        if request.url.path.startswith("/static/") or is_sign_in(request):
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


def is_sign_in(request: Request) -> bool:
    """Whether this is the form with the token: `/login`, followed by the path of the page asked for."""
    return f"{request.url.path}/".startswith("/login/")


def asked_page(request: Request) -> str:
    """The page that the browser has asked for before it signs in, with its query but without the token.

    Only the path: the host of a redirection must not come from the request. Without a second slash at its beginning,
    with which browsers would read it as a host.
    """
    asked = request.url.remove_query_params("token")
    path = asked.path.removeprefix("/login") if is_sign_in(request) else asked.path
    return "/" + path.lstrip("/") + (f"?{asked.query}" if asked.query else "")


def signed_in(request: Request, access: WebAccess, token: str) -> Response | None:
    """A redirection to the page without the token, with a cookie; None for a wrong token."""
    if not access.is_token(token):
        return None
    answer = RedirectResponse(asked_page(request), 303)
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
