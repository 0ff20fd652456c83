"""Telling systemd how a service is (`Type=notify`), by the protocol of sd_notify(3): a datagram of `NAME=value`."""

from __future__ import annotations

import os
import socket
import time
from typing import Final

SOCKET_ENV: Final = "NOTIFY_SOCKET"


class Notifier:
    """Tells systemd that this process is ready, lives, and stops; does nothing where systemd has not asked for it."""

    def __init__(self) -> None:
        self._address = os.environ.get(SOCKET_ENV, "")
        self._is_ready = False
        # Half as often as systemd expects it at the latest; 0 when it does not.
        self._every = int(os.environ.get("WATCHDOG_USEC", "0")) / 2_000_000
        self._latest = 0.0

    def alive(self) -> None:
        """The service works; the first time, that it is ready. To be called in each turn of its loop."""
        now = time.monotonic()
        if not self._is_ready:
            self._is_ready = True
            self._send("READY=1")
        elif self._every and now - self._latest >= self._every:
            self._latest = now
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The service begins to stop."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            try:
                to.connect(address)
                to.send(state.encode())
            except OSError:
                return  # nobody listens any more: a service that works goes on
