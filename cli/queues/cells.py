"""`cq cells`: the directory of cells, and the cell of each user."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any

import typer

from cq.cells.cells import Cells, Move
from cq.cli.shared.options import Json, Store, make_store, open_store, read_store
from cq.cli.shared.output import as_word, note, print_json, print_table, progress, quantity, say
from cq.encoding.json_values import to_json
from cq.store import OpenDatabase

Directory = Annotated[
    str | None,
    typer.Option(
        "--directory",
        metavar="URL",
        envvar="CQ_DIRECTORY",
        help="URL of the store with the directory. Default: the store of --store.",
    ),
]
Cell = Annotated[str, typer.Argument(metavar="CELL", help="Name of the cell.")]
User = Annotated[
    str,
    typer.Argument(
        metavar="USER", help="Id of the user: an integer, or text (text of digits in double quotes)."
    ),
]

cells = typer.Typer(help="Distribute users over many stores.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    cells.command("list", epilog="Examples: cq cells list; cq cells list --json")(show)
    cells.command(
        "add",
        epilog="Examples: cq cells add eu-1 fdb:/etc/foundationdb/eu-1.cluster; "
        "cq cells add small embedded:small.db --weight 1",
    )(add)
    cells.command("drain", epilog="Examples: cq cells drain eu-1; cq cells drain eu-1 --undo")(drain)
    cells.command("place", epilog="Example: cq cells place ada grace")(place)
    cells.command("move", epilog="Example: cq cells move ada eu-2")(move_user)
    cells.command("resume", epilog="Example: cq cells resume")(resume)
    cells.command("rebalance", epilog="Examples: cq cells rebalance; cq cells rebalance --most 100 --json")(
        rebalance
    )
    app.add_typer(cells, name="cells")


def show(directory: Directory = None, store: Store = None, json: Json = False) -> None:
    """List the cells with their users, and the unfinished moves.

    For each cell: the number of its users, weight, state and URL. With --json one line per cell, then one line per
    move.
    """
    with closing(_open_cells(directory, store, read_store)) as opened:
        rows, moves = opened.cells(), list(opened.moves())
    if json:
        for each in rows:
            print_json(
                {
                    "cell": each.name,
                    "users": each.users,
                    "weight": each.weight,
                    "state": each.state,
                    "url": each.url,
                }
            )
        for move in moves:
            print_json(_move(move))
        return
    columns = ["cell", "users", "weight", "state", "url"]
    print_table(
        columns,
        ([each.name, f"{each.users:,}", each.weight, each.state, each.url] for each in rows),
        right=columns[1:3],
    )
    for move in moves:
        say(f"under way: {_shown(move)}")
    if moves:
        note("`cq cells resume` finishes moves whose process has died")


def add(
    cell: Cell,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="URL of the store: embedded:PATH, fdb: or fdb:/path/to/fdb.cluster."
        ),
    ],
    weight: Annotated[
        int, typer.Option(metavar="N", help="Capacity in proportion to the other cells, 1 to 1,000,000.")
    ] = 1,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Add a cell, or change the URL or weight of a cell.

    From then on the store at the URL belongs to this cell of this directory only. The directory stores absolute paths:
    they must be valid on every machine that uses the directory.
    """
    with closing(_open_cells(directory, store, make_store)) as opened:
        opened.add_cell(cell, url, weight=weight)
    _say(json, f"{cell}: added", cell=cell, weight=weight)


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
    with closing(_open_cells(directory, store)) as opened:
        opened.drain_cell(cell, draining=not undo)
    state = "open" if undo else "draining"
    _say(json, f"{cell}: {state}", cell=cell, state=state)


def place(
    users: Annotated[
        list[str],
        typer.Argument(
            metavar="USER", help="Ids of users: integers, or text (text of digits in double quotes)."
        ),
    ],
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Place users in the least full cells.

    Prints the cell of each user. A user with a cell stays in that cell.
    """
    with closing(_open_cells(directory, store)) as opened:
        for user in map(_user, users):
            cell = opened.place(user)
            _say(json, f"{as_word(user)}: {cell}", user=user, cell=cell)


def move_user(
    user: User, cell: Cell, directory: Directory = None, store: Store = None, json: Json = False
) -> None:
    """Move a user to another cell.

    Returns when the data are in the new cell and cleared in the old one.
    """
    with closing(_open_cells(directory, store)) as opened:
        before = opened.locate(_user(user)).cell
        opened.move(_user(user), cell)
    _print_move(json, Move(_user(user), before, cell))


def resume(directory: Directory = None, store: Store = None, json: Json = False) -> None:
    """Finish all unfinished moves.

    For example those whose process has died.
    """
    with closing(_open_cells(directory, store)) as opened:
        count = opened.resume_moves()
    _say(json, f"{quantity(count, 'move')} finished", finished=count)


def rebalance(
    most: Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of users to move.")] = 1_000,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Move users until the cells are filled by their weights.

    First finishes unfinished moves, and moves all users out of draining cells. Prints each moved user,
    and on standard error the number of moved users.
    """
    with closing(_open_cells(directory, store)) as opened, progress(counted=False) as display:
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


def _move(each: Move) -> dict[str, Any]:
    return {"user": to_json(each.user), "from": each.source, "to": each.target}


def _shown(each: Move) -> str:
    return f"{as_word(each.user)}: {each.source} -> {each.target}"


def _print_move(json: bool, each: Move) -> None:
    _say(json, _shown(each), **_move(each))


def _say(json: bool, text: str, **fields: Any) -> None:
    if json:
        print_json(fields)
    else:
        say(text)
