"""A holder of one watch, which ignores cancelled and replaced watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq.store.api import Void


class WatchSlot:
    """Calls back when its current watch fires or fails, and never for an earlier watch."""

    def __init__(self) -> None:
        self._watch: Void | None = None

    @property
    def is_free(self) -> bool:
        """Whether it holds no watch that can still fire."""
        return self._watch is None

    def hold(self, watch: Void, fired: Callable[[], object], failed: Callable[[], object]) -> None:
        """Hold this watch, and call `fired()` or `failed()` once it is ready, in any thread.

        Cancels the watch held before.
        """
        before, self._watch = self._watch, watch
        if before is not None:
            before.cancel()
        watch.on_ready(lambda ready: self._ready(ready, fired, failed))

    def cancel(self) -> None:
        """Cancel the current watch."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _ready(self, watch: Any, fired: Callable[[], object], failed: Callable[[], object]) -> None:
        if self._watch is None or watch is not self._watch:  # it was cancelled, which makes it ready as well
            return
        self._watch = None
        try:
            watch.wait()
        except Exception:  # noqa: BLE001 - after any error, it will not fire
            failed()
        else:
            fired()
