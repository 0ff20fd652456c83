"""`cq cells`: the directory of cells, and the cell of each user."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cq.cells.cells import Cells, Move
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Json, Store, argument, make_store, open_store, option, read_store
from cq.cli.shared.output import answer, as_word, note, print_json, print_table, progress, quantity
from cq.encoding.json_values import to_json
from cq.store import OpenDatabase

Directory = Annotated[
    str | None,
    option(
        "URL",
        "URL of the store with the directory. Default: the store of --store.",
        "--directory",
        envvar="CQ_DIRECTORY",
    ),
]
Cell = Annotated[str, argument("CELL", "Name of the cell.")]
User = Annotated[
    str, argument("USER", "Id of the user: an integer, or text (text of digits in double quotes).")
]

commands = CommandSet("cells", "Distribute users over many stores.")


@commands.command("list", examples=["cq cells list", "cq cells list --json"])
def show(directory: Directory = None, store: Store = None, json: Json = False) -> None:
    """List the cells with their users, and the unfinished moves.

    For each cell: the number of its users, weight, state and URL. With --json one line per cell, then one line per
    move.
    """
    with _open_cells(directory, store, read_store) as opened:
        found, moves = opened.cells(), list(opened.moves())
    columns = ["cell", "users", "weight", "state", "url"]
    rows = [[each.name, each.users, each.weight, each.state, each.url] for each in found]
    if json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
    else:
        print_table(columns, ([name, f"{users:,}", *rest] for name, users, *rest in rows), right=columns[1:3])
    for move in moves:
        _print_move(json, move, "under way: ")
    if moves and not json:
        note("`cq cells resume` finishes moves whose process has died")


@commands.command(
    "add",
    examples=[
        "cq cells add eu-1 fdb:/etc/foundationdb/eu-1.cluster",
        "cq cells add small embedded:small.db --weight 1",
    ],
)
def add(
    cell: Cell,
    url: Annotated[
        str, argument("URL", "URL of the store: embedded:PATH, fdb: or fdb:/path/to/fdb.cluster.")
    ],
    weight: Annotated[
        int, option("NUMBER", "Capacity in proportion to the other cells, 1 to 1,000,000.")
    ] = 1,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Add a cell, or change the URL or weight of a cell.

    From then on the store at the URL belongs to this cell of this directory only. The store of a new cell is created if
    it does not exist. The directory stores absolute paths: they must be valid on every machine that uses the directory.
    """
    with _open_cells(directory, store, make_store) as opened:
        opened.add_cell(cell, url, weight=weight)
    answer(json, f"{cell}: added", cell=cell, weight=weight)


@commands.command("drain", examples=["cq cells drain eu-1", "cq cells drain eu-1 --undo"])
def drain(
    cell: Cell,
    undo: Annotated[bool, typer.Option("--undo", help="Accept new users again.")] = False,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Stop placing users in a cell.

    `cq cells rebalance` then moves its users to other cells.
    """
    with _open_cells(directory, store) as opened:
        opened.drain_cell(cell, draining=not undo)
    state = "open" if undo else "draining"
    answer(json, f"{cell}: {state}", cell=cell, state=state)


@commands.command("place", examples=["cq cells place ada grace"])
def place(
    users: Annotated[
        list[str], argument("USER", "Ids of users: integers, or text (text of digits in double quotes).")
    ],
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Place users in the least full cells.

    Prints the cell of each user. A user with a cell stays in that cell.
    """
    with _open_cells(directory, store) as opened:
        for user in map(_user, users):
            cell = opened.place(user)
            answer(json, f"{as_word(user)}: {cell}", user=user, cell=cell)


@commands.command("move", examples=["cq cells move ada eu-2"])
def move_user(
    user: User, cell: Cell, directory: Directory = None, store: Store = None, json: Json = False
) -> None:
    """Move a user to another cell.

    Returns when the data are in the new cell and cleared in the old one.
    """
    with _open_cells(directory, store) as opened:
        before = opened.locate(_user(user)).cell
        opened.move(_user(user), cell)
    _print_move(json, Move(_user(user), before, cell))


@commands.command("resume", examples=["cq cells resume"])
def resume(directory: Directory = None, store: Store = None, json: Json = False) -> None:
    """Finish all unfinished moves.

    For example those whose process has died.
    """
    with _open_cells(directory, store) as opened:
        count = opened.resume_moves()
    answer(json, f"{quantity(count, 'move')} finished", finished=count)


@commands.command("rebalance", examples=["cq cells rebalance", "cq cells rebalance --most 100 --json"])
def rebalance(
    most: Annotated[int, option("NUMBER", "Maximum number of users to move.", min=0)] = 1_000,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Move users until the cells are filled by their weights.

    First finishes unfinished moves, and moves all users out of draining cells. Prints each moved user,
    and on standard error the number of moved users.
    """
    with _open_cells(directory, store) as opened, progress(counted=False) as display:
        task, number = display.add_task("moving users"), 0
        for each in opened.rebalance(most):
            number += 1
            display.update(task, description=f"{quantity(number, 'user')} moved")
            _print_move(json, each)
    note(f"{quantity(number, 'user')} moved")


def _open_cells(
    directory: str | None, store: str | None, opener: Callable[[str | None], OpenDatabase] = open_store
) -> Cells:
    return Cells(opener(directory or store))


def _user(word: str) -> Any:
    """The user id that a word of the command line stands for: an integer, or text."""
    try:
        found = json_module.loads(word)
    except ValueError:
        return word
    return found if type(found) in (int, str) else word


def _print_move(json: bool, each: Move, before: str = "") -> None:
    fields = {"user": to_json(each.user), "from": each.source, "to": each.target}
    answer(json, f"{before}{as_word(each.user)}: {each.source} -> {each.target}", **fields)
