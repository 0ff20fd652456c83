"""A queue that is as slow, and fails as often, as a test of emitters asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cq
from cq.store.api import error_code
from cq.store.embedded import FDBError

UNKNOWN = 1021


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


class LostAnswers:
    """A database whose next `left` commits end with this error.

    Args:
        is_made: whether these commits happen.

    Attributes:
        on_loss: called before the error is raised.
    """

    def __init__(self, db: Any, code: int, *, is_made: bool = True) -> None:
        self.db = db
        self.code = code
        self.is_made = is_made
        self.left = 0
        self.on_loss: Callable[[], object] = lambda: None

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
        if not self._owner.left:
            return self._tr.commit()
        self._owner.left -= 1
        if self._owner.is_made:
            self._tr.commit().wait()
        self._owner.on_loss()
        raise FDBError(self._owner.code)


class LateCommit:
    """A database whose first commit ends with 1021 and is made only when the next one is: before that, or after.

    Attributes:
        code: of the error that the late commit ends with; 0 if it was made.
    """

    def __init__(self, db: Any, *, is_first: bool) -> None:
        self.db = db
        self.code: int | None = None
        self._is_first = is_first
        self._late: Any = None

    @property
    def is_under_way(self) -> bool:
        """Whether the first commit has ended with its error, and is not made."""
        return self._late is not None and self.code is None

    def create_transaction(self) -> Any:
        return _OneOfTwo(self)

    def commit(self, tr: Any) -> Any:
        if self._late is None and tr.get_approximate_size().wait():
            self._late = tr
            raise FDBError(UNKNOWN)
        if self._late is None or self.code is not None:
            return tr.commit()
        if self._is_first:
            self.land()
        committed = tr.commit()
        if not self._is_first:
            committed.wait()
            self.land()
        return committed

    def land(self) -> None:
        """Make the late commit."""
        self.code = 0
        try:
            self._late.commit().wait()
        except Exception as error:  # of either store
            self.code = error_code(error)
            if self.code is None:
                raise


class _OneOfTwo:
    """A transaction that is another one from the next try on, as that of the last may be under way."""

    def __init__(self, owner: LateCommit) -> None:
        self._owner = owner
        self._tr = owner.db.create_transaction()

    def __getattr__(self, what: str) -> Any:
        return getattr(self._tr, what)

    def commit(self) -> Any:
        return self._owner.commit(self._tr)

    def on_error(self, code: int) -> Any:
        self._tr = self._owner.db.create_transaction()
        return self._tr.on_error(code)
