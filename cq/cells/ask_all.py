"""One question to many cells at once: answers in time, and the names of the cells that have given none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from cq import runtime
from cq.cells.cells import Cells
from cq.plain_text import describe
from cq.store.api import Transaction
from cq.store.transact import transact

T = TypeVar("T")


@dataclass(frozen=True)
class CellAnswers(Generic[T]):
    """What came of a question.

    Attributes:
        answers: {cell: answer}, of those that have answered in time.
        missing: {cell: why there is no answer}, of all others.
    """

    answers: dict[str, T]
    missing: dict[str, str]


def gather(
    cells: Cells,
    ask: Callable[[Transaction], T],
    *,
    names: Sequence[str] | None = None,
    seconds: float = 5.0,
) -> CellAnswers[T]:
    """Ask cells a question, all at once, and return what they have answered in time; never raises for a cell.

    Args:
        cells: see there.
        ask: `ask(tr)` is run in a transaction of each cell, as often as that needs, in a thread for each.
        names: of the cells; None for all.
        seconds: how long to wait. Who has not answered by then gets on no further, but its thread may live a little
            longer, until the store lets go of it.

    Raises the store's `FDBError` when the directory cannot be read to find all names.
    """
    asked = [each.name for each in cells.cells()] if names is None else list(dict.fromkeys(names))
    question = _Question(cells, ask, runtime.monotonic() + seconds)
    for name in asked:
        runtime.start_thread(partial(question.put, name), f"question to cell {name}")
    return question.answered(asked, seconds)


class _Question(Generic[T]):
    """A question, and what the cells' threads have answered so far."""

    def __init__(self, cells: Cells, ask: Callable[[Transaction], T], until: float) -> None:
        self._cells, self._ask, self._until = cells, ask, until
        self._changed = runtime.condition()
        self._answers: dict[str, T] = {}
        self._errors: dict[str, str] = {}

    def put(self, name: str) -> None:
        """Ask a cell, in a thread of its own."""
        try:
            answer = transact(self._cells.store(name), self._in_time)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other cells answer
            with self._changed:
                self._errors[name] = describe(error)
                self._changed.notify_all()
        else:
            with self._changed:
                self._answers[name] = answer
                self._changed.notify_all()

    def answered(self, names: Sequence[str], seconds: float) -> CellAnswers[T]:
        """What these cells have answered, once it is all or so many seconds are over."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._answers) + len(self._errors) == len(names), seconds)
            missing = {
                name: self._errors.get(name, f"no answer within {seconds:g} s")
                for name in names
                if name not in self._answers
            }
            return CellAnswers(dict(self._answers), missing)

    def _in_time(self, tr: Transaction) -> T:
        tr.options.set_timeout(max(1, int(1000 * (self._until - runtime.monotonic()))))
        return self._ask(tr)
