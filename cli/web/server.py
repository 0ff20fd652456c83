"""The server of the dashboard: its socket, and its end on ^C while pages are open."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from cq.cli.web.access import HEADERS
from cq.cli.web.app import make_app
from cq.cli.web.command import WebOptions
from cq.cli.web.connections import LimitedProtocol
from cq.cli.web.sessions import WebAccess
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
