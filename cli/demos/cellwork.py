"""What the processes of `cq demo cells` do: they write for users, adopt, move and delete them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random
from threading import Event
from typing import Final

import cq
from cq import runtime
from cq.cells import Cells, UserData, map_old_ids
from cq.cli.demos.harness import Steps
from cq.encoding import codec
from cq.keys import below
from cq.store.api import Transaction
from cq.store.transact import transact

QUEUE: Final = "demo_writes"
"""The queue of counts in each cell, and the queue that they are forwarded into."""
USAGE: Final = "demo_usage"
"""The queue of the time, in milliseconds, at which each user last wrote: in each cell, and in the directory's store."""
EVERYWHERE: Final = "demo_usage_everywhere"
"""The queue in each cell into which the directory's store forwards the times of all users."""
TABLE: Final = "demo_table"
"""A small table of the directory's store, which is copied to all cells: the position of each writer."""
ALL: Final = "all"
"""The key with the number of all writes; the other keys are users."""
INDEX: Final = "demo_writes"
OLD_CELL: Final = "cell-1"
"""The cell whose store has the rows of old users, and which is emptied."""
OLD: Final = b"demo_old/"
_OLD_ROWS: Final = 25
"""The rows of each third user in the store of the first cell before it was one."""
_POSITION_EVERY: Final = 20
_PAUSE: Final = 0.05  # seconds between two moves
_DELETE_PAUSE: Final = 0.3
_REFUSALS: Final = (
    cq.errors.UserNotPlaced,
    cq.errors.UserDeleted,
    cq.errors.NoRoom,
    cq.errors.NameTaken,
    cq.errors.InvalidData,  # the user has another name already
)
_CONTENT: Final = b"." * 100
PATIENCE: Final = 1.0
OldIds = dict[int, tuple[str, str]]
"""{id of a row before the store became a cell: (user, text)}."""


def is_old(user: str) -> bool:
    """Whether a user has rows in the store of the first cell from before it was one."""
    return user.startswith("old")


def make_old_rows(cells: Cells, users: list[str]) -> OldIds:
    """Write the rows that users had before the store became a cell; returns their former ids."""
    ids = dict(enumerate((user, f"old-{number}") for user in users for number in range(_OLD_ROWS)))

    def write(tr: Transaction) -> None:
        for user, text in ids.values():
            tr.set(_old_row(user, text), b"")

    transact(cells.store(OLD_CELL), write)
    map_old_ids(cells, ids)
    return ids


def _old_row(user: str, text: str = "") -> bytes:
    return OLD + f"{user}/{text}".encode()


def texts(writer: int, number: int, users: list[str], rng: Random) -> list[tuple[str, str]]:
    """The writes of a writer: users and texts."""
    return [(rng.choice(users), f"{writer}-{index}") for index in range(number)]


def write(stop: Event, *, url: str, steps: Steps) -> None:
    """Do each remaining write once, in the current cell of the user, under the next id of the user.

    The position is in the directory's store, and written for many writes: those after the position of a killed writer
    may exist already, which `write_once` detects.
    """
    db = cq.open(url)

    def advance(tr: Transaction, done: int) -> None:
        steps.advance(tr, done)
        cq.CombineQueue(TABLE).add(tr, {steps.path.name: done})

    with Cells(db) as cells:
        for index, (user, text) in steps.left(db):
            while not _try(cells, user, text):
                if stop.is_set():
                    return
            if (index + 1) % _POSITION_EVERY == 0 or index + 1 == steps.number:
                transact(db, partial(advance, done=index + 1))


def _try(cells: Cells, user: str, text: str) -> bool:
    """Do one write, unless the user is deleted; returns False if it must be retried."""
    try:
        cells.transact(user, lambda data: write_once(data, text), timeout=PATIENCE)
    except cq.errors.UserDeleted:
        return True
    except cq.errors.UserNotPlaced:
        with suppress(cq.errors.UserDeleted):
            _add_user(cells, user)
    except cq.errors.UserMoving:
        cells.resume_moves()  # the process that moves the user may have been killed
    else:
        return True
    return False


def _add_user(cells: Cells, user: str) -> None:
    if is_old(user):
        cells.adopt(user, OLD_CELL, convert, names=[f"login:{user}"])
    else:
        cells.place(user, names=[f"login:{user}"])


def write_once(data: UserData, text: str) -> None:
    """Store a text of a user, unless it is stored: by a killed writer, or by a commit whose answer was lost."""
    if data.tr.get(data.prefix + text.encode()).value is None:
        _write(data, text)


def _write(data: UserData, text: str) -> int:
    """Store a text of a user, and count it, in one transaction; returns its id."""
    number = data.next_id()
    at = round(1000 * runtime.time())
    data.tr.set(data.prefix + text.encode(), codec.encode([number, _CONTENT, at]))
    data.put_entry(INDEX, text)
    cq.CombineQueue(QUEUE).add(data.tr, {ALL: 1, data.user: 1})
    cq.CombineQueue(USAGE).add(data.tr, {data.user: at})
    return number


def convert(data: UserData) -> bool:
    """Write some of the rows that a user had before, under new ids; returns whether there are more."""
    begin, end = below(_old_row(data.user))
    rows = data.tr.get_range(begin, end, limit=11).to_list()
    for row in rows[:10]:
        text = row.key.removeprefix(begin).decode()
        data.map_id(text, _write(data, text))
        data.tr.clear(row.key)
    return len(rows) > 10


def move_out(stop: Event, *, url: str) -> None:
    """Adopt the users who do not come, then move all users out of the first cell, one by one."""
    with Cells(cq.open(url)) as cells:
        old = cells.store(OLD_CELL)
        while rows := transact(old, lambda tr: tr.snapshot.get_range(*below(OLD), limit=1).to_list()):
            _add_user(cells, rows[0].key.removeprefix(OLD).decode().partition("/")[0])
            if stop.wait(_PAUSE):
                return
        cells.drain_cell(OLD_CELL)
        while next(cells.directory.users_in(OLD_CELL), None) is not None and not stop.wait(_PAUSE):
            with suppress(*_REFUSALS):
                next(cells.rebalance(1), None)


def move_users(stop: Event, *, url: str, users: list[str]) -> None:
    """Move random users to random cells until `stop` is set, and finish the moves of killed movers."""
    rng = Random()  # noqa: S311 - the moves need not be repeatable
    with Cells(cq.open(url)) as cells:
        names = [each.name for each in cells.cells()]
        while not stop.is_set():
            cells.resume_moves()
            with suppress(*_REFUSALS):
                cells.move(rng.choice(users), rng.choice(names))
                user = rng.choice(users)
                cells.names.rename(user, f"login:{user}", f"nick:{rng.choice(users)}")
            stop.wait(_PAUSE)


def delete_users(stop: Event, *, url: str, users: list[str]) -> None:
    """Delete these users until `stop` is set, in the middle of their writes, and take their counts from the totals."""
    left = list(users)
    with Cells(cq.open(url)) as cells:
        while left and not stop.wait(_DELETE_PAUSE):
            cells.resume_deletions()
            with suppress(cq.errors.UserNotPlaced):
                cells.delete(left[0], take_away)
                del left[0]
        stop.wait()


def take_away(data: UserData) -> None:
    """Take the writes of a user from the totals."""
    if number := data.last_id():
        cq.CombineQueue(QUEUE).add(data.tr, {ALL: -number, data.user: -number})
