"""A process that only runs a worker, as a service: notifications to systemd, and settings of the garbage collector."""

from __future__ import annotations

import gc
import os
import socket
import time
from typing import Final

SOCKET_ENV: Final = "NOTIFY_SOCKET"
_YOUNG: Final = 50_000
"""Allocations, minus deallocations, that start a collection of the youngest generation; Python's default is 700."""


class Notifier:
    """Notifies systemd that this process is ready, alive, and stopping; does nothing outside of systemd.

    Sends datagrams of `NAME=value`, as in sd_notify(3), for services of `Type=notify`.
    """

    def __init__(self) -> None:
        self._address = os.environ.get(SOCKET_ENV, "")
        self._is_ready = False
        # Half of systemd's watchdog limit, as sd_watchdog_enabled(3) recommends; 0 without a limit.
        self._every = int(os.environ.get("WATCHDOG_USEC", "0")) / 2_000_000
        self._latest = 0.0

    def alive(self) -> None:
        """Notify that the service is ready, the first time, then that it is alive. Call it in each turn of the loop."""
        now = time.monotonic()
        if not self._is_ready:
            self._is_ready = True
            self._send("READY=1")
        elif self._every and now - self._latest >= self._every:
            self._latest = now
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Notify that the service begins to stop."""
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
                return  # a lost notification must not stop a service that works


def tune_garbage_collection() -> None:
    """Make collections rare, and exempt all present objects; call it once all code is imported.

    A pass allocates a list for each of its keys and frees all of them at its end. By default the collector would
    traverse these lists, and all other objects of the process, several times in a pass, for up to a fifth of its time.
    Few objects are in cycles, so rare collections suffice.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
