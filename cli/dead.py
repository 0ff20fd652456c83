"""`cq aside`: updates and reports that were set aside because they failed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from cq.cli.options import Json, Queue, Store, open_store, read_store
from cq.cli.output import as_word, print_json, print_table, quantity, say
from cq.cli.shape import Yes, confirm
from cq.config import read_config
from cq.errors import InvalidData
from cq.jsonvalues import key_from_word, to_json
from cq.setaside import ANY, Aside, drop_aside, read_aside, retry_aside

Key = Annotated[str | None, typer.Argument(metavar="KEY", help="One key; all of them if left out.")]
aside = typer.Typer(
    help="Show, retry or drop what was set aside: updates that could not be combined or reported, and reports that "
    "observers missed.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    aside.command("list", epilog="Example: cq aside list words")(show_list)
    aside.command("show", epilog="Example: cq aside show words hello --json")(show)
    aside.command("retry", epilog="Example: cq aside retry words hello")(retry)
    aside.command("drop", epilog="Examples: cq aside drop words hello; cq aside drop words --yes")(drop)
    app.add_typer(aside, name="aside")
    app.add_typer(aside, name="dead", hidden=True)  # the former name, for scripts


def show_list(queue: Queue, store: Store = None, json: Json = False) -> None:
    """List the keys with how many updates were set aside, and the error. With --json a line for each."""
    db = read_store(store)
    found: dict[Any, tuple[str, int]] = {}
    for each in db.transact(partial(read_aside, name=queue)):
        found[each.encoded_key] = each.error, found.get(each.encoded_key, ("", 0))[1] + len(each.updates)
    shown = [(_key(db, queue, encoded), count, error) for encoded, (error, count) in found.items()]
    if json:
        for key, count, error in shown:
            print_json({"key": to_json(key), "updates": count, "error": error})
    else:
        print_table(
            ["key", "updates", "error"], [(_shown(key), *rest) for key, *rest in shown], right=["updates"]
        )


def show(queue: Queue, key: Key = None, store: Store = None, json: Json = False) -> None:
    """Show the updates that were set aside, in commit order, with the error. With --json a line for each piece."""
    db = read_store(store)
    pieces: Sequence[Aside] = db.transact(partial(read_aside, name=queue, key=_wanted(db, queue, key)))
    for each in pieces:
        decoded, updates = _key(db, queue, each.encoded_key), [to_json(update) for update in each.updates]
        if json:
            print_json({"key": to_json(decoded), "error": each.error, "updates": updates})
        else:
            say(f"{_shown(decoded)}: {each.error}")
            for update in updates:
                say(f"  {as_word(update)}")


def retry(queue: Queue, key: Key = None, store: Store = None, json: Json = False) -> None:
    """Add updates again that were set aside, once the cause is repaired, and retry reports that observers missed.

    The updates lose their place in the commit order. Each observer receives the values of which it missed a report.
    """
    db = open_store(store)
    count = retry_aside(db, queue, _found(db, queue, key))
    if json:
        print_json({"queue": queue, "added": count})
    else:
        what = "update or missed report" if count == 1 else "updates and missed reports"
        say(f"retried {count:,} {what} of queue {queue!r}")


def drop(queue: Queue, key: Key = None, yes: Yes = False, store: Store = None, json: Json = False) -> None:
    """Forget what was set aside: its updates will never count.

    Observers that missed a report of a key receive the key with its next update.
    """
    db = open_store(store)
    wanted = _found(db, queue, key)
    of_key = "" if key is None else f" of key {key!r}"
    confirm(f"forget what was set aside{of_key} in queue {queue!r}?", yes)
    count = drop_aside(db, queue, wanted)
    if json:
        print_json({"queue": queue, "dropped": count})
    else:
        say(f"dropped {quantity(count, 'piece')} of queue {queue!r}")


def _wanted(db: Any, queue: str, word: str | None) -> Any:
    if word is None:
        return ANY
    config = db.transact(lambda tr: read_config(tr.snapshot, queue))
    return key_from_word(config.key, word)


def _found(db: Any, queue: str, word: str | None) -> Any:
    """As `_wanted`; raises `InvalidData` for a key of which nothing was set aside."""
    wanted = _wanted(db, queue, word)
    if word is not None and not db.transact(partial(read_aside, name=queue, key=wanted, limit=1)):
        raise InvalidData(
            f"nothing was set aside of key {word!r} in queue {queue!r}: see `cq aside list {queue}`"
        )
    return wanted


def _key(db: Any, queue: str, encoded: bytes) -> Any:
    """The key, None for rows that cannot be read."""
    if not encoded:
        return None
    return db.transact(lambda tr: read_config(tr.snapshot, queue)).key.decode(encoded)


def _shown(key: Any) -> str:
    return "(a row that cannot be read)" if key is None else as_word(key)
