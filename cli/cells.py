"""`cq cells`: the directory of cells, and where its users are."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any

import typer

from cq.cells import Cells, Move
from cq.cli.options import Json, Store, make_store, open_store, read_store
from cq.cli.output import as_word, note, print_json, print_table, progress, quantity, say
from cq.jsonvalues import to_json
from cq.store import OpenDatabase

Directory = Annotated[
    str | None,
    typer.Option(
        "--directory",
        metavar="URL",
        envvar="CQ_DIRECTORY",
        help="The store that has the directory; the one of --store if left out.",
    ),
]
Cell = Annotated[str, typer.Argument(metavar="CELL", help="The cell's name.")]
User = Annotated[
    str,
    typer.Argument(metavar="USER", help="The user's id: an integer, or text (of digits: in double quotes)."),
]

cells = typer.Typer(help="Keep users in many stores, and move them between these.", no_args_is_help=True)


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
    """Print all cells with their numbers of users, and the moves that are under way.

    With --json a line for each cell, then one for each move.
    """
    with closing(_opened(directory, store, read_store)) as found:
        rows, moves = found.cells(), list(found.moves())
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
        note("`cq cells resume` goes on with moves whose process has died")


def add(
    cell: Cell,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="embedded:PATH, fdb: or fdb:/path/to/fdb.cluster.")
    ],
    weight: Annotated[
        int, typer.Option(metavar="N", help="How much room there is compared with other cells.")
    ] = 1,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Add a cell, or give one that there is another URL or weight.

    The store at the URL is that cell of this directory from then on, and no other one. Paths are kept in full: they
    must be the same wherever the directory is used.
    """
    with closing(_opened(directory, store, make_store)) as found:
        found.add_cell(cell, url, weight=weight)
    _say(json, f"{cell}: added", cell=cell, weight=weight)


def drain(
    cell: Cell,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take users again.")] = False,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Have a cell take no more users; `cq cells rebalance` then moves its users elsewhere."""
    with closing(_opened(directory, store)) as found:
        found.drain_cell(cell, draining=not undo)
    state = "open" if undo else "draining"
    _say(json, f"{cell}: {state}", cell=cell, state=state)


def place(
    users: Annotated[
        list[str],
        typer.Argument(
            metavar="USER", help="The users' ids: integers, or text (of digits: in double quotes)."
        ),
    ],
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Put users into the cells that are least full, and print which; users who are in one already stay there."""
    with closing(_opened(directory, store)) as found:
        for user in map(_user, users):
            cell = found.place(user)
            _say(json, f"{as_word(user)}: {cell}", user=user, cell=cell)


def move_user(
    user: User, cell: Cell, directory: Directory = None, store: Store = None, json: Json = False
) -> None:
    """Move a user to another cell; returns when the data are there, and cleared where they were."""
    with closing(_opened(directory, store)) as found:
        before = found.locate(_user(user)).cell
        found.move(_user(user), cell)
    _print_move(json, Move(_user(user), before, cell))


def resume(directory: Directory = None, store: Store = None, json: Json = False) -> None:
    """Go on with all moves that are under way, such as those whose process has died."""
    with closing(_opened(directory, store)) as found:
        count = found.resume_moves()
    _say(json, f"{quantity(count, 'move')} finished", finished=count)


def rebalance(
    most: Annotated[int, typer.Option(min=0, metavar="N", help="How many users to move at most.")] = 1_000,
    directory: Directory = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Finish moves under way, empty the cells that are being drained, and even out the others by their weights.

    Prints each user who was moved, and on standard error how many users were moved.
    """
    with closing(_opened(directory, store)) as found, progress(counted=False) as display:
        task, number = display.add_task("moving users"), 0
        for each in found.rebalance(most):
            number += 1
            display.update(task, description=f"{quantity(number, 'user')} moved")
            _print_move(json, each)
    note(f"{quantity(number, 'user')} moved")


def _opened(
    directory: str | None, store: str | None, opener: Callable[[str | None], OpenDatabase] = open_store
) -> Cells:
    return Cells(opener(directory or store))


def _user(word: str) -> Any:
    """The user's id that a word stands for."""
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
