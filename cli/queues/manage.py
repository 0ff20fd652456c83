"""`cq rebucket`, `cq purge`, `cq delete`, `cq limit` and `cq drain`: operations on whole queues."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from cq import admin
from cq.admin.levels import with_levels as configs_with_levels
from cq.admin.purging import purging_buckets
from cq.admin.queue_status import is_drained
from cq.cli.queues.waiting import POLL_SECONDS, AwaitedWork, queued, wait_for_workers
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, Queue, duration_option, flag, option
from cq.cli.shared.output import limits, note, quantity, with_levels
from cq.config.flags import read_flags
from cq.config.queue import QueueConfig, read_config
from cq.errors import InvalidConfiguration
from cq.keys import QueueKeys
from cq.plain_text import printable
from cq.queue.limits import read_full
from cq.store import OpenDatabase
from cq.store.api import Transaction
from cq.store.sizes import count_rows
from cq.store.transact import transact

Yes = Annotated[bool, flag("--yes", "Do not ask for confirmation.")]
Wait = Annotated[bool, flag("--wait/--no-wait", "Wait until workers have finished.")]


commands = CommandSet()


@commands.command("rebucket", examples=["cq rebucket words --buckets 64"])
def rebucket(
    options: Options,
    queue: Queue,
    buckets: Annotated[
        int, option("NUMBER", "Number of buckets, 1 to 4,096: the number of passes that can run at once.")
    ],
    wait: Wait = True,
) -> None:
    """Change the number of buckets of a queue and of its levels.

    The queue stays in use, and no update is lost, repeated or reordered. Workers drain the old buckets, and then
    continue with the new ones. Current values do not move.
    """
    db = options.open_store()
    config = admin.rebucket(db, queue, buckets)
    if wait:
        after = f"workers drain the former buckets of queue {queue!r}; `cq status {queue}` shows it"
        awaited = AwaitedWork(queue, "drain the former buckets of", lambda found: _former(db, queue), after)
        wait_for_workers(db, awaited, lambda: not _former(db, queue))
    text = with_levels(f"queue {queue!r} has {quantity(buckets, 'bucket')}", config.level_names)
    options.answer(
        text + ("" if wait else ": workers drain the former ones"), queue=queue, **config.settings()
    )


@commands.command("purge", examples=["cq purge words --yes"])
def purge(options: Options, queue: Queue, yes: Yes = False, wait: Wait = True) -> None:
    """Delete all values and queued updates of a queue and its levels.

    Updates added from now on count. Workers do the deletion, and report each deleted key to the observers: a
    top and an exported table follow.
    """
    db = options.open_store()
    config = config_of(db, queue)
    confirm(f"delete all values of {_named(config)}?", yes)
    admin.purge(db, queue)
    if wait:
        after = (
            f"workers finish the purge of queue {queue!r}; another `cq purge` would delete later updates, too"
        )
        awaited = AwaitedWork(
            queue, "purge", lambda found: quantity(purging_buckets(db, queue), "bucket"), after
        )
        wait_for_workers(db, awaited, lambda: not purging_buckets(db, queue))
    _print_done(options, config, "purged" if wait else "being purged")


@commands.command("delete", examples=["cq delete words --yes"])
def delete(options: Options, queue: Queue, yes: Yes = False) -> None:
    """Delete a queue with all its data.

    These are its values, queued updates, updates set aside, top, cloud and configuration, and its levels. A table that
    it was exported to stays. Adds fail from now on.
    """
    db = options.open_store()
    config = config_of(db, queue)
    confirm(f"delete {_named(config)} with all data?", yes)
    admin.delete(db, queue)
    _print_done(options, config, "deleted")


@commands.command(
    "limit",
    examples=["cq limit words", "cq limit words --max-age 10m --max-bytes 1GB", "cq limit words --none"],
)
def limit(
    options: Options,
    queue: Queue,
    max_age: Annotated[
        float | None, duration_option("Maximum age of queued updates: 90s, 10m, 2h ... Default: no limit.")
    ] = None,
    max_bytes: Annotated[
        str | None,
        option("SIZE", "Approximate maximum size of all queued updates: 500MB, 1GB ... Default: no limit."),
    ] = None,
    when_full: Annotated[
        str | None,
        option(
            "MODE", "Effect on adds to a full queue: raise (an error; the default) or admit (the updates)."
        ),
    ] = None,
    none: Annotated[bool, flag("--none", "Remove the limits.")] = False,
) -> None:
    """Show or set the limits of the queued updates of a queue.

    It shows the limits in force, and whether the queue is full. With options an omitted limit is removed. Workers and
    callers of `add` notice within two seconds that a queue becomes full, or is no longer full. The updates queued in
    its levels count, too: a limit is for the queue and its levels together, and levels have none alone.
    """
    is_set = max_age is not None or max_bytes is not None
    if when_full is not None and not is_set:
        raise typer.BadParameter("--when-full needs --max-age, --max-bytes or both")
    if none and is_set:
        raise typer.BadParameter("give either --none or the limits")
    db = options.open_store() if none or is_set else options.read_store()
    if none or is_set:
        admin.limit(db, queue, max_age=max_age, max_bytes=max_bytes, when_full=when_full or "raise")
    _print_limits(db, options, queue)


@commands.command("drain", examples=["cq drain words --timeout 1m"])
def drain(
    options: Options,
    queue: Queue,
    timeout: Annotated[
        float | None, duration_option("Give up after this time, with exit status 1. Default: wait forever.")
    ] = None,
) -> None:
    """Wait until no updates of a queue and its levels are queued.

    It waits for a moment at which all of these are empty. `cq worker --drain` combines the updates itself.
    """
    db = options.read_store()
    config = config_of(db, queue)
    deadline = None if timeout is None else time.monotonic() + timeout
    after = f"the updates of queue {queue!r} stay queued until workers combine them"
    awaited = AwaitedWork(queue, "combine the queued updates of", queued, after)
    wait_for_workers(db, awaited, lambda: is_drained(db, queue, POLL_SECONDS), deadline)
    _print_done(options, config, "drained")


def _print_limits(db: OpenDatabase, options: Options, queue: str) -> None:
    levels = config_of(db, queue).level_names
    flags, full = db.transact(lambda tr: (read_flags(tr.snapshot, queue), read_full(tr.snapshot, queue)))
    what = limits(flags.max_seconds, flags.max_bytes, flags.when_full)
    reason = full.reason if full else ""
    text = with_levels(f"queue {queue!r}: {what or 'no limits'}", levels)
    text += f"; full: {reason}" if reason else ""
    options.answer(
        text,
        queue=queue,
        max_seconds=flags.max_seconds,
        max_bytes=flags.max_bytes,
        when_full=flags.when_full,
        full=reason,
        levels=levels,
    )


def config_of(db: Any, queue: str) -> QueueConfig:
    """The configuration of a queue; raises `QueueNotConfigured`."""
    return transact(db, lambda tr: read_config(tr.snapshot, queue))


def _former(db: Any, queue: str) -> str:
    """The former buckets of a queue and its levels, with their rows, as text; empty without any."""

    def read(tr: Transaction) -> str:
        configs = configs_with_levels(tr.snapshot, read_config(tr.snapshot, queue))
        shapes = [(QueueKeys(each.name), each.former) for each in configs if each.former]
        sizes = [
            count_rows(tr.snapshot, *keys.of_generation(former.generation).rows) for keys, former in shapes
        ]
        about = "" if all(each.exact for each in sizes) else "about "
        rows = quantity(sum(each.rows for each in sizes), "queued row")
        buckets = quantity(sum(former.buckets for _, former in shapes), "bucket")
        return f"{buckets} with {about}{rows}" if shapes else ""

    return transact(db, read)


def _named(config: QueueConfig) -> str:
    """The queue, with its levels."""
    return " and ".join([f"queue {config.name!r}", *(["its levels"] if config.is_timed else [])])


def confirm(question: str, yes: bool) -> None:
    """Ask the question on a terminal, unless `yes`; exit with status 1 without a confirmation."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidConfiguration(f"{question} Confirm with --yes: standard input is not a terminal")
    try:
        answer = input(f"{printable(question)} [y/N]: ")
    except EOFError:  # ^D
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        note("no change was made")
        raise typer.Exit(1)


def _print_done(options: Options, config: QueueConfig, what: str) -> None:
    levels = config.level_names
    text = with_levels(f"queue {config.name!r} is {what}", levels)
    options.answer(text, queue=config.name, done=what, levels=levels)
