"""`cq export`: the exports of queues to SQL tables, webhooks and topics of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cq.cli.queues.verify import AppLinkOptions, Wait, report
from cq.cli.queues.waiting import report_unexported, reported_interrupt
from cq.cli.shared.exit_status import DIFFERENT, FAILED
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, Queue, argument
from cq.cli.shared.output import as_word, note
from cq.encoding.json_values import to_json
from cq.errors import NotInStore
from cq.keys.export import ExportKeys
from cq.observers.export.rows import decoded_keys
from cq.observers.export.state import entries_aside
from cq.observers.exporters import has_sink, opened_sink
from cq.observers.monitoring.export_status import ExportStatus, export_queues, export_status
from cq.observers.sink.operate import Sink
from cq.observers.sql.configured import Export, find_export
from cq.observers.verify.queue import WAIT_SECONDS
from cq.plain_text import utc_time
from cq.store import OpenDatabase
from cq.store.transact import transact
from cq.verify.verification import Verification

commands = CommandSet("export", "Export the values of queues to SQL tables, webhooks or Kafka.")


@commands.command("list", examples=["cq export list", "cq export list words --json"])
def show_list(
    options: Options,
    queue: Annotated[str | None, argument("QUEUE", "The queue. Default: all exported queues.")] = None,
) -> None:
    """List the exports with their backlog, its age, and their errors.

    States: `filling`: the export is receiving all values, or rows without a value are not yet deleted. `failing`:
    workers retry it. `stopped`: the operator must make a decision; the error describes the options. `unreadable`: its
    stored data were not written by cq. With --json one line per queue.
    """
    statuses = export_status(options.read_store(), queue)
    columns = ["queue", "table", "waiting", "rows", "bytes", "oldest", "set aside", "state"]
    options.print_list(
        map(asdict, statuses),
        columns,
        map(_row, statuses),
        right=columns[2:-1],
        empty="no queue is exported: begin with `cq configure QUEUE --export TABLE`",
    )
    for each in [] if options.json else statuses:
        if each.error:
            since = "" if each.failing_since is None else f"failing since {utc_time(each.failing_since)}: "
            note(f"{each.name}: {since}{each.error}")


@commands.command("init", examples=["cq export init words"])
def init(options: AppLinkOptions, queue: Queue) -> None:
    """Create the missing tables of an export.

    These are the table of the queue and two tables of cq. Existing tables are compared with the expected ones; a
    difference is an error that names it. For a webhook, this sends signed requests without changes, to check that the
    receiver accepts them. For Kafka, it checks that the topic exists.
    """
    from cq.observers.sql import check

    with _opened(queue, options, options.open_store) as (_, found):
        if isinstance(found, Sink):
            return options.answer(found.check(), queue=queue, created=[])
        created = check.init(found.reporting, found.definition)
    text = f"created {', '.join(created)}" if created else "all tables exist, as expected"
    return options.answer(text, queue=queue, created=created)


@commands.command("verify", examples=["cq export verify words --json"])
def verify(options: AppLinkOptions, queue: Queue, wait: Wait = WAIT_SECONDS) -> None:
    """Compare the table with the current values of the queue.

    Both may be in use. Each difference is printed as a line; the exit status is then 4. The command waits for changes
    that are not exported yet, unless the export is stopped: workers must be running. With --json one line per
    difference, and one line of totals. cq cannot read what the receiver of a webhook keeps, or the consumers of a
    topic.
    """
    from cq.observers.sql.verify import TableCheck

    with _opened(queue, options, options.read_store) as (db, found):
        if isinstance(found, Sink):
            raise NotInStore(
                f"queue {queue!r} has a {found.observer.name} export: cq cannot read what its receiver keeps, compare "
                "it there"
            )
        table = TableCheck(db, found, report_unexported(db, queue, wait))
        with reported_interrupt("nothing was changed"):
            counts = report("cq export verify", Verification(db, queue, {"table": table.run}), options.json)
    if counts["differences"]:
        raise typer.Exit(DIFFERENT)
    if table.undecided:
        raise typer.Exit(FAILED)


@commands.command("rebuild", examples=["cq export rebuild words"])
def rebuild(options: AppLinkOptions, queue: Queue) -> None:
    """Export all values again, then delete rows without a value.

    Use it for a table that differs, was emptied or restored, or after a restore of the store. It takes over a table
    that another queue exports to. Workers do it while everything is in use; `cq export list` shows `filling` until it
    is done. It also lets a stopped webhook or topic continue.
    """
    from cq.observers.sql import rebuild as sqlrebuild

    with _opened(queue, options, options.open_store) as (db, found):
        generation = found.rebuild() if isinstance(found, Sink) else sqlrebuild.rebuild(db, found)
    text = (
        f"workers export all values of queue {queue!r} again: `cq export list {queue}` shows their progress"
    )
    options.answer(text, queue=queue, generation=generation)


@commands.command("rebase", examples=["cq export rebase words"])
def rebase(options: AppLinkOptions, queue: Queue) -> None:
    """Continue an export from the current state of the store.

    Use it only if table and store agree, for example after a restore from backups of the same moment. Nothing is
    exported again: rows that the table lacks stay missing. For a webhook or topic whose other side has refused changes,
    use it once the cause is repaired: the queued changes follow.
    """
    from cq.observers.sql import rebuild as sqlrebuild

    with _opened(queue, options, options.open_store) as (db, found):
        epoch = found.rebase() if isinstance(found, Sink) else sqlrebuild.rebase(db, found)
    text = f"the export of queue {queue!r} continues from the current state"
    options.answer(text, queue=queue, epoch=epoch)


@commands.command("aside", examples=["cq export aside words --json"])
def aside(options: Options, queue: Queue) -> None:
    """List the entries that could not be exported, with the error.

    After you have repaired the cause, `cq export rebuild` exports the current values, and drops these entries. With
    --json one line per entry.
    """
    db = options.read_store()
    transact(db, lambda tr: export_queues(tr, queue))  # raises if the queue does not exist
    rows = [
        (None if each.encoded_key is None else decoded_keys([each.encoded_key])[0], each.value, each.error)
        for each in entries_aside(db, ExportKeys(queue))
    ]
    columns = ["key", "value", "error"]
    options.print_list(
        (dict(zip(columns, map(to_json, row), strict=True)) for row in rows),
        columns,
        ([as_word(key), as_word(value), error] for key, value, error in rows),
        empty=f"nothing is set aside in the export of queue {queue!r}",
    )


@contextmanager
def _opened(
    queue: str, options: AppLinkOptions, opener: Callable[[], OpenDatabase]
) -> Iterator[tuple[Any, Export | Sink]]:
    """The store and the export of the queue; closes the reporting database, or the sink's connections, at exit."""
    options.load_app()  # its code declares the columns of the table
    db = opener()
    if transact(db, lambda tr: has_sink(tr.snapshot, queue)):
        with opened_sink(db, queue, url_env=options.url_env) as sink:
            yield db, sink
        return
    found = find_export(db, queue, url_env=options.url_env)
    try:
        yield db, found
    finally:
        found.reporting.close()


def _row(each: ExportStatus) -> list[object]:
    about = "" if each.exact else "about "
    return [
        each.name,
        each.table or "-",
        f"{each.waiting_buckets} of {each.buckets}",
        f"{about}{each.rows:,}",
        f"{about}{each.bytes:,}",
        "-" if each.oldest_seconds is None else f"{each.oldest_seconds:,.1f} s",
        f"{each.aside:,}",
        each.state,
    ]
