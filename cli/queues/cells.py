"""`cq cells`: the directory of cells, and the cell of each user."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final

import typer

from cq.cells.ask_all import gather
from cq.cells.cells import Cells, Move
from cq.cells.directory import checked_settings
from cq.cells.move import users_being_deleted
from cq.cli.queues.manage import Yes, confirm
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, argument, flag, option, option_set
from cq.cli.shared.output import as_word, json_text, note, progress, quantity
from cq.cli.shared.table import ShownColumn
from cq.encoding.json_values import to_json
from cq.errors import CorruptData, InvalidConfiguration, UserNotPlaced
from cq.store import open_exactly

Cell = Annotated[str, argument("CELL", "Name of the cell.")]
User = Annotated[
    str, argument("USER", "Id of the user: an integer, or text (text of digits in double quotes).")
]


@option_set
class CellsOptions(Options):
    """The options of all commands of cells."""

    directory: str | None = option(
        "URL",
        "URL of the store with the directory. Default: the store of --store.",
        "--directory",
        envvar="CQ_DIRECTORY",
    )

    @property
    def url(self) -> str | None:
        """The URL of the store with the directory."""
        return self.directory or self.store


_COLUMNS: Final = (
    ShownColumn("cell", lambda each: each.name, is_number=False),
    ShownColumn("users", lambda each: f"{each.users:,}"),
    ShownColumn("limit", lambda each: "" if each.max_users is None else f"{each.max_users:,}"),
    ShownColumn("weight", lambda each: each.weight),
    ShownColumn("state", lambda each: each.closed or each.state, is_number=False),
    ShownColumn("url", lambda each: each.url, is_number=False),
    ShownColumn("web", lambda each: each.web, is_number=False),
)
_CELL_SECONDS: Final = 2.0
"""How long a list waits for the cells."""
commands = CommandSet("cells", "Distribute users over many stores.")


@commands.command("list", examples=["cq cells list", "cq cells list --json"])
def show(options: CellsOptions) -> None:
    """List the cells, and unfinished moves and deletions.

    For each cell: the number of its users, their limit, weight, state and URL. The state says why a cell takes no new
    users. With --json one line per cell, then one line per move, then one per deletion.
    """
    with Cells(options.read_store(), opener=partial(open_exactly, read_only=True)) as opened:
        found, moves = opened.cells(), list[Move]()
        try:
            moves.extend(opened.moves())
        except (CorruptData, UserNotPlaced) as error:
            note(f"the move of a user is not known: {error}")
        deletions = gather(
            opened, users_being_deleted, names=[each.name for each in found], timeout=_CELL_SECONDS
        )
    options.print_list(
        found,
        _COLUMNS,
        empty="no cells: add one with `cq cells add NAME URL`",
        as_json=lambda each: {"cell": (row := asdict(each)).pop("name"), **row, "closed": each.closed},
    )
    for move in moves:
        _print_move(options, move, "under way: ")
    for cell, users in deletions.answers.items():
        for user in users:
            options.answer(
                f"under way: {_word(user)}: deleted from {cell}", user=to_json(user), deleted_from=cell
            )
    for cell, why in deletions.missing.items():
        note(f"deletions in {cell} are not known: {why}")
    if (moves or any(deletions.answers.values())) and not options.json:
        note("`cq cells resume` finishes moves and deletions whose process has died")


@commands.command(
    "add",
    examples=[
        "cq cells add eu-1 fdb:/etc/foundationdb/eu-1.cluster",
        "cq cells add small embedded:small.db --weight 1 --web https://small.example.com",
    ],
)
def add(
    options: CellsOptions,
    cell: Cell,
    url: Annotated[
        str, argument("URL", "URL of the store: embedded:PATH, fdb: or fdb:/path/to/fdb.cluster.")
    ],
    weight: Annotated[
        int | None,
        option(
            "NUMBER", "Capacity in proportion to the other cells, 1 to 1,000,000. Default: unchanged, or 1."
        ),
    ] = None,
    web: Annotated[
        str | None,
        option("URL", "Address of its web servers, to which routers redirect requests of its users."),
    ] = None,
) -> None:
    """Add a cell, or change the URL, weight or web address of a cell.

    From then on the store at the URL belongs to this cell of this directory only. The store of a new cell is created if
    it does not exist. The directory stores absolute paths: they must be valid on every machine that uses the directory.
    """
    checked_settings(cell, url, weight, web)  # before the store of the directory is created
    with Cells(options.make_store()) as opened:
        opened.add_cell(cell, url, weight=weight, web=web)
        (added,) = (each for each in opened.cells() if each.name == cell)
    options.answer(f"{cell}: added", cell=cell, weight=added.weight)


@commands.command("drain", examples=["cq cells drain eu-1", "cq cells drain eu-1 --undo"])
def drain(
    options: CellsOptions,
    cell: Cell,
    undo: Annotated[bool, flag("--undo", "Accept new users again.")] = False,
) -> None:
    """Stop placing users in a cell.

    `cq cells rebalance` then moves its users to other cells.
    """
    with Cells(options.open_store()) as opened:
        opened.drain_cell(cell, draining=not undo)
    state = "open" if undo else "draining"
    options.answer(f"{cell}: {state}", cell=cell, state=state)


@commands.command("limit", examples=["cq cells limit eu-1 50000", "cq cells limit eu-1"])
def limit(
    options: CellsOptions,
    cell: Cell,
    users: Annotated[
        int | None, argument("USERS", "Maximum number of users. Default: no limit.", min=0)
    ] = None,
) -> None:
    """Limit the users of a cell.

    A full cell takes no new users, and no moves, until users leave. If it already has more users, `cq cells rebalance`
    moves some of them.
    """
    with Cells(options.open_store()) as opened:
        opened.limit_cell(cell, users)
    text = "no limit" if users is None else f"at most {quantity(users, 'user')}"
    options.answer(f"{cell}: {text}", cell=cell, max_users=users)


@commands.command("load", examples=["cq cells load eu-1 0.85", "cq cells load eu-1"])
def load(
    options: CellsOptions,
    cell: Cell,
    number: Annotated[
        float | None, argument("NUMBER", "Load, in the unit of the weight. Default: count the users.", min=0)
    ] = None,
) -> None:
    """Report the load of a cell, for new users.

    The load is for example the used share of its disk. New users go to the cell with the least load in proportion to
    its weight. A cell whose load has reached its weight is full. Report the loads of all cells, again and again: cq
    does not measure them.
    """
    with Cells(options.open_store()) as opened:
        opened.report_load(cell, number)
    options.answer(f"{cell}: {'no load' if number is None else f'load {number:g}'}", cell=cell, load=number)


@commands.command("fill", examples=["cq cells fill newest", "cq cells fill emptiest"])
def fill(
    options: CellsOptions,
    which: Annotated[
        str,
        argument(
            "WHICH", "`emptiest`: the least full cell, or `newest`: the last one added that is not full."
        ),
    ],
) -> None:
    """Say which cell new users fill."""
    with Cells(options.open_store()) as opened:
        opened.fill(which)
    options.answer(f"new users go to the {which} cell", fill=which)


@commands.command("place", examples=["cq cells place ada grace"])
def place(
    options: CellsOptions,
    users: Annotated[
        list[str], argument("USER", "Ids of users: integers, or text (text of digits in double quotes).")
    ],
) -> None:
    """Place users in the cells that take new users.

    `cq cells fill` says which. Prints the cell of each user. A user with a cell stays in that cell.
    """
    with Cells(options.open_store()) as opened:
        for user in map(_user, users):
            cell = opened.place(user)
            options.answer(f"{_word(user)}: {cell}", user=user, cell=cell)


@commands.command("move", examples=["cq cells move ada eu-2"])
def move_user(options: CellsOptions, user: User, cell: Cell) -> None:
    """Move a user to another cell.

    Returns when the data are in the new cell and cleared in the old one.
    """
    with Cells(options.open_store()) as opened:
        before = opened.locate(_user(user)).cell
        opened.move(_user(user), cell)
    _print_move(options, Move(_user(user), before, cell))


@commands.command("names", examples=["cq cells names 7", "cq cells names 7 email:ada@example.com --release"])
def names(
    options: CellsOptions,
    user: User,
    claimed: Annotated[
        list[str] | None,
        argument("NAME", "Second names, such as login:ada, that the user claims. Default: show the names."),
    ] = None,
    release: Annotated[bool, flag("--release", "Free these names instead.")] = False,
    rename: Annotated[
        str | None, option("NAME", "Replace this name by the one given, in one transaction.")
    ] = None,
) -> None:
    """Show, claim, free or change the second names of a user.

    No two users have the same name. Prints the names of the user.
    """
    who, given = _user(user), claimed or []
    with Cells(options.open_store()) as opened:
        if release and not given:
            raise InvalidConfiguration("expected the names to free with --release")
        if rename is not None:
            if release or len(given) != 1:
                raise InvalidConfiguration("expected one new name with --rename")
            opened.names.rename(who, rename, given[0])
        elif given:
            (opened.names.release if release else opened.names.claim)(who, *given)
        found = opened.names.of(who)
    for name in found:
        options.answer(as_word(name), user=who, name=name)
    if not found:
        note(f"{_word(who)} has no names")


@commands.command("find", examples=["cq cells find email:ada@example.com"])
def find(options: CellsOptions, name: Annotated[str, argument("NAME", "Second name of a user.")]) -> None:
    """Print the id of the user who has a second name.

    The exit status is 1 if nobody has it.
    """
    with Cells(options.read_store()) as opened:
        user = opened.names.find(name)
    if user is None:
        note(f"nobody has the name {name!r}")
        raise typer.Exit(1)
    options.answer(_word(user), user=to_json(user), name=name)


@commands.command("delete", examples=["cq cells delete ada --yes"])
def delete_user(
    options: CellsOptions,
    user: User,
    yes: Yes = False,
    keep_names: Annotated[bool, flag("--keep-names", "Nobody else can claim the second names.")] = False,
) -> None:
    """Delete a user with all data, for ever.

    The id cannot be used again, but others can claim the second names. What queues have counted stays counted. If the
    command was killed, repeat it, or use `cq cells resume`.
    """
    confirm(f"delete user {user!r} with all data?", yes)
    with Cells(options.open_store()) as opened:
        opened.delete(_user(user), keep_names=keep_names)
    options.answer(f"{_word(_user(user))}: deleted", user=_user(user))


@commands.command("resume", examples=["cq cells resume"])
def resume(options: CellsOptions) -> None:
    """Finish all unfinished moves and deletions.

    For example those whose process has died.
    """
    with Cells(options.open_store()) as opened:
        try:
            deleted = opened.resume_deletions()
        finally:  # a cell without a store, whose deletions are not known, stops no moves
            count = opened.resume_moves()
    text = f"{quantity(count, 'move')} finished" + ((deleted and f", {quantity(deleted, 'deletion')}") or "")
    options.answer(text, finished=count, deleted=deleted)


@commands.command("rebalance", examples=["cq cells rebalance", "cq cells rebalance --most 100 --json"])
def rebalance(
    options: CellsOptions,
    most: Annotated[int, option("NUMBER", "Maximum number of users to move.", min=0)] = 1_000,
) -> None:
    """Move users until the cells are filled by their weights.

    First finishes unfinished moves, and moves all users out of draining cells and those above a limit. Prints each
    moved user, and on standard error the number of moved users, and whether it ended because all cells are closed.
    """
    with Cells(options.open_store()) as opened, progress(counted=False) as display:
        task, number = display.add_task("moving users"), 0
        for each in opened.rebalance(most):
            number += 1
            display.update(task, description=f"{quantity(number, 'user')} moved")
            _print_move(options, each)
        is_closed = all(each.closed for each in opened.cells())
    why = ": no cell takes users, see `cq cells list`" if is_closed else ""
    note(f"{quantity(number, 'user')} moved{why}")


def _user(word: str) -> Any:
    """The user id that a word of the command line stands for: an integer, or text."""
    try:
        found = json_module.loads(word)
    except ValueError:
        return word
    return found if type(found) in (int, str) else word


def _word(user: Any) -> str:
    """A user's id for people, and for the command line: `_user` understands it."""
    word = as_word(user)
    return json_text(user) if type(user) is str and _user(word) != user else word


def _print_move(options: Options, each: Move, before: str = "") -> None:
    fields = {"user": to_json(each.user), "from": each.source, "to": each.target}
    options.answer(f"{before}{_word(each.user)}: {each.source} -> {each.target}", **fields)
