"""`cq demo cells`: users write, are moved and deleted while all processes are killed, and no write is lost.

Writers, movers and a process that deletes users run at the same time. A worker for each store forwards the counts of
the cells to the store with the directory. At the end a recount of the writes is compared with the stores.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final
from urllib.parse import quote

import cq
from cq import runtime
from cq.admin.queue_status import is_drained
from cq.cells import Cells, Router, Rule, UserData, entries, gather_users, search
from cq.cells.records import HERE, Fence
from cq.cells.router import WebAnswer, WebRequest
from cq.cli.demos.harness import (
    DemoDiffers,
    DemoRun,
    Figures,
    Steps,
    compare,
    killed,
    numbered,
    run_worker,
    shown_steps,
)
from cq.cli.demos.options import CellOptions
from cq.cli.shared.output import note, print_table, quantity
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import below
from cq.keys import cell as cellkeys
from cq.keys.link import LinkKeys
from cq.observers.links import spec as links
from cq.store.api import Database, Transaction
from cq.store.row_pages import scan_rows
from cq.store.transact import transact

QUEUE: Final = "demo_writes"
"""The queue of counts in each cell, and the queue that they are forwarded into."""
USAGE: Final = "demo_usage"
"""The queue of the time, in milliseconds, at which each user last wrote: in each cell, and in the directory's store."""
EVERYWHERE: Final = "demo_usage_everywhere"
"""The queue in each cell into which the directory's store forwards the times of all users."""
ALL: Final = "all"
"""The key with the number of all writes; the other keys are users."""
_URL_ENV: Final = "CQ_DEMO_CELLS_URL"
"""The environment variable with the URL of the store that receives the counts of the cells."""
_INDEX: Final = "demo_writes"
_PAGE: Final = 100  # entries of a page
_POSITION_EVERY: Final = 20
_OLD_CELL: Final = "cell-1"
_OLD: Final = b"demo_old/"
_OLD_ROWS: Final = 25
"""The rows of each third user in the store of the first cell before it was one."""
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
_PATIENCE: Final = 1.0


def run(options: CellOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    folder = (options.folder or demo.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    url = options.store or f"embedded:{folder / 'directory.db'}"
    os.environ[_URL_ENV] = url  # inherited by the workers, which forward to it
    db = cq.open(url)
    with Cells(db) as cells:
        # Enough for all users, and for those on their way, who have seats in two cells.
        limit = -(-options.users // options.stores) + options.movers
        urls = make_cells(cells, db, folder, options.stores, limit)
        router = Router(cells, next(iter(urls)), [Rule("/u/{user}")])
        users = [f"user {number}" if number % 3 else f"old user {number}" for number in range(options.users)]
        make_old_rows(cells.store(_OLD_CELL), filter(_is_old, users))
        # The positions are in another store than the writes, and written for many of them.
        steps = Steps.of_parts(
            demo.folder,
            b"demo_cells/",
            [
                [(demo.rng.choice(users), f"{writer}-{index}") for index in range(options.number)]
                for writer in range(options.writers)
            ],
        )
        # With an identity: a restarted worker gets the tasks of its killed predecessor at once.
        work = partial(run_worker, queues=[QUEUE, USAGE], identity="demo")
        work_in_cell = partial(run_worker, queues=[QUEUE, USAGE, EVERYWHERE], identity="demo")
        # In the direction of the links: a count that leaves a store after the check of its receiver would be missed.
        checks = [
            *((cells.store(name), {QUEUE: ["forward"], USAGE: ["forward"]}) for name in urls),
            (db, {QUEUE: [], USAGE: list(urls)}),
            *((cells.store(name), {EVERYWHERE: []}) for name in urls),
        ]
        with router, shown_steps(db, "writes done", steps) as show_steps:

            def look() -> None:
                show_steps()
                for user in users:
                    router.route(_page_of(user))  # so that it knows the cells before the last moves

            figures = demo.complete(
                numbered("writer", (partial(write, url=url, steps=each) for each in steps)),
                {
                    **{f"worker of {name}": partial(work_in_cell, url=each) for name, each in urls.items()},
                    "worker of the directory": partial(work, url=url),
                    "deleter": partial(delete_users, url=url, users=users[: options.deletions]),
                    **numbered("mover", [partial(move_users, url=url, users=users)] * options.movers),
                },
                look,
                is_settled=lambda: all(starmap(_is_idle, checks)),
            )
            return figures | recount(cells, db, steps) | {"routed": check_router(cells, router)}


def make_cells(cells: Cells, db: Database, folder: Path, number: int, limit: int) -> dict[str, str]:
    """Create the cells, with a limit of users, and their queues; returns {cell: URL of its store}."""
    if cells.cells():
        raise InvalidConfiguration("the store has cells, which the demo must not use: name another store")
    cq.configure(db, QUEUE)
    for name in (f"cell-{place + 1}" for place in range(number)):
        cells.add_cell(name, f"embedded:{folder / name}.db", web=f"https://{name}.example.com")
        cells.limit_cell(name, limit)
        to_directory = [links.queue(url_env=_URL_ENV)]
        cq.configure(cells.store(name), QUEUE, links=to_directory)
        cq.configure(cells.store(name), USAGE, combiner="maximum", links=to_directory)
        cq.configure(cells.store(name), EVERYWHERE, combiner="maximum")
    urls = {each.name: each.url for each in cells.cells()}
    os.environ.update({_env_of(name): each for name, each in urls.items()})
    to_cells = [links.queue(EVERYWHERE, name=name, url_env=_env_of(name)) for name in urls]
    cq.configure(db, USAGE, combiner="maximum", links=to_cells)
    return urls


def _env_of(cell: str) -> str:
    """The environment variable with the URL of a cell's store."""
    return f"CQ_DEMO_{cell.upper().replace('-', '_')}_URL"


def make_old_rows(db: Database, users: Iterable[str]) -> None:
    """Write the rows that users had before the store became a cell."""

    def write(tr: Transaction) -> None:
        for user in users:
            for number in range(_OLD_ROWS):
                tr.set(_old_row(user, f"old-{number}"), b"")

    transact(db, write)


def _is_old(user: str) -> bool:
    return user.startswith("old")


def _old_row(user: str, text: str = "") -> bytes:
    return _OLD + f"{user}/{text}".encode()


def recount(cells: Cells, db: Database, steps: Iterable[Steps]) -> Figures:
    """Compare the stores with the writes; returns the figures. Raises `DemoDiffers`."""
    cells.resume_deletions()  # of processes that were stopped
    cells.resume_moves()
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for user, text in chain(*steps):
        wanted[user].add(text)
    adopted = [user for user in wanted if _is_old(user)]
    for user in adopted:
        wanted[user].update(f"old-{number}" for number in range(_OLD_ROWS))
        _check(not list(scan_rows(cells.store(_OLD_CELL), *below(_old_row(user)))), f"{user} is not adopted")
    names = [each.name for each in cells.cells()]
    deleted = [user for user in wanted if _is_deleted(cells, names, user)]
    for user in deleted:
        del wanted[user]
    placed = {user for name in names for user in cells.directory.users_in(name)}
    _check(placed <= wanted.keys(), "there are users without writes")
    _check(_searched(cells) == sorted(chain(*wanted.values())), "a search in all cells finds other writes")
    checked = {user: _check_user(cells, names, user, texts) for user, texts in wanted.items()}
    for user in wanted:
        (name,) = cells.names.of(user)
        _check(cells.names.find(name) == user, f"{name} is not the name of {user}")
    for user in deleted:
        _check(cells.names.find(f"login:{user}") is None, f"{user} was deleted, and has a login")
    counts = {user: len(texts) for user, texts in wanted.items()}
    writes = sum(counts.values())
    compare("the totals", dict(cq.CombineQueue(QUEUE).scan(db)), {**counts, ALL: writes})
    times = {user: at for user, (_, at) in checked.items()}
    since = sorted(times.values())[len(times) // 2]
    page = {user: counts[user] for user, at in times.items() if at > since}
    for name in names:
        known = dict(cq.CombineQueue(EVERYWHERE).scan(cells.store(name)))
        compare(
            f"the times in {name}", {user: at for user, at in known.items() if user not in deleted}, times
        )
        compare(f"the page of friends in {name}", friends_page(cells, name, list(times), since), page)
    for each in cells.cells():
        users = len(list(cells.directory.users_in(each.name)))
        _check(users == each.users, f"{each.name} has {users} users, and counts {each.users}")
        most = (each.max_users or 0) + (len(adopted) if each.name == _OLD_CELL else 0)  # they need no room
        _check(users <= most, f"{each.name} has {users} users: {each.closed}")
    found = {each.name: each.users for each in cells.cells()}
    moves = sum(number for number, _ in checked.values())
    users = sum(found.values())
    counted = {"users": users, "deleted": len(deleted), "adopted": len(adopted), "moves": moves}
    return {"writes": writes, **counted, "cells": found}


def _is_deleted(cells: Cells, names: Iterable[str], user: str) -> bool:
    """Whether a user was deleted; checks that no cell has any data of the user then."""
    try:
        cells.directory.record(user)
    except cq.errors.UserDeleted:
        begin, end = cellkeys.all_of(cellkeys.encoded_user(user))
        for name in names:
            _check(
                not list(scan_rows(cells.store(name), begin, end)),
                f"{name} has data of {user}, who was deleted",
            )
        return True
    return False


def friends_page(cells: Cells, cell: str, friends: Sequence[str], since: int) -> dict[str, int]:
    """Return {friend: number of the newest write} of the friends who have written after a time.

    The cell knows which ones have: only their cells are asked, at once, each for all of its friends.
    """
    times = transact(cells.store(cell), lambda tr: cq.CombineQueue(EVERYWHERE).get_many(tr, friends))
    changed = [user for user, at in times.items() if at is not None and at > since]
    found = gather_users(cells, changed, lambda data: data.last_id(), seconds=60)
    _check(not found.missing, f"friends are not found: {found.missing}")
    return found.answers


def _searched(cells: Cells) -> list[str]:
    """Return all entries that a search in all cells finds, page by page."""
    found: list[str] = []
    token = None
    while True:
        page = search(cells, entries(_INDEX), limit=_PAGE, token=token, seconds=60)
        _check(not page.missing, f"cells do not answer: {page.missing}")
        found += [each.text for each in page.items]
        token = page.token
        if token is None:
            return found


def check_router(cells: Cells, router: Router) -> int:
    """Compare the router's answers, from its memory, with the directory; returns the number of redirected users."""
    redirected = 0
    end = runtime.monotonic() + _PATIENCE
    for each in cells.cells():
        for user in cells.directory.users_in(each.name):
            url = "" if each.name == router.here else f"{each.web}/u/{quote(user)}"
            while (answer := router.route(_page_of(user))) != (WebAnswer(307, url) if url else None):
                # The watch needs a moment after the last move.
                _check(runtime.monotonic() < end, f"a request of {user}, in {each.name}, got {answer}")
                runtime.sleep(0.01)
            redirected += bool(url)
    return redirected


def _page_of(user: str) -> WebRequest:
    return WebRequest("", f"/u/{user}", "", b"", "")


def _check_user(cells: Cells, names: Iterable[str], user: str, wanted: set[str]) -> tuple[int, int]:
    """Check that the writes of a user are in the user's cell only, each once; returns the moves and the latest time."""
    latest = 0
    record = cells.directory.record(user)
    _check(not record.is_moving, f"the move of {user} is not done")
    encoded = cellkeys.encoded_user(user)
    prefix = cellkeys.data(encoded)
    for name in names:
        db = cells.store(name)
        fence = transact(db, lambda tr: tr.get(cellkeys.fence(encoded)).value)
        is_here = fence is not None and Fence.from_bytes(fence) == Fence(HERE, record.epoch)
        _check(is_here == (name == record.cell), f"{user} is in {record.cell}, and {name} says otherwise")
        rows = scan_rows(db, prefix, cellkeys.latest_id(encoded))
        writes = {key.removeprefix(prefix).decode(): codec.decode(value) for key, value in rows}
        found = {text: number for text, (number, _, _) in writes.items()}
        if name == record.cell:
            latest = max(at for _, _, at in writes.values())
            _check(found.keys() == wanted, f"{len(wanted - found.keys())} writes of {user} are lost")
            ids = list(range(1, len(wanted) + 1))
            _check(sorted(found.values()) == ids, f"the ids of {user} have gaps")
        else:
            _check(not found, f"{name} has {len(found)} writes of {user}, who is in {record.cell}")
    return record.epoch - 1, latest


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    print_table(["cell", "users"], figures["cells"].items(), right=["users"])
    note(
        f"{quantity(figures['writes'], 'write')} of {quantity(figures['users'], 'user')}, "
        f"who moved {quantity(figures['moves'], 'time')}, without those of "
        f"{quantity(figures['deleted'], 'deleted user')}, and with old data of {figures['adopted']:,}, "
        f"in {figures['seconds']:.1f} s, "
        f"with {killed(figures)}: all as recounted"
    )


def _is_idle(db: Database, queues: Mapping[str, Sequence[str]]) -> bool:
    """Whether all updates of some queues of a store are combined, and forwarded by their links."""
    logs = [LinkKeys(queue, link).all_rows() for queue, names in queues.items() for link in names]
    return all(is_drained(db, queue) for queue in queues) and not transact(
        db, lambda tr: [row for log in logs for row in tr.snapshot.get_range(*log, limit=1)]
    )


def _check(holds: bool, difference: str) -> None:
    if not holds:
        raise DemoDiffers(f"not as recounted: {difference}")


# The processes


def write(stop: Event, *, url: str, steps: Steps) -> None:
    """Do each remaining write once, in the current cell of the user, under the next id of the user.

    Writes after the position of a killed writer may exist already: `write_once` detects them.
    """
    db = cq.open(url)
    with Cells(db) as cells:
        for index, (user, text) in steps.left(db):
            while not _try(cells, user, text):
                if stop.is_set():
                    return
            if (index + 1) % _POSITION_EVERY == 0 or index + 1 == steps.number:
                transact(db, partial(steps.advance, done=index + 1))


def _try(cells: Cells, user: str, text: str) -> bool:
    """Do one write, unless the user is deleted; returns False if it must be retried."""
    try:
        cells.transact(user, lambda data: write_once(data, text), timeout=_PATIENCE)
    except cq.errors.UserDeleted:
        return True
    except cq.errors.UserNotPlaced:
        if _is_old(user):
            cells.adopt(user, _OLD_CELL, convert, names=[f"login:{user}"])
        else:
            cells.place(user, names=[f"login:{user}"])
    except cq.errors.UserMoving:
        cells.resume_moves()  # the process that moves the user may have been killed
    else:
        return True
    return False


def write_once(data: UserData, text: str) -> None:
    """Store a text of a user, and count it, in one transaction, unless it is stored."""
    key = data.prefix + text.encode()
    if data.tr.get(key).value is None:  # else a killed writer stored it, or a commit whose answer was lost
        number = data.next_id()
        at = round(1000 * runtime.time())
        data.tr.set(key, codec.encode([number, _CONTENT, at]))
        data.put_entry(_INDEX, text)
        cq.CombineQueue(QUEUE).add(data.tr, {ALL: 1, data.user: 1})
        cq.CombineQueue(USAGE).add(data.tr, {data.user: at})


def convert(data: UserData) -> bool:
    """Write some of the rows that a user had before, under new ids; returns whether there are more."""
    begin, end = below(_old_row(data.user))
    rows = data.tr.get_range(begin, end, limit=11).to_list()
    for row in rows[:10]:
        write_once(data, row.key.removeprefix(begin).decode())
        data.tr.clear(row.key)
    return len(rows) > 10


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
    if number := data.next_id() - 1:
        cq.CombineQueue(QUEUE).add(data.tr, {ALL: -number, data.user: -number})
