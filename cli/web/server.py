"""The server of the dashboard: its socket, its connections, and its end on ^C while pages are open.

Every client that reaches the server may open connections, also without the token. uvicorn has no limit for a connection
with an incomplete request, and keeps it for ever. So there are limits of how many connections there are, and of how
long each may take for its request and its answer.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cq.cli.web.access import HEADERS, WebAccess
from cq.cli.web.app import make_app
from cq.cli.web.command import WebOptions
from cq.errors import InvalidConfiguration
from cq.observers.telemetry.hosts import hosts_of
from cq.observers.telemetry.metrics import Address
from cq.store import OpenDatabase

_END_SECONDS = 3
_BACKLOG = 16


class Server:
    """A server that listens from the constructor on.

    Args:
        db: a database of either store.
        address: to listen at; port 0 is a free port.
        token: of all pages.
        options: of the command.

    Attributes:
        url: its address, without a path.
        dashboard: its pages and streams.
    """

    def __init__(self, db: OpenDatabase, address: Address, token: str, options: WebOptions) -> None:
        self._socket = _listening(address)
        port = self._socket.getsockname()[1]
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"http://{host}:{port}"
        hosts = hosts_of([*(options.host or ()), address.host])
        access = WebAccess(token, port, hosts, is_secure=options.secure_cookie)
        app, self.dashboard = make_app(db, access, options)
        # Without an access log: addresses have keys and, once, the token.
        config = uvicorn.Config(
            app,
            # One loop on all machines, also with uvloop installed.
            loop="asyncio",
            http=LimitedProtocol,
            # Maximum number of connections that one step of the loop accepts. A connection beyond the limit is closed
            # four steps later, so four times this number of descriptors are in use besides those of the limit.
            backlog=_BACKLOG,
            # Without warnings: anybody who reaches the server could fill the log with invalid requests.
            log_level="error",
            # Its records go to the command's log, in the format of that.
            log_config=None,
            access_log=False,
            server_header=False,
            headers=list(HEADERS.items()),
            ws="none",
            timeout_graceful_shutdown=_END_SECONDS,
        )
        self._server = _StoppedByCommand(config, self.dashboard.stop)

    def run(self) -> None:
        """Serve until `stop`."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End the server; for any thread."""
        self._server.should_exit = True


class _StoppedByCommand(uvicorn.Server):
    """A server that ends its streams first: uvicorn waits for all open connections."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], object]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command, which handles them as `cq worker` does."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the server."""
        self._end_streams()
        await super().shutdown(sockets)


def _listening(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise InvalidConfiguration(
            f"cannot listen at {address.host}:{address.port} ({error.strerror}): choose another port with --listen"
        ) from error


# Connections

MAX_CONNECTIONS: Final = 1_000
REQUEST_SECONDS = 10.0
"""How long a connection may take for a whole request, with its body."""
STALL_SECONDS = 30.0
"""How long a client may leave an answer unread."""


def max_connections() -> int:
    """The number of connections a server has at once: half of the descriptors of its process, at most 1,000."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors < 0 else min(MAX_CONNECTIONS, max(1, descriptors // 2))


class LimitedProtocol(H11Protocol):
    """A connection with limits.

    At the limit of connections, a new one replaces the one that has waited longest for a request. So connections
    without requests never keep out a browser, which sends its request at once. Connections whose requests are under
    way, such as streams, are never replaced; if there are only such, the new one is closed.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > max_connections():
            waiting = [
                each
                for each in self.connections
                if isinstance(each, LimitedProtocol) and each.waits_until and not each.transport.is_closing()
            ]
            min(waiting, key=lambda each: each.waits_until or 0.0).transport.abort()

    @property
    def waits_until(self) -> float | None:
        """The time of the event loop at which this connection is closed without a whole request; None with one."""
        return None if self._deadline is None else self._deadline.when()

    def handle_events(self) -> None:
        """Handle received bytes."""
        super().handle_events()
        if self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            self._end_wait()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to take the end of the last answer."""
        if self.transport.is_closing():
            self._begin_stall()
        else:
            self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not take what was written."""
        super().pause_writing()
        self._begin_stall()

    def resume_writing(self) -> None:
        """The client has taken most of what was written."""
        super().resume_writing()
        self._end_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the limits."""
        self._end_wait()
        self._end_stall()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._end_wait()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _begin_stall(self) -> None:
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
