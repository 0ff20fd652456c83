"""A queue that is as slow, and fails as often, as a test of emitters asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cq


class Gate(cq.CombineQueue):
    """A queue whose adds wait until the gate is open, and fail as long as there is a failure.

    Attributes:
        failure: makes what adds raise; None to add.
        sizes: the approximate sizes of transactions after each add.
    """

    def __init__(self, name: str, **given: Any) -> None:
        super().__init__(name, **given)
        self.failure: Callable[[], Exception] | None = None
        self.sizes: list[int] = []
        self.reached = threading.Event()
        self._is_open = threading.Event()
        self._is_open.set()

    def close(self) -> None:
        self.reached.clear()
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def add(self, tr: Any, updates: Any, once: str | bytes | None = None) -> None:
        self.reached.set()
        self._is_open.wait()
        if self.failure is not None:
            raise self.failure()
        super().add(tr, updates, once)
        self.sizes.append(tr.get_approximate_size().wait())
