"""`cq aside`: failed updates and reports, which were set aside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from cq.cli.queues.manage import Yes, confirm
from cq.cli.shared.exit_status import refusable
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Json, Queue, Store, argument, open_store, read_store
from cq.cli.shared.output import answer, as_word, print_json, print_table, quantity, say
from cq.config.queue import read_config
from cq.encoding.json_values import key_from_word, to_json
from cq.errors import NotInStore
from cq.queue.set_aside import ANY, Aside, drop_aside, read_aside, retry_aside

Key = Annotated[str | None, argument("KEY", "One key. Default: all keys.")]
commands = CommandSet("aside", "Show, retry or drop failed updates and missed reports.")


@commands.command("list", examples=["cq aside list words"])
def show_list(queue: Queue, store: Store = None, json: Json = False) -> None:
    """List the keys whose updates or reports were set aside.

    For each key: the number of updates and the error. With --json one line per key.
    """
    db = read_store(store)
    counts: dict[Any, tuple[str, int]] = {}
    for each in db.transact(partial(read_aside, name=queue)):
        counts[each.encoded_key] = each.error, counts.get(each.encoded_key, ("", 0))[1] + len(each.updates)
    rows = [(_key(db, queue, encoded), count, error) for encoded, (error, count) in counts.items()]
    if json:
        for key, count, error in rows:
            print_json({"key": to_json(key), "updates": count, "error": error})
    elif not rows:
        say(f"nothing is set aside in queue {queue!r}")
    else:
        print_table(
            ["key", "updates", "error"], [(_shown(key), *rest) for key, *rest in rows], right=["updates"]
        )


@commands.command("show", examples=["cq aside show words hello --json"])
def show(queue: Queue, key: Key = None, store: Store = None, json: Json = False) -> None:
    """Show the updates set aside, with the error.

    They are in commit order. With --json one line per piece: the updates set aside together.
    """
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


@commands.command("retry", examples=["cq aside retry words hello"])
def retry(queue: Queue, key: Key = None, store: Store = None, json: Json = False) -> None:
    """Add the updates set aside to the queue again.

    Run it after you have repaired the cause. The updates lose their place in the commit order. Reports that observers
    missed are retried, too: each observer receives the values whose
    reports it missed.
    """
    db = open_store(store)
    wanted = _found(db, queue, key)
    with refusable():
        count = retry_aside(db, queue, wanted)
    what = "update or missed report" if count == 1 else "updates and missed reports"
    answer(json, f"retried {count:,} {what} of queue {queue!r}", queue=queue, added=count)


@commands.command("drop", examples=["cq aside drop words hello", "cq aside drop words --yes"])
def drop(queue: Queue, key: Key = None, yes: Yes = False, store: Store = None, json: Json = False) -> None:
    """Drop the updates set aside: they will never count.

    Missed reports are dropped, too: their observers receive the key with its next update.
    """
    db = open_store(store)
    wanted = _found(db, queue, key)
    of_key = "" if key is None else f" of key {key!r}"
    confirm(f"drop everything that was set aside{of_key} in queue {queue!r}?", yes)
    with refusable():
        count = drop_aside(db, queue, wanted)
    answer(json, f"dropped {quantity(count, 'piece')} of queue {queue!r}", queue=queue, dropped=count)


def _wanted(db: Any, queue: str, word: str | None) -> Any:
    """The key that a word stands for, `ANY` without a word."""
    if word is None:
        return ANY
    config = db.transact(lambda tr: read_config(tr.snapshot, queue))
    return key_from_word(config.key, word)


def _found(db: Any, queue: str, word: str | None) -> Any:
    """As `_wanted`; raises `InvalidData` if no update or report of the key was set aside."""
    wanted = _wanted(db, queue, word)
    if word is not None and not db.transact(partial(read_aside, name=queue, key=wanted, limit=1)):
        raise NotInStore(
            f"nothing was set aside of key {word!r} in queue {queue!r}: see `cq aside list {queue}`"
        )
    return wanted


def _key(db: Any, queue: str, encoded: bytes) -> Any:
    """The decoded key, None for an unreadable row."""
    if not encoded:  # an unreadable row does not reveal its key
        return None
    return db.transact(lambda tr: read_config(tr.snapshot, queue)).key.decode(encoded)


def _shown(key: Any) -> str:
    return "(an unreadable row)" if key is None else as_word(key)
