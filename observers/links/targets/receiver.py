"""The HTTP client of a webhook. Its URL and its secret come from the environment; cq never stores or shows them.

A request is signed by the scheme of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 of the message's
id, the time of the request and the body. So a receiver can refuse requests of other senders, changed requests, and old
requests that somebody repeats.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import logging
import socket
from collections.abc import Sequence
from hashlib import sha256
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, Retry, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, InvalidHeader

from cq import runtime
from cq.distribution import version
from cq.observers.links.spec import read_variable
from cq.observers.links.target import LinkFailed

PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
log = logging.getLogger("cq.worker")
CONNECT_SECONDS: Final = 10.0
"""Maximum time to connect to one address of the receiver."""
ANSWER_SECONDS: Final = 30.0
"""Maximum time from a request to the end of its answer, however the receiver sends it."""
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


class _TimedReader(io.RawIOBase):
    """The bytes of one answer, until its deadline: the timeout of a socket begins again with each byte."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._file = connected.makefile("rb", buffering=0)
        self._until = runtime.monotonic() + ANSWER_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - runtime.monotonic()
        if left <= 0.0:
            raise TimeoutError
        self._socket.settimeout(left)
        try:
            return self._file.readinto(buffer)
        finally:
            self._socket.settimeout(ANSWER_SECONDS)  # the next request uses it, too

    def close(self) -> None:
        self._file.close()
        super().close()


class BadHeaders(HTTPException):
    """Headers that are malformed, or end before their end."""


class _TimedResponse(HTTPResponse):
    """An answer whose status, headers and body end at one deadline."""

    def __init__(self, connected: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(connected, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedReader(connected))

    def begin(self) -> None:
        super().begin()
        # urllib3 would go on, and write the URL into the log, which may have a token.
        if self.headers.defects:
            raise BadHeaders


class _Connection(HTTPConnection):
    response_class = _TimedResponse


class _SecureConnection(HTTPSConnection):
    response_class = _TimedResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class HttpReceiver:
    """The receiver at the URL in an environment variable; thread-safe. Keeps connections open.

    Redirects are not followed: the signature would reach another receiver. Certificates are verified. An answer ends
    after `ANSWER_SECONDS`, even if the receiver goes on sending parts of it.

    Args:
        url_env: the environment variable with the URL.
        secret_env: the environment variable with the secret, see `read_secrets`.
    """

    def __init__(self, url_env: str, secret_env: str) -> None:
        self._url_env = url_env
        self._secret_env = secret_env
        self._pool = PoolManager(
            maxsize=_MAX_IDLE, timeout=Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS), retries=False
        )
        self._pool.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

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
        try:
            response = self._pool.request(
                "POST", url, body=body, headers=headers, redirect=False, preload_content=False
            )
            text = response.read(ANSWER_BYTES).decode("utf-8", "replace")
            if response.read(1):  # else the connection is free for the next request
                response.close()
        except _ERRORS as error:
            # Not chained, and only the kind of the error: its message may show the URL, which may have a token.
            raise LinkFailed(f"the receiver at {parts.netloc} does not answer: {_reason(error)}") from None
        return Answer(response.status, text, retry_seconds(response.headers.get("retry-after", "")))

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

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


def retry_seconds(header: str) -> float:
    """The seconds that a header `Retry-After` asks to wait; 0.0 for a time in the past and for any other text.

    Its value is a number of seconds or a date of HTTP (RFC 9110, 10.2.3). A date is compared with this machine's clock.
    """
    try:
        return Retry().parse_retry_after(header)
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0


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
