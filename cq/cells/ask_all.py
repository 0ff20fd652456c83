"""One read of many cells at once: the answers within a time limit, and the names of the cells without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, Generic, NamedTuple, TypeVar

from cq import runtime
from cq.backoff import delay_after
from cq.cells.cells import FIRST_PAUSE, LAST_PAUSE, Cells, Location
from cq.cells.directory import deleted_error
from cq.cells.records import DELETED, HERE, Fence
from cq.cells.user_data import UserData
from cq.durations import Span, span_of, timeout_of
from cq.errors import CorruptData, CqError, UserDeleted
from cq.keys import cell as keys
from cq.plain_text import describe
from cq.store import read_earlier
from cq.store.api import Transaction
from cq.store.transact import transact

T = TypeVar("T")

_MAX_MILLISECONDS: Final = (1 << 31) - 1  # the longest timeout of a transaction, about 24 days


class _TimeLimit(NamedTuple):
    """The time limit of all reads of a call, in seconds; they end at the moment `until`."""

    seconds: float
    until: float

    @classmethod
    def of(cls, timeout: Span) -> _TimeLimit:
        seconds = span_of(timeout)
        return cls(seconds, runtime.monotonic() + seconds)

    def left(self) -> float:
        return max(0.0, self.until - runtime.monotonic())


@dataclass(frozen=True)
class GatheredAnswers(Generic[T]):
    """The result of `gather`, by cells, and of `gather_users`, by users.

    Attributes:
        answers: {cell or user: answer}, of those that were found, and answered in time.
        missing: {cell or user: error}, of all others.
    """

    answers: dict[Any, T]
    missing: dict[Any, str]


def gather(
    cells: Cells,
    ask: Callable[[Transaction], T],
    *,
    names: Sequence[str] | None = None,
    timeout: Span = 5.0,
    max_age: Span | None = None,
) -> GatheredAnswers[T]:
    """Run `ask(tr)` in all cells at once, and return the answers within `timeout`; a cell's error is not raised.

    Args:
        cells: the cells.
        ask: runs in a transaction of each cell, with retries, in a thread for each cell.
        names: names of the cells; None: all.
        timeout: time limit, also of each transaction. A thread may live a little longer, until its call of the store
            returns.
        max_age: if `ask` only reads and need not read the present: see `cq.store.read_earlier`.

    Raises:
        FDBError: `names` is None, and the directory cannot be read.
    """
    cell_names = [each.name for each in cells.cells()] if names is None else names
    return _gather(cells, dict.fromkeys(cell_names, ask), _TimeLimit.of(timeout), timeout_of(max_age))


def gather_users(
    cells: Cells,
    users: Iterable[Any],
    ask: Callable[[UserData], T],
    *,
    timeout: Span = 5.0,
    max_age: Span | None = None,
) -> GatheredAnswers[T]:
    """Run `ask(data)`, which only reads, for many users: all their cells at once, in one transaction of each cell.

    Users who have moved meanwhile are asked for again in their new cells.

    Args:
        cells: the cells.
        users: the users.
        ask: a function of a user's data; a write raises `TypeError`.
        timeout: time limit.
        max_age: if it need not read the present: see `cq.store.read_earlier`.

    Raises:
        InvalidData: something cannot be a user.
        FDBError: the directory cannot be read.
    """
    limit = _TimeLimit.of(timeout)
    found = GatheredAnswers[T]({}, {})
    left = list(dict.fromkeys(users))  # the directory is read once for all of them
    for tries in count(1):
        plan: dict[str, list[tuple[Any, Location]]] = {}
        for user, location in cells.locate_all(left).items():
            if isinstance(location, CqError):
                found.missing[user] = describe(location)
            else:
                plan.setdefault(location.cell, []).append((user, location))
        left = _ask_cells(cells, plan, ask, found, limit, timeout_of(max_age) or 0.0)
        if not left:
            break
        cells.forget(left)
        pause = delay_after(tries, first=FIRST_PAUSE, longest=LAST_PAUSE)
        if pause >= limit.left():
            what = f"no answer within {limit.seconds:g} s: the user is being moved, or a store was restored"
            found.missing.update(dict.fromkeys(left, what))
            break
        runtime.sleep(pause)
    return found


def _ask_cells(
    cells: Cells,
    plan: Mapping[str, Sequence[tuple[Any, Location]]],
    ask: Callable[[UserData], T],
    found: GatheredAnswers[T],
    limit: _TimeLimit,
    max_age: float,
) -> list[Any]:
    """Ask the cells of users once, and add what they answer; returns the users who were not there."""
    asks = {name: partial(_ask_users, cells=cells, ask=ask, of=of) for name, of in plan.items()}
    got = _gather(cells, asks, limit, max_age)
    left = []
    for name, of in plan.items():
        for user, _ in of:
            if name in got.missing:
                found.missing[user] = got.missing[name]
            elif user not in got.answers[name]:
                left.append(user)
            elif isinstance(answer := got.answers[name][user], UserDeleted | CorruptData):
                found.missing[user] = describe(answer)
            else:
                found.answers[user] = answer
    return left


def _ask_users(
    tr: Transaction, cells: Cells, ask: Callable[[UserData], T], of: Sequence[tuple[Any, Location]]
) -> dict[Any, T | UserDeleted | CorruptData]:
    """The answers of those of the users who are in this cell, by users."""
    fences = [tr.get(keys.fence(keys.encoded_user(user))) for user, _ in of]
    answers: dict[Any, T | UserDeleted | CorruptData] = {}
    for (user, location), stored in zip(of, fences, strict=True):
        try:
            fence = cells.fence_in(tr, location.cell, stored.value)
        except CorruptData as error:
            answers[user] = error
            continue
        if fence == Fence(HERE, location.epoch):
            answers[user] = ask(UserData(tr, user, location.cell))
        elif fence.state == DELETED:
            answers[user] = deleted_error(user)
    return answers


def _gather(
    cells: Cells, asks: Mapping[str, Callable[[Transaction], T]], limit: _TimeLimit, max_age: float | None
) -> GatheredAnswers[T]:
    """As `gather`, with what to ask each cell; a `max_age` makes it refuse writes."""
    changed = runtime.condition()
    found = GatheredAnswers[T]({}, {})

    def in_time(tr: Transaction, name: str) -> T:
        # Each try gets the rest of the time, or a cell that never answers would keep its thread for ever.
        tr.options.set_timeout(int(min(max(1, 1000 * limit.left()), _MAX_MILLISECONDS)))
        return asks[name](tr)

    def read(name: str) -> None:
        try:
            db, ask = cells.store(name), partial(in_time, name=name)
            answer = transact(db, ask) if max_age is None else read_earlier(db, ask, max_age=max_age)
        except BaseException as error:  # noqa: BLE001 - of one cell only, also if `ask` ends its thread by sys.exit
            with changed:
                found.missing[name] = describe(error)
                changed.notify_all()
        else:
            with changed:
                found.answers[name] = answer
                changed.notify_all()

    for name in asks:
        runtime.start_thread(partial(read, name), f"question to cell {name}")
    with changed:
        changed.wait_for(lambda: len(found.answers) + len(found.missing) == len(asks), limit.left())
        late = {name: f"no answer within {limit.seconds:g} s" for name in asks if name not in found.answers}
        return GatheredAnswers(dict(found.answers), late | found.missing)  # copies: late threads still write
