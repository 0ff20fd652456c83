"""`cq aside`: failed updates and reports, which were set aside."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

from cq.cli.queues.manage import Yes, config_of, confirm
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, Queue, argument
from cq.cli.shared.output import as_word, print_json, quantity, say
from cq.cli.shared.table import ShownColumn
from cq.config.queue import QueueConfig
from cq.encoding.codec import KeyType
from cq.encoding.json_values import key_from_word, to_json
from cq.errors import NotInStore
from cq.failure import KeyFailure
from cq.plain_text import utc_time
from cq.queue.requests import is_request
from cq.queue.set_aside import ANY, drop_aside, each_aside, failures_by_key, read_aside, retry_aside

Key = Annotated[str | None, argument("KEY", "One key. Default: all keys.")]
_COLUMNS: Final = (  # of rows of a key, the number of its updates, and its failure
    ShownColumn("key", lambda row: _shown(row[0]), is_number=False),
    ShownColumn("updates", lambda row: row[1]),
    ShownColumn("tries", lambda row: row[2].tries),
    ShownColumn("latest", lambda row: _time(row[2].last), is_number=False),
    ShownColumn("error", lambda row: row[2].error, is_number=False),
)
commands = CommandSet("aside", "Show, retry or drop failed updates and missed reports.")


@commands.command("list", examples=["cq aside list words"])
def show_list(options: Options, queue: Queue) -> None:
    """List the keys whose updates or reports were set aside.

    For each key: the number of updates, and the error with the number of failed tries and the time of the latest.
    With --json one line per key.
    """
    db = options.read_store()
    found = failures_by_key(each_aside(db, queue))
    keys = config_of(db, queue).key
    rows = [(_key(keys, encoded), count, failure) for encoded, (failure, count) in found.items()]
    options.print_list(
        rows,
        _COLUMNS,
        f"nothing is set aside in queue {queue!r}",
        lambda row: {"key": to_json(row[0]), "updates": row[1], **_facts(row[2])},
    )


@commands.command("show", examples=["cq aside show words hello --json"])
def show(options: Options, queue: Queue, key: Key = None) -> None:
    """Show the updates set aside, with the error.

    They are in commit order, and with the lines of the application's code that were running. A request to a decider is
    its ticket and its content.
    With --json one line per piece: the updates set aside together, the failed combiner or
    observer with its version, the frames of the application's code, times of the first and the latest try in seconds
    since 1970, the number of tries, and the worker of the latest one.
    """
    db = options.read_store()
    pieces = each_aside(db, queue, _wanted(db, queue, key))
    config, each = config_of(db, queue), None
    for each in pieces:
        decoded, updates = _key(config.key, each.encoded_key), [_update(config, one) for one in each.updates]
        if options.json:
            print_json({"key": to_json(decoded), **_facts(each.failure), "updates": updates})
        else:
            say(f"{_shown(decoded)}: {each.error}")
            for line in _about(each.failure):
                say(f"    {line}")
            for update in updates:
                say(f"  {as_word(update)}")
    if each is None and not options.json:
        of_key = "" if key is None else f" of key {key!r}"
        say(f"nothing is set aside{of_key} in queue {queue!r}")


@commands.command("retry", examples=["cq aside retry words hello"])
def retry(options: Options, queue: Queue, key: Key = None) -> None:
    """Add the updates set aside to the queue again.

    Run it after you have repaired the cause. The updates lose their place in the commit order. Reports that observers
    missed are retried, too: each observer receives the values whose
    reports it missed.
    """
    db = options.open_store()
    wanted = wanted_aside(db, queue, key)
    count = retry_aside(db, queue, wanted)
    options.answer(retried(queue, count), queue=queue, added=count)


@commands.command("drop", examples=["cq aside drop words hello", "cq aside drop words --yes"])
def drop(options: Options, queue: Queue, key: Key = None, yes: Yes = False) -> None:
    """Drop the updates set aside: they will never count.

    Missed reports are dropped, too: their observers receive the key with its next update.
    """
    db = options.open_store()
    wanted = wanted_aside(db, queue, key)
    of_key = "" if key is None else f" of key {key!r}"
    confirm(f"drop everything that was set aside{of_key} in queue {queue!r}?", yes)
    count = drop_aside(db, queue, wanted)
    options.answer(dropped(queue, count), queue=queue, dropped=count)


def retried(queue: str, count: int) -> str:
    """The result of a retry of so many updates and reports."""
    what = quantity(count, "update or missed report", "updates and missed reports")
    return f"retried {what} of queue {queue!r}"


def dropped(queue: str, count: int) -> str:
    """The result of dropping so many pieces."""
    return f"dropped {quantity(count, 'piece')} of queue {queue!r}"


def _wanted(db: Any, queue: str, word: str | None) -> Any:
    """The key that a word stands for, `ANY` without a word."""
    return ANY if word is None else key_from_word(config_of(db, queue).key, word)


def wanted_aside(db: Any, queue: str, word: str | None) -> Any:
    """The key that a word stands for, `ANY` without a word; raises `NotInStore` if nothing of the key was set aside."""
    wanted = _wanted(db, queue, word)
    if word is not None and not db.transact(partial(read_aside, name=queue, key=wanted, limit=1)):
        raise NotInStore(
            f"nothing was set aside of key {word!r} in queue {queue!r}: see `cq aside list {queue}`"
        )
    return wanted


def _update(config: QueueConfig, update: Any) -> Any:
    """The JSON of an update; of a request the ticket as text, as in errors and for `answer`, and the content."""
    if config.decider is not None and is_request(update):
        return [update[0].hex(), to_json(update[1])]
    return to_json(update)


def _key(keys: KeyType, encoded: bytes) -> Any:
    """The decoded key; None for an unreadable row, which does not reveal its key."""
    return keys.decode(encoded) if encoded else None


def _facts(failure: KeyFailure) -> dict[str, Any]:
    """The fields of a failure, for programs."""
    names = ("error", "code", "trace", "worker", "first", "last", "tries")
    return {name: to_json(getattr(failure, name)) for name in names}


def _about(failure: KeyFailure) -> list[str]:
    """The frames of a failure, its code, and its tries, as lines."""
    times = _time(failure.first)
    if failure.last != failure.first:
        times += f" to {_time(failure.last)}"
    parts = [failure.code, f"{failure.tries:,} failed {'try' if failure.tries == 1 else 'tries'}", times]
    return [*failure.trace, "; ".join(part for part in [*parts, failure.worker] if part)]


def _time(seconds: float) -> str:
    return utc_time(seconds) if seconds else ""


def _shown(key: Any) -> str:
    return "(an unreadable row)" if key is None else as_word(key)
