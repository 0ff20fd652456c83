"""A queue that is as slow, and fails as often, as a test of emitters asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cq
from cq.store.embedded import FDBError


class Gate(cq.CombineQueue):
    """A queue whose adds wait until the gate is open, and fail as long as there is a failure.

    Attributes:
        failure: makes what adds raise; None to add.
        sizes: the approximate sizes of transactions after each add.
        operations: the operation id of each add.
    """

    def __init__(self, name: str, **given: Any) -> None:
        super().__init__(name, **given)
        self.failure: Callable[[], Exception] | None = None
        self.sizes: list[int] = []
        self.operations: list[Any] = []
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
        self.operations.append(once)
        if self.failure is not None:
            raise self.failure()
        super().add(tr, updates, once)
        self.sizes.append(tr.get_approximate_size().wait())


class LostAnswers:
    """A database whose commits happen, but the next `left` of them end with this error."""

    def __init__(self, db: Any, code: int) -> None:
        self.db = db
        self.code = code
        self.left = 0

    @property
    def options(self) -> Any:
        return self.db.options

    def create_transaction(self) -> Any:
        return _LostAnswer(self, self.db.create_transaction())


class _LostAnswer:
    def __init__(self, owner: LostAnswers, tr: Any) -> None:
        self._owner = owner
        self._tr = tr

    def __getattr__(self, what: str) -> Any:
        return getattr(self._tr, what)

    def commit(self) -> Any:
        committed = self._tr.commit()
        if self._owner.left:
            self._owner.left -= 1
            committed.wait()
            raise FDBError(self._owner.code)
        return committed
