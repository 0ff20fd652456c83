"""`cq demo cells`: users write, are moved and deleted while all processes are killed, and no write is lost.

The first cell is the store of a site from before there were cells, and is emptied. Its users are adopted, and moved
out. Meanwhile writers, movers and a process that deletes users run. Workers forward the counts of the cells to the
store with the directory, and a table to all cells. At the end a recount of the writes is compared with the stores.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

import cq
from cq.cells import Cells, UserData, entries, search
from cq.cells.records import HERE, Fence
from cq.cli.demos.command import CellOptions
from cq.cli.demos.harness import (
    DemoRun,
    Figures,
    Roles,
    Steps,
    check,
    compare,
    compare_queue,
    numbered,
    shown_steps,
    workers,
)
from cq.cli.shared.output import note, print_table, quantity
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import below
from cq.keys import cell as cellkeys
from cq.observers.links import spec as links
from cq.observers.worker.worker import Worker
from cq.store.api import Database, Transaction
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact

QUEUE: Final = "demo_writes"
"""The queue of counts in each cell, and the queue that they are forwarded into."""
TABLE: Final = "demo_table"
"""A small table of the directory's store, which is copied to all cells: the position of each writer."""
QUEUES: Final = (QUEUE, TABLE)
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
OldRows = list[tuple[str, str]]
"""(user, text) of each row before the store became a cell."""


_URL_ENV: Final = "CQ_DEMO_CELLS_URL"
"""The environment variable with the URL of the store that receives the counts of the cells."""
_PAGE: Final = 100  # entries of a page


def run(options: CellOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    folder = (options.folder or demo.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    url = options.store or f"embedded:{folder / 'directory.db'}"
    os.environ[_URL_ENV] = url  # inherited by the workers, which forward to it
    db = cq.open(url)
    users = [f"user {number}" if number % 3 else f"old user {number}" for number in range(options.users)]
    with Cells(db) as cells:
        # Enough without the first cell for all users, and for those on their way, who have seats in two cells.
        limit = -(-options.users // (options.stores - 1)) + options.movers + 1
        urls = make_cells(cells, db, folder, options.stores, limit)
        old = make_old_rows(cells, [user for user in users if is_old(user)])
        parts = (texts(writer, options.number, users, demo.rng) for writer in range(options.writers))
        steps = Steps.of_parts(demo.folder, b"demo_cells/", parts)
        figures = demo.complete(
            {
                **numbered("writer", (partial(write, url=url, steps=each) for each in steps)),
                "mover out of the first cell": partial(move_out, url=url),
            },
            _services(options, url, urls, users),
            lambda: shown_steps(db, steps, "write"),
            is_settled=lambda: True,
        )
        settle(cells, db, urls)
        return figures | recount(cells, db, steps, old)


def make_cells(cells: Cells, db: Database, folder: Path, number: int, limit: int) -> dict[str, str]:
    """Create the cells, with a limit of users, and their queues; returns {cell: URL of its store}."""
    if cells.cells():
        raise InvalidConfiguration("the store has cells, which the demo must not use: name another store")
    cells.fill("newest")
    cq.configure(db, QUEUE)
    for name in (f"cell-{place + 1}" for place in range(number)):
        cells.add_cell(name, f"embedded:{folder / name}.db", web=f"https://{name}.example.com")
        cells.limit_cell(name, limit)
        cells.report_load(name, 1.0 if name == OLD_CELL else 0.0)  # it takes nobody: its disk is full
        cq.configure(cells.store(name), QUEUE, links=[links.queue(url_env=_URL_ENV)])
        cq.configure(cells.store(name), TABLE, combiner="last")
    urls = {each.name: each.url for each in cells.cells()}
    os.environ.update({_env_of(name): each for name, each in urls.items()})
    to_cells = [links.queue(TABLE, name=name, url_env=_env_of(name)) for name in urls]
    cq.configure(db, TABLE, combiner="last", links=to_cells)
    return urls


def _env_of(cell: str) -> str:
    """The environment variable with the URL of a cell's store."""
    return f"CQ_DEMO_{cell.upper().replace('-', '_')}_URL"


def _services(options: CellOptions, url: str, urls: Mapping[str, str], users: list[str]) -> Roles:
    """The processes that run until the work is done and settled."""
    roles = workers(1, url, QUEUES, "worker of the directory")
    for name, each in urls.items():
        roles |= workers(1, each, QUEUES, f"worker of {name}")
    roles["deleter"] = partial(delete_users, url=url, users=users[: options.deletions])
    return roles | numbered("mover", [partial(move_users, url=url, users=users)] * options.movers)


def settle(cells: Cells, db: Database, names: Iterable[str]) -> None:
    """Finish the deletions and moves of processes that were stopped; then combine and forward all updates."""
    cells.resume_deletions()
    cells.resume_moves()
    stores = [cells.store(name) for name in names]
    # In the direction of the links: from the cells to the directory's store, and back.
    for store in (*stores, db, *stores):
        Worker(store, queues=QUEUES).drain()


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    print_table(["cell", "users"], figures["cells"].items(), right=["users"])
    note(
        f"{quantity(figures['writes'], 'write')} of {quantity(figures['users'], 'user')}, "
        f"who moved {quantity(figures['moves'], 'time')}, without those of "
        f"{quantity(figures['deleted'], 'deleted user')}, and with old data of {figures['adopted']:,}"
    )


# The processes


def is_old(user: str) -> bool:
    """Whether a user has rows in the store of the first cell from before it was one."""
    return user.startswith("old")


def make_old_rows(cells: Cells, users: list[str]) -> OldRows:
    """Write the rows that users had before the store became a cell."""
    rows = [(user, f"old-{number}") for user in users for number in range(_OLD_ROWS)]

    def write(tr: Transaction) -> None:
        for user, text in rows:
            tr.set(_old_row(user, text), b"")

    transact(cells.store(OLD_CELL), write)
    return rows


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
    data.tr.set(data.prefix + text.encode(), codec.encode([number, _CONTENT]))
    data.put_entry(INDEX, text)
    cq.CombineQueue(QUEUE).add(data.tr, {ALL: 1, data.user: 1})
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
        # A user whose move to it has begun before counts in it, too.
        while next(each.users for each in cells.cells() if each.name == OLD_CELL) and not stop.wait(_PAUSE):
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


# The recount


def recount(cells: Cells, db: Database, steps: Sequence[Steps], old: OldRows) -> Figures:
    """Compare the stores with the writes; returns the figures. Raises `DemoDiffers`."""
    names = [each.name for each in cells.cells()]
    written: defaultdict[str, set[str]] = defaultdict(set)
    for user, text in chain(old, *steps):
        written[user].add(text)
    deleted = {user for user in written if _is_deleted(cells, names, user)}
    wanted = {user: texts for user, texts in written.items() if user not in deleted}
    check(_searched(cells) == sorted(chain(*wanted.values())), "a search in all cells finds other writes")
    moves = sum(_check_user(cells, names, user, texts) for user, texts in wanted.items())
    _check_names(cells, wanted, deleted)
    counts = {user: len(texts) for user, texts in wanted.items()}
    writes = sum(counts.values())
    compare_queue(db, "the totals", QUEUE, counts | ({ALL: writes} if writes else {}))
    positions = {each.path.name: each.number for each in steps}
    for name in names:
        compare_queue(cells.store(name), f"the table in {name}", TABLE, positions)
    found = _check_cells(cells, wanted)
    return {
        "writes": writes,
        "users": sum(found.values()),
        "deleted": len(deleted),
        "adopted": len({user for user, _ in old}),
        "moves": moves,
        "cells": found,
    }


def _is_deleted(cells: Cells, names: Iterable[str], user: str) -> bool:
    """Whether a user was deleted; checks that no cell has any data of the user then."""
    try:
        cells.directory.record(user)
    except cq.errors.UserDeleted:
        begin, end = cellkeys.all_of(cellkeys.encoded_user(user))
        for name in names:
            rows = list(scan_rows(cells.store(name), begin, end))
            check(not rows, f"{name} has data of {user}, who was deleted")
        return True
    return False


def _searched(cells: Cells) -> list[str]:
    """Return all entries that a search in all cells finds, page by page."""
    found: list[str] = []
    token = None
    while True:
        page = search(cells, entries(INDEX), limit=_PAGE, token=token, timeout=60)
        check(not page.missing, f"cells do not answer: {page.missing}")
        found += [each.text for each in page.items]
        token = page.token
        if token is None:
            return found


def _check_user(cells: Cells, names: Iterable[str], user: str, wanted: set[str]) -> int:
    """Check that the writes of a user are in the user's cell only, each once; returns the number of moves."""
    record = cells.directory.record(user)
    check(not record.is_moving, f"the move of {user} is not done")
    encoded = cellkeys.encoded_user(user)
    prefix = cellkeys.data(encoded)
    for name in names:
        db = cells.store(name)
        fence = transact(db, lambda tr: tr.get(cellkeys.fence(encoded)).value)
        is_here = fence is not None and Fence.from_bytes(fence) == Fence(HERE, record.epoch)
        check(is_here == (name == record.cell), f"{user} is in {record.cell}, and {name} says otherwise")
        check(fence is None or name != OLD_CELL or is_old(user), f"{user} was in the full {name}")
        rows = scan_rows(db, prefix, cellkeys.latest_id(encoded))
        found = {key.removeprefix(prefix).decode(): codec.decode(value)[0] for key, value in rows}
        if name == record.cell:
            check(found.keys() == wanted, f"{len(wanted - found.keys())} writes of {user} are lost")
            ids = list(range(1, len(wanted) + 1))
            check(sorted(found.values()) == ids, f"the ids of {user} have gaps")
            old = {text: number for text, number in found.items() if text.startswith("old")}
            new = cells.transact(user, lambda data: {text: data.new_id(text) for text in old})  # noqa: B023
            compare(f"the former ids of {user}", new, old)
        else:
            check(not found, f"{name} has {len(found)} writes of {user}, who is in {record.cell}")
    return record.epoch - 1


def _check_names(cells: Cells, users: Iterable[str], deleted: Iterable[str]) -> None:
    """Check that each user has one second name, and that those of deleted ones are free."""
    for user in users:
        (name,) = cells.names.of(user)
        check(cells.names.find(name) == user, f"{name} is not the name of {user}")
    for user in deleted:
        check(cells.names.find(f"login:{user}") is None, f"{user} was deleted, and has a login")


def _check_cells(cells: Cells, users: Collection[str]) -> dict[str, int]:
    """Check the numbers of users in the cells, their limits, and that the first one is empty; returns the numbers."""
    left = list(scan_rows(cells.store(OLD_CELL), *below(OLD)))
    check(not left, f"{len(left)} old rows are not adopted")
    for each in cells.cells():
        found = set(cells.directory.users_in(each.name))
        check(found <= set(users), f"there are users without writes in {each.name}")
        check(len(found) == each.users, f"{each.name} has {len(found)} users, and counts {each.users}")
        most = 0 if each.name == OLD_CELL else each.max_users or 0
        check(each.users <= most, f"{each.name} has {each.users} users: {each.closed}")
    return {each.name: each.users for each in cells.cells()}
