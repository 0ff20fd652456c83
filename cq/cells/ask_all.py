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

    Raises:
        FDBError: `names` is None, and the directory cannot be read.
    """
    cell_names = [each.name for each in cells.cells()] if names is None else list(dict.fromkeys(names))
    until = runtime.monotonic() + seconds
    changed = runtime.condition()
    found = CellAnswers[T]({}, {})

    def in_time(tr: Transaction) -> T:
        # Each try gets the rest of the time, or a cell that never answers would keep its thread for ever.
        tr.options.set_timeout(max(1, int(1000 * (until - runtime.monotonic()))))
        return ask(tr)

    def read(name: str) -> None:
        try:
            answer = transact(cells.store(name), in_time)
        except Exception as error:  # noqa: BLE001 - an error of one cell must not affect the others
            with changed:
                found.missing[name] = describe(error)
                changed.notify_all()
        else:
            with changed:
                found.answers[name] = answer
                changed.notify_all()

    for name in cell_names:
        runtime.start_thread(partial(read, name), f"question to cell {name}")
    with changed:
        changed.wait_for(lambda: len(found.answers) + len(found.missing) == len(cell_names), seconds)
        late = {name: f"no answer within {seconds:g} s" for name in cell_names if name not in found.answers}
        return CellAnswers(dict(found.answers), late | found.missing)  # copies: late threads still write
