"""The HTTP client of a webhook. Its URL and its secret come from the environment; cq never stores or shows them."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

from cq import runtime
from cq.distribution import install_command, version
from cq.observers.export.batch import ExportFailed
from cq.observers.webhook.signing import read_secrets, signed_headers

if TYPE_CHECKING:
    import urllib3

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 30.0
"""Maximum time until the receiver's answer begins, and between two parts of it."""
ANSWER_BYTES: Final = 4_096
"""The part of an answer that cq reads: it has a position, or the reason of a refusal."""
_CONNECTIONS: Final = 8


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


class Receiver(Protocol):
    """The receiver of a webhook."""

    def check(self) -> str:
        """Return the receiver's host; raises `ExportFailed` if the URL or the secret is missing or malformed."""

    def post(self, message: str, body: bytes) -> Answer:
        """Send a signed request with this id; raises `ExportFailed` if there is no answer."""

    def close(self) -> None:
        """Close the connections."""


class HttpReceiver:
    """The receiver at the URL in an environment variable; thread-safe. Keeps connections open.

    Redirects are not followed: the signature would reach another receiver. Certificates are verified.

    Args:
        url_env: the environment variable with the URL.
        secret_env: the environment variable with the secret, see `read_secrets`.
    """

    def __init__(self, url_env: str, secret_env: str) -> None:
        self._url_env = url_env
        self._secret_env = secret_env
        self._opening = threading.Lock()
        self._pool: urllib3.PoolManager | None = None

    def check(self) -> str:
        host = self._located()[1]
        read_secrets(self._secret_env)
        self._opened()
        return host

    def post(self, message: str, body: bytes) -> Answer:
        from urllib3.exceptions import HTTPError

        url, host = self._located()
        headers = signed_headers(read_secrets(self._secret_env), message, int(runtime.time()), body)
        headers |= {"content-type": "application/json", "user-agent": f"cq/{version()}"}
        try:
            response = self._opened().request(
                "POST", url, body=body, headers=headers, redirect=False, retries=False, preload_content=False
            )
            try:
                text = response.read(ANSWER_BYTES).decode("utf-8", "replace")
                with suppress(
                    HTTPError, OSError
                ):  # the answer is known; a rest that is too long ends the connection
                    if response.read(1):
                        response.close()
            finally:
                response.release_conn()
        except (HTTPError, OSError) as error:
            # Not chained, and only the kind of the error: its message may show the URL, which may have a token.
            raise ExportFailed(f"the receiver at {host} does not answer: {_reason(error)}") from None
        return Answer(response.status, text, retry_seconds(response.headers.get("retry-after", "")))

    def close(self) -> None:
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _located(self) -> tuple[str, str]:
        """The URL, and its host and port for messages."""
        url = os.environ.get(self._url_env)
        if not url:
            raise ExportFailed(f"${self._url_env} is not set: give the URL of the webhook there")
        parts = _split(url)
        if parts is None:
            # The message must not show the URL: it may have a token.
            raise ExportFailed(
                f"the URL in ${self._url_env} is malformed: expected http:// or https:// with a host, "
                "and without a user, a password or a fragment"
            )
        return url, parts.netloc

    def _opened(self) -> urllib3.PoolManager:
        try:
            import urllib3
        except ImportError as error:
            raise ExportFailed(
                f"webhooks need a package that is not installed: run `{install_command('webhook')}`"
            ) from error
        with self._opening:
            if self._pool is None:
                timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
                self._pool = urllib3.PoolManager(maxsize=_CONNECTIONS, timeout=timeout)
            return self._pool


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


def _reason(error: Exception) -> str:
    """The kinds of an error and of its causes; the text of an error of the system, which names no address."""
    names = []
    cause: BaseException | None = error
    while cause is not None:
        detail = cause.strerror if isinstance(cause, OSError) else None
        names.append(f"{type(cause).__name__}{f' ({detail})' if detail else ''}")
        cause = cause.__cause__ or cause.__context__
    return ", ".join(dict.fromkeys(names))
