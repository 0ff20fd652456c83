"""One read of many cells at once: the answers within a time limit, and the names of the cells without one."""

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
    """The result of `gather`.

    Attributes:
        answers: {cell: answer}, of the cells that answered in time.
        missing: {cell: error}, of all others.
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
    """Run `ask(tr)` in all cells at once, and return the answers within `seconds`; a cell's error is not raised.

    Args:
        cells: the cells.
        ask: runs in a transaction of each cell, with retries, in a thread for each cell.
        names: names of the cells; None: all.
        seconds: time limit, also of each transaction. A thread may live a little longer, until its call of the store
            returns.

    Raises the store's `FDBError` if the directory cannot be read for the names.
    """
    cell_names = [each.name for each in cells.cells()] if names is None else list(dict.fromkeys(names))
    question = _Question(cells, ask, runtime.monotonic() + seconds)
    for name in cell_names:
        runtime.start_thread(partial(question.read, name), f"question to cell {name}")
    return question.wait(cell_names, seconds)


class _Question(Generic[T]):
    """One call of `gather`: the function to run, and the answers so far."""

    def __init__(self, cells: Cells, ask: Callable[[Transaction], T], until: float) -> None:
        self._cells, self._ask, self._until = cells, ask, until
        self._changed = runtime.condition()
        self._answers: dict[str, T] = {}
        self._errors: dict[str, str] = {}

    def read(self, name: str) -> None:
        """Read one cell; runs in a thread of its own."""
        try:
            answer = transact(self._cells.store(name), self._in_time)
        except Exception as error:  # noqa: BLE001 - an error of one cell must not affect the others
            with self._changed:
                self._errors[name] = describe(error)
                self._changed.notify_all()
        else:
            with self._changed:
                self._answers[name] = answer
                self._changed.notify_all()

    def wait(self, names: Sequence[str], seconds: float) -> CellAnswers[T]:
        """Wait for the answers of these cells, at most `seconds`, and return them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._answers) + len(self._errors) == len(names), seconds)
            missing = {
                name: self._errors.get(name, f"no answer within {seconds:g} s")
                for name in names
                if name not in self._answers
            }
            return CellAnswers(dict(self._answers), missing)

    def _in_time(self, tr: Transaction) -> T:
        # Each try gets the rest of the time, or a cell that never answers would keep its thread for ever.
        tr.options.set_timeout(max(1, int(1000 * (self._until - runtime.monotonic()))))
        return self._ask(tr)
