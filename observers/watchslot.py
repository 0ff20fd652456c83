"""A place for one watch at a time, so that one that was cancelled or replaced sets nothing off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq.store.api import Void


class WatchSlot:
    """Calls back when the watch it holds fires or fails, and never for one that it held before."""

    def __init__(self) -> None:
        self._watch: Void | None = None

    def hold(self, watch: Void, then: Callable[[], object]) -> None:
        """Hold this watch, and call `then()` once it is ready, from whatever thread; the one before is cancelled."""
        before, self._watch = self._watch, watch
        if before is not None:
            before.cancel()
        watch.on_ready(lambda ready: self._ready(ready, then))

    def cancel(self) -> None:
        """Hold no watch."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _ready(self, watch: Any, then: Callable[[], object]) -> None:
        if watch is self._watch:  # a cancelled watch becomes ready, too
            then()
