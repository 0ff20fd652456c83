"""The HTTP client of a webhook. Its URL and its secret come from the environment; cq never stores or shows them.

A request is signed by the scheme of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 of the message's
id, the time of the request and the body. So a receiver can refuse requests of other senders, changed requests, and old
requests that somebody repeats.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import socket
import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from errno import ETIMEDOUT
from hashlib import sha256
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from cq import runtime
from cq.distribution import version
from cq.observers.links.spec import read_variable
from cq.observers.links.target import LinkFailed

PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
log = logging.getLogger("cq.worker")
CONNECT_SECONDS: Final = 10.0
"""Maximum time to connect to one address of the receiver."""
REQUEST_SECONDS: Final = 30.0
"""Maximum time of a request as a whole, from the connection to the end of the answer, however the receiver sends it."""
ANSWER_BYTES: Final = 4_096
"""The part of an answer that cq reads: it has a position, or the reason of a refusal."""
_ERRORS: Final = (HTTPError, HTTPException, OSError)
"""The errors of a request whose receiver does not answer."""
_MAX_IDLE: Final = 8  # open connections that no thread uses


def read_secrets(env: str) -> list[bytes]:
    """Read the secrets in the environment variable `env`, or in the file that the variable `env` + `_FILE` names.

    Several secrets, separated by spaces or newlines, are for a change of the secret: each one signs every request.
    The file is read for each request, so a change needs no restart.

    Raises `LinkFailed`, without the secret, if there is none or one is malformed.
    """
    text, file = read_variable(env), read_variable(env, "_FILE")
    if not text and not file:
        raise LinkFailed(
            f"neither ${env} nor ${env}_FILE is set: give the secret of the webhook, or the path of a file with it"
        )
    if not text and file:
        try:
            text = Path(file).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            # Only the kind of the error: a variable with the secret in place of the path would be shown.
            raise LinkFailed(
                f"the file that ${env}_FILE names cannot be read: {type(error).__name__}"
            ) from None
    secrets = [_decoded(word) for word in (text or "").split()]
    if not secrets or None in secrets:
        raise LinkFailed(
            f"the secret in ${env} or its file is malformed: expected {PREFIX} and the base64 of 24 to 64 random bytes"
        )
    return [secret for secret in secrets if secret]


def _decoded(word: str) -> bytes | None:
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return secret if len(secret) in _SECRET_BYTES else None


def signed_headers(secrets: Sequence[bytes], message: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers of a request: its id, its time in seconds since 1970, and a signature with each secret."""
    signed = f"{message}.{seconds}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(secret, signed, sha256)).decode() for secret in secrets)
    return {
        "webhook-id": message,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


class Answer(NamedTuple):
    """The receiver's answer.

    Attributes:
        status: the HTTP status.
        text: the first `ANSWER_BYTES` bytes of the body as text.
        retry_seconds: the seconds until the next request that the header `Retry-After` asks for; 0.0 without one.
    """

    status: int
    text: str
    retry_seconds: float = 0.0


class _Deadline:
    """A context that ends the connection of a request at its deadline, so that no thread waits for it any longer.

    The timeout of a socket does not do that: it begins again with each byte that the receiver sends.

    Attributes:
        is_over: whether the deadline has passed.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = runtime.event()
        self._ending = threading.Lock()
        self._socket: Any = None
        self.is_over = False

    def __enter__(self) -> Self:
        runtime.start_thread(self._watch, "cq-webhook-deadline")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._ending:  # the next request may use the socket: it must not be ended from now on
            self._ended.set()

    def hold(self, connected: object) -> None:
        """End this socket at the deadline, or now if it has passed."""
        with self._ending:
            self._socket = connected
            if self.is_over:
                self._shut_down()

    def _watch(self) -> None:
        if not self._ended.wait(self._seconds):
            with self._ending:
                if not self._ended.is_set():
                    self.is_over = True
                    self._shut_down()

    def _shut_down(self) -> None:
        """Wake the thread that waits for the socket: its call fails, or finds the end of the data."""
        if self._socket is not None:
            with suppress(OSError):  # it has ended already
                # Not the method of a socket with TLS, which changes the object that the other thread uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class HttpReceiver:
    """The receiver at the URL in an environment variable; thread-safe. Keeps connections open.

    Redirects are not followed: the signature would reach another receiver. Certificates are verified. A request ends
    after `REQUEST_SECONDS`, even if the receiver goes on sending parts of an answer.

    Args:
        url_env: the environment variable with the URL.
        secret_env: the environment variable with the secret, see `read_secrets`.
    """

    def __init__(self, url_env: str, secret_env: str) -> None:
        self._url_env = url_env
        self._secret_env = secret_env
        self._taking = threading.Lock()
        self._idle: dict[str, list[HTTPConnection]] = defaultdict(list)  # by the URL: it can change
        weakref.finalize(self, _close_all, self._idle)

    def check(self) -> str:
        """Return the receiver's host, with a warning if requests to it are not encrypted.

        Raises `LinkFailed` if the URL or the secret is missing or malformed.
        """
        _, parts = self._located()
        read_secrets(self._secret_env)
        if parts.scheme == "http" and not _is_this_machine(parts.hostname or ""):
            warning = f"changes and answers are not encrypted on their way to {parts.netloc}: use https"
            log.warning("the URL in $%s begins with http://: %s", self._url_env, warning)
            return f"{parts.netloc} (http: {warning})"
        return parts.netloc

    def post(self, message: str, body: bytes) -> Answer:
        """Send a signed request with this id; raises `LinkFailed` if there is no answer."""
        url, parts = self._located()
        headers = signed_headers(read_secrets(self._secret_env), message, int(runtime.time()), body)
        headers |= {"content-type": "application/json", "user-agent": f"cq/{version()}"}
        connection = self._take(url, parts)
        try:
            answer = _request(connection, url, body, headers)
        except _ERRORS as error:
            connection.close()
            # Not chained, and only the kind of the error: its message may show the URL, which may have a token.
            raise LinkFailed(f"the receiver at {parts.netloc} does not answer: {_reason(error)}") from None
        except BaseException:
            connection.close()
            raise
        self._give_back(url, connection)
        return answer

    def close(self) -> None:
        """Close the connections."""
        with self._taking:
            _close_all(self._idle)

    def _located(self) -> tuple[str, SplitResult]:
        """The URL, and its parts."""
        url = read_variable(self._url_env)
        if not url:
            raise LinkFailed(f"${self._url_env} is not set: give the URL of the webhook there")
        parts = _split(url)
        if parts is None:
            # The message must not show the URL: it may have a token.
            raise LinkFailed(
                f"the URL in ${self._url_env} is malformed: expected http:// or https:// with a host, "
                "and without a user, a password or a fragment"
            )
        return url, parts

    def _take(self, url: str, parts: SplitResult) -> HTTPConnection:
        """A connection for one request, which may have been used before; it is not connected yet, or still open."""
        with self._taking:
            if self._idle[url]:
                return self._idle[url].pop()
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port)

    def _give_back(self, url: str, connection: HTTPConnection) -> None:
        with self._taking:
            if len(self._idle[url]) < _MAX_IDLE:
                self._idle[url].append(connection)
                return
        connection.close()


def _close_all(idle: dict[str, list[HTTPConnection]]) -> None:
    while idle:
        for connection in idle.popitem()[1]:
            connection.close()


def _request(connection: HTTPConnection, url: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send a request and read its answer; raises one of `_ERRORS` if there is none before the deadline."""
    with _Deadline(REQUEST_SECONDS) as deadline:
        try:
            if not connection.is_connected:
                connection.close()
                connection.timeout = CONNECT_SECONDS
                connection.connect()
            deadline.hold(connection.sock)
            connection.timeout = REQUEST_SECONDS
            connection.request(
                "POST", parse_url(url).request_uri, body=body, headers=headers, preload_content=False
            )
            response = connection.getresponse()
            text = response.read(ANSWER_BYTES).decode("utf-8", "replace")
        except Exception:
            if not deadline.is_over:
                raise
        if deadline.is_over:  # whatever the ended connection looked like to the code that used it
            raise TimeoutError(ETIMEDOUT, f"no complete answer within {REQUEST_SECONDS:g} s")
        with suppress(*_ERRORS):  # the answer is known; a rest that is too long ends the connection
            if response.read(1):
                connection.close()
    return Answer(response.status, text, retry_seconds(response.headers.get("retry-after", "")))


def retry_seconds(header: str) -> float:
    """The seconds that a header `Retry-After` asks to wait; 0.0 for a time in the past and for any other text.

    Its value is a number of seconds or a date of HTTP (RFC 9110, 10.2.3). A date is compared with this machine's clock.
    """
    if header.isascii() and header.isdecimal():
        return float(header)
    try:
        at = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return 0.0
    # Dates of HTTP are in UTC: one without a zone is, too.
    return max(0.0, at.replace(tzinfo=at.tzinfo or UTC).timestamp() - runtime.time())


def _split(url: str) -> SplitResult | None:
    """The parts of a URL that cq sends requests to; None for every other text."""
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    fits = parts.scheme in ("http", "https") and "@" not in parts.netloc and not parts.fragment
    return parts if fits and is_complete and url.isascii() and url.isprintable() and " " not in url else None


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    """The kinds of an error and of its causes; the text of an error of the system, which names no address."""
    names = []
    cause: BaseException | None = error
    while cause is not None:
        detail = cause.strerror if isinstance(cause, OSError) else None
        names.append(f"{type(cause).__name__}{f' ({detail})' if detail else ''}")
        cause = cause.__cause__ or cause.__context__
    return ", ".join(dict.fromkeys(names))
