"""`cq demo cells`: users write, are moved and deleted while all processes are killed, and no write is lost.

The first cell is the store of a site from before there were cells, and is emptied. Its users are adopted, and moved
out. Meanwhile writers, movers and a process that deletes users run. Workers forward the counts of the cells to the
store with the directory, and a table to all cells. At the end a recount of the writes is compared with the stores.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import cq
from cq import runtime
from cq.admin.queue_status import is_drained
from cq.cells import Cells, Router, Rule, entries, gather_users, search
from cq.cells.records import HERE, Fence
from cq.cells.router import WebAnswer, WebRequest
from cq.cli.demos import cellwork as work
from cq.cli.demos.cellwork import ALL, EVERYWHERE, INDEX, OLD_CELL, QUEUE, TABLE, USAGE
from cq.cli.demos.harness import (
    DemoDiffers,
    DemoRun,
    Figures,
    Roles,
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
from cq.store import read_earlier
from cq.store.api import Database
from cq.store.row_pages import scan_rows
from cq.store.transact import transact

_URL_ENV: Final = "CQ_DEMO_CELLS_URL"
"""The environment variable with the URL of the store that receives the counts of the cells."""
_PAGE: Final = 100  # entries of a page
_AGE: Final = 1.0  # seconds that the page of friends may be old
_RULES: Final = (
    Rule("/u/{user}"),
    Rule("/search", query="user"),
    Rule("/save", form="user"),
    Rule("/note/{old}", to="/u/{user}/note/{number}", type=int),
)
_NOBODY: Final = WebAnswer(404, "There is no such user.")


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
        old_ids = work.make_old_rows(cells, [user for user in users if work.is_old(user)])
        parts = (work.texts(writer, options.number, users, demo.rng) for writer in range(options.writers))
        steps = Steps.of_parts(demo.folder, b"demo_cells/", parts)
        with (
            Router(cells, [*urls][-1], _RULES) as router,
            shown_steps(db, "writes done", steps) as show_steps,
        ):

            def look() -> None:
                show_steps()
                for user in users:  # so that it knows the cells before the last moves
                    router.route(_pages(user)[0][0])

            figures = demo.complete(
                {
                    **numbered("writer", (partial(work.write, url=url, steps=each) for each in steps)),
                    "mover out of the first cell": partial(work.move_out, url=url),
                },
                _services(options, url, urls, users),
                look,
                is_settled=lambda: _is_settled(cells, db, list(urls)),
            )
            figures |= recount(cells, db, steps, old_ids)
            return figures | {"routed": check_router(cells, router, old_ids)}


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
        to_directory = [links.queue(url_env=_URL_ENV)]
        cq.configure(cells.store(name), QUEUE, links=to_directory)
        cq.configure(cells.store(name), USAGE, combiner="maximum", links=to_directory)
        cq.configure(cells.store(name), EVERYWHERE, combiner="maximum")
        cq.configure(cells.store(name), TABLE, combiner="last")
    urls = {each.name: each.url for each in cells.cells()}
    os.environ.update({_env_of(name): each for name, each in urls.items()})
    for queue, combiner, to in ((USAGE, "maximum", EVERYWHERE), (TABLE, "last", TABLE)):
        to_cells = [links.queue(to, name=name, url_env=_env_of(name)) for name in urls]
        cq.configure(db, queue, combiner=combiner, links=to_cells)
    return urls


def _env_of(cell: str) -> str:
    """The environment variable with the URL of a cell's store."""
    return f"CQ_DEMO_{cell.upper().replace('-', '_')}_URL"


def _services(options: CellOptions, url: str, urls: Mapping[str, str], users: list[str]) -> Roles:
    """The processes that run until the work is done and settled."""
    # With an identity: a restarted worker gets the tasks of its killed predecessor at once.
    worker = partial(run_worker, identity="demo")
    in_cell = partial(worker, queues=[QUEUE, USAGE, EVERYWHERE, TABLE])
    mover = partial(work.move_users, url=url, users=users)
    return {
        **{f"worker of {name}": partial(in_cell, url=each) for name, each in urls.items()},
        "worker of the directory": partial(worker, queues=[QUEUE, USAGE, TABLE], url=url),
        "deleter": partial(work.delete_users, url=url, users=users[: options.deletions]),
        **numbered("mover", [mover] * options.movers),
    }


def _is_settled(cells: Cells, db: Database, names: list[str]) -> bool:
    """Whether all updates are combined, and forwarded by the links."""
    stores = [cells.store(name) for name in names]
    # In the direction of the links: a count that leaves a store after the check of its receiver would be missed.
    return (
        all(_is_idle(store, {QUEUE: ["forward"], USAGE: ["forward"]}) for store in stores)
        and _is_idle(db, {QUEUE: [], USAGE: names, TABLE: names})
        and all(_is_idle(store, {EVERYWHERE: [], TABLE: []}) for store in stores)
    )


def _is_idle(db: Database, queues: Mapping[str, Sequence[str]]) -> bool:
    """Whether all updates of some queues of a store are combined, and forwarded by their links."""
    logs = [LinkKeys(queue, link).all_rows() for queue, names in queues.items() for link in names]
    return all(is_drained(db, queue) for queue in queues) and not transact(
        db, lambda tr: [row for log in logs for row in tr.snapshot.get_range(*log, limit=1)]
    )


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


# The recount


def recount(cells: Cells, db: Database, steps: Sequence[Steps], old_ids: work.OldIds) -> Figures:
    """Compare the stores with the writes; returns the figures. Raises `DemoDiffers`."""
    cells.resume_deletions()  # of processes that were stopped
    cells.resume_moves()
    names = [each.name for each in cells.cells()]
    written: defaultdict[str, set[str]] = defaultdict(set)
    for user, text in chain(old_ids.values(), *steps):
        written[user].add(text)
    deleted = {user for user in written if _is_deleted(cells, names, user)}
    wanted = {user: texts for user, texts in written.items() if user not in deleted}
    _check(_searched(cells) == sorted(chain(*wanted.values())), "a search in all cells finds other writes")
    checked = {user: _check_user(cells, names, user, texts) for user, texts in wanted.items()}
    _check_names(cells, wanted, deleted)
    counts = {user: len(texts) for user, texts in wanted.items()}
    writes = sum(counts.values())
    compare("the totals", dict(cq.CombineQueue(QUEUE).scan(db)), counts | ({ALL: writes} if writes else {}))
    times = {user: at for user, (_, at) in checked.items()}
    for name in names:
        _check_usage(cells, name, times, counts)
        table = dict(cq.CombineQueue(TABLE).scan(cells.store(name)))
        compare(f"the table in {name}", table, {each.path.name: each.number for each in steps})
    found = _check_cells(cells, wanted)
    return {
        "writes": writes,
        "users": sum(found.values()),
        "deleted": len(deleted),
        "adopted": len({user for user, _ in old_ids.values()}),
        "moves": sum(number for number, _ in checked.values()),
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
            _check(not rows, f"{name} has data of {user}, who was deleted")
        return True
    return False


def _searched(cells: Cells) -> list[str]:
    """Return all entries that a search in all cells finds, page by page."""
    found: list[str] = []
    token = None
    while True:
        page = search(cells, entries(INDEX), limit=_PAGE, token=token, timeout=60)
        _check(not page.missing, f"cells do not answer: {page.missing}")
        found += [each.text for each in page.items]
        token = page.token
        if token is None:
            return found


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
        _check(fence is None or name != OLD_CELL or work.is_old(user), f"{user} was in the full {name}")
        rows = scan_rows(db, prefix, cellkeys.latest_id(encoded))
        writes = {key.removeprefix(prefix).decode(): codec.decode(value) for key, value in rows}
        found = {text: number for text, (number, _, _) in writes.items()}
        if name == record.cell:
            latest = max(at for _, _, at in writes.values())
            _check(found.keys() == wanted, f"{len(wanted - found.keys())} writes of {user} are lost")
            ids = list(range(1, len(wanted) + 1))
            _check(sorted(found.values()) == ids, f"the ids of {user} have gaps")
            old = {text: number for text, number in found.items() if text.startswith("old")}
            new = cells.transact(user, lambda data: {text: data.new_id(text) for text in old})  # noqa: B023
            compare(f"the former ids of {user}", new, old)
        else:
            _check(not found, f"{name} has {len(found)} writes of {user}, who is in {record.cell}")
    return record.epoch - 1, latest


def _check_names(cells: Cells, users: Iterable[str], deleted: Iterable[str]) -> None:
    """Check that each user has one second name, and that those of deleted ones are free."""
    for user in users:
        (name,) = cells.names.of(user)
        _check(cells.names.find(name) == user, f"{name} is not the name of {user}")
    for user in deleted:
        _check(cells.names.find(f"login:{user}") is None, f"{user} was deleted, and has a login")


def _check_usage(cells: Cells, cell: str, times: Mapping[str, int], counts: Mapping[str, int]) -> None:
    """Compare the times of all users in a cell, and the page of friends who have written after a time."""
    known = dict(cq.CombineQueue(EVERYWHERE).scan(cells.store(cell)))
    compare(f"the times in {cell}", {user: known.get(user) for user in times}, times)
    since = sorted(times.values())[len(times) // 2] if times else 0
    page = {user: counts[user] for user, at in times.items() if at > since}
    compare(f"the page of friends in {cell}", friends_page(cells, cell, list(times), since), page)


def friends_page(cells: Cells, cell: str, friends: Sequence[str], since: int) -> dict[str, int]:
    """Return {friend: number of the newest write} of the friends who have written after a time.

    The cell knows which ones have: only their cells are asked, at once, each for all of its friends.
    """
    usage = cq.CombineQueue(EVERYWHERE)
    times = read_earlier(cells.store(cell), lambda tr: usage.get_many(tr, friends), max_age=_AGE)
    changed = [user for user, at in times.items() if at is not None and at > since]
    found = gather_users(cells, changed, lambda data: data.last_id(), timeout=60, max_age=_AGE)
    _check(not found.missing, f"friends are not found: {found.missing}")
    return found.answers


def _check_cells(cells: Cells, users: Collection[str]) -> dict[str, int]:
    """Check the numbers of users in the cells, their limits, and that the first one is empty; returns the numbers."""
    left = list(scan_rows(cells.store(OLD_CELL), *below(work.OLD)))
    _check(not left, f"{len(left)} old rows are not adopted")
    for each in cells.cells():
        found = set(cells.directory.users_in(each.name))
        _check(found <= set(users), f"there are users without writes in {each.name}")
        _check(len(found) == each.users, f"{each.name} has {len(found)} users, and counts {each.users}")
        most = 0 if each.name == OLD_CELL else each.max_users or 0
        _check(each.users <= most, f"{each.name} has {each.users} users: {each.closed}")
    return {each.name: each.users for each in cells.cells()}


def check_router(cells: Cells, router: Router, old_ids: work.OldIds) -> int:
    """Compare the router's answers, from its memory, with the directory; returns the number of redirected users."""
    end = runtime.monotonic() + work.PATIENCE
    redirected = 0
    webs: dict[str, str] = {}

    def check(request: WebRequest, wanted: WebAnswer | None) -> None:
        while (answer := router.route(request)) != wanted:
            # The watch needs a moment after the last move.
            _check(runtime.monotonic() < end, f"{request} got {answer} instead of {wanted}")
            runtime.sleep(0.01)

    for each in cells.cells():
        for user in cells.directory.users_in(each.name):
            webs[user] = each.web
            for request, path in _pages(user):
                check(request, None if each.name == router.here else WebAnswer(307, each.web + path))
            redirected += each.name != router.here
    for old, (user, text) in old_ids.items():
        page = WebAnswer(307, f"{webs[user]}/u/{quote(user)}/note/{text}") if user in webs else _NOBODY
        check(WebRequest("", f"/note/{old}", "", b"", ""), page)
    return redirected


def _pages(user: str) -> list[tuple[WebRequest, str]]:
    """Requests with the user in the path, the query and a form, and the paths that they are redirected to."""
    field = urlencode({"user": user})
    return [
        (WebRequest("", f"/u/{user}", "", b"", ""), f"/u/{quote(user)}"),
        (WebRequest("", "/search", field, b"", ""), f"/search?{field}"),
        (WebRequest("", "/save", "", field.encode(), ""), "/save"),
    ]


def _check(holds: bool, difference: str) -> None:
    if not holds:
        raise DemoDiffers(f"not as recounted: {difference}")
