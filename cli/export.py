"""`cq export`: the exports of queues into tables of SQL databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cq.cli.options import AppPath, Json, Queue, Store, load_app, open_store, read_store
from cq.cli.output import as_word, note, print_json, print_table, print_words, progress, say
from cq.exportkeys import ExportKeys
from cq.jsonvalues import to_json
from cq.observers.exportrows import decoded_keys
from cq.observers.exports import Export, find_export
from cq.observers.exportstate import entries_aside
from cq.observers.exportstatus import ExportStatus, export_queues, export_status
from cq.plaintext import printable
from cq.store import OpenDatabase
from cq.store.transact import transact

if TYPE_CHECKING:
    from cq.observers.sqlverify import Difference, Verified

UrlEnv = Annotated[
    str | None,
    typer.Option(
        "--reporting-url-env",
        metavar="NAME",
        help="The environment variable with the database's URL, if not the one configured.",
    ),
]
export = typer.Typer(help="Export a queue's values into a table of a SQL database.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    export.command("list", epilog="Examples: cq export list; cq export list words --json")(show_list)
    export.command("init", epilog="Example: cq export init words")(init)
    export.command("verify", epilog="Example: cq export verify words --json")(verify)
    export.command("rebuild", epilog="Example: cq export rebuild words")(rebuild)
    export.command("rebase", epilog="Example: cq export rebase words")(rebase)
    export.command("aside", epilog="Example: cq export aside words --json")(aside)
    app.add_typer(export, name="export")
    app.command("exports", hidden=True)(show_list)  # the former name of `cq export list`, for scripts


def show_list(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="The queue; all that are exported if left out.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show what waits to be exported, for how long, and what fails. With --json a line for each queue.

    `filling`: the export is being told of all values, or rows that no value has are yet to be swept. `failing`: it is
    tried again and again. `stopped`: somebody has to decide what to do, and the error says between what. `unreadable`:
    something stored of it was not written by cq.
    """
    found = export_status(read_store(store), queue)
    if json:
        for each in found:
            print_json(asdict(each))
        return
    if not found:
        say("no queue is exported: begin with `cq configure QUEUE --export TABLE`")
        return
    columns = ["queue", "table", "waiting", "rows", "bytes", "oldest", "set aside", "state"]
    print_table(columns, map(_row, found), right=columns[2:-1])
    for each in found:
        if each.error:
            note(f"{each.name}: {each.error}")


def init(
    queue: Queue,
    url_env: UrlEnv = None,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Create the queue's table, and cq's own two, as far as they are missing.

    Tables that are there are compared with what is expected; a difference is an error that names it.
    """
    from cq.observers import sqlcheck

    with _opened(queue, url_env, app_path, store) as (_, found):
        created = sqlcheck.init(found.reporting, found.definition)
    if json:
        print_json({"queue": queue, "created": created})
    else:
        say(f"created {', '.join(created)}" if created else "all tables are there, as expected")


def verify(
    queue: Queue,
    url_env: UrlEnv = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long changes may be on their way.")
    ] = 30.0,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Compare the table with the queue's current values, while both are in use; exit status 1 when they differ.

    What differs is named, a line each. Changes on their way to the table are waited for: workers must be running. With
    --json a line for each difference, and one of totals.
    """
    from cq.observers import sqlverify

    with (
        _opened(queue, url_env, app_path, store, read_store) as (db, found),
        progress(counted=False) as display,
    ):
        task = display.add_task("comparing")

        def show(so_far: Verified) -> None:
            display.update(task, description=f"{so_far.values:,} values, {so_far.rows:,} rows compared")

        result = sqlverify.verify(db, found, wait_seconds=wait, progress=show)
    for each in result.differences:
        _print_difference(each, json)
    counts = {
        "values": result.values,
        "rows": result.rows,
        "differences": len(result.differences),
        "waiting": len(result.waiting),
    }
    if json:
        print_json({**counts, "whole": result.whole})
    else:
        note(f"cq export verify: {', '.join(f'{what} {number:,}' for what, number in counts.items())}")
        if not result.whole:
            note(
                "so much differs that the rest was not looked at: `cq export rebuild` exports everything again"
            )
        if not result.rows_told:
            note("rows too many were not looked for: the application's columns do not tell the key")
    if result.differences or result.waiting:
        raise typer.Exit(1)


def rebuild(
    queue: Queue,
    url_env: UrlEnv = None,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Export all values again, then delete the rows that no value has; without stopping anything.

    For a table that differs, was emptied or restored, or after the store was restored. Takes over a table that another
    queue feeds. The workers do it; `cq export list` says `filling` until it is done.
    """
    from cq.observers import sqlrebuild

    with _opened(queue, url_env, app_path, store) as (db, found):
        generation = sqlrebuild.rebuild(db, found)
    if json:
        print_json({"queue": queue, "generation": generation})
    else:
        say(
            f"the workers export all of queue {queue!r} again: `cq export list {queue}` says how far they are"
        )


def rebase(
    queue: Queue,
    url_env: UrlEnv = None,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Go on exporting from where the store is, whatever the table holds.

    For when both are known to agree: restored from backups of one moment, say. Nothing is exported again, and what the
    table lacks stays lacking.
    """
    from cq.observers import sqlrebuild

    with _opened(queue, url_env, app_path, store) as (db, found):
        epoch = sqlrebuild.rebase(db, found)
    if json:
        print_json({"queue": queue, "epoch": epoch})
    else:
        say(f"the export of queue {queue!r} goes on from here")


def aside(queue: Queue, store: Store = None, json: Json = False) -> None:
    """List what could not be exported and was set aside, with the error. With --json a line for each entry.

    When the reason is mended, `cq export rebuild` exports the current values, and forgets what was set aside.
    """
    db = read_store(store)
    transact(db, lambda tr: export_queues(tr, queue))  # raises unless there is such a queue
    rows = (
        (None if each.encoded_key is None else decoded_keys([each.encoded_key])[0], each.value, each.error)
        for each in entries_aside(db, ExportKeys(queue))
    )
    if json:
        for key, value, error in rows:
            print_json({"key": to_json(key), "value": to_json(value), "error": error})
    else:
        print_table(
            ["key", "value", "error"], ((as_word(key), as_word(value), error) for key, value, error in rows)
        )


@contextmanager
def _opened(
    queue: str,
    url_env: str | None,
    app_path: str | None,
    store: str | None,
    opener: Callable[[str | None], OpenDatabase] = open_store,
) -> Iterator[tuple[Any, Export]]:
    """The store and the queue's export; the reporting database is closed in the end."""
    load_app(app_path)  # which declares its columns
    db = opener(store)
    found = find_export(db, queue, url_env=url_env)
    try:
        yield db, found
    finally:
        found.reporting.close()


def _row(each: ExportStatus) -> list[object]:
    about = "" if each.exact else "about "
    since = ""
    if each.failing_since is not None:
        since = f" since {datetime.fromtimestamp(each.failing_since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return [
        each.name,
        each.table or "-",
        f"{each.waiting_buckets} of {each.buckets}",
        f"{about}{each.rows:,}",
        f"{about}{each.bytes:,}",
        "-" if each.oldest_seconds is None else f"{each.oldest_seconds:,.1f} s",
        f"{each.aside:,}",
        each.state + since,
    ]


def _print_difference(each: Difference, json: bool) -> None:
    row = None if each.row is None else {name: to_json(value) for name, value in each.row.items()}
    if json:
        content = {"key": to_json(each.key), "value": to_json(each.value), "row": row, "reason": each.reason}
        print_json(content)
        return
    value = "no value" if each.value is None else as_word(each.value)
    there = "no row" if row is None else as_word(row)
    reason = f" ({printable(each.reason)})" if each.reason else ""
    print_words(each.key, f"queue: {value}", f"table: {there}{reason}")
