"""Connections of the dashboard: how many there are, and how long each may take for its request and its answer.

Every client that reaches the server may open connections, also without the token. uvicorn has no limit for a connection
with an incomplete request, and keeps it for ever.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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
