"""`cq add`, `cq get` and `cq items`: add updates, and read values."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import cq
from cq import runtime
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import (
    WORDS,
    AppOptions,
    Options,
    Queue,
    argument,
    duration_option,
    flag,
    option,
    option_set,
)
from cq.cli.shared.output import as_word, note, progress, quantity
from cq.cli.shared.processes import stop_on_signals
from cq.cli.shared.rows import AppRowsOptions, print_rows, print_values
from cq.config.queue import QueueConfig, read_config
from cq.deciders import with_time
from cq.encoding.json_values import key_from_word, parse_word, split_word, to_json, value_from_word
from cq.errors import BacklogTooDeep, InvalidData
from cq.intake.access_log import AccessLogFormat
from cq.intake.json_lines import LoadedLines, add_jsonl
from cq.intake.lines import FilePosition
from cq.intake.logs import LogFollower, open_log
from cq.observers.visits import BOTS, VisitLog, Visits, bot_pattern
from cq.queue.requests import decider_of
from cq.store.api import outlived
from cq.tables.rows import queue_rows
from cq.windows.window import reader_of

commands = CommandSet()

_POLL_SECONDS: Final = 0.5
_SKIPPED_SHOWN: Final = 5


@option_set
class AddOptions(Options):
    """The options of `cq add`."""

    jsonl: str | None = option(
        "FILE|-",
        'Add the updates of a file with lines {"key": ..., "update": ...}; - is standard input. For a queue with '
        'a window or a roll-up, "at" is the time of an update: seconds since 1970, or as 2026-01-31T12:00.',
    )
    once: str | None = option("ID", "Operation id: of all adds with the same id only the first counts.")
    access_log: Path | None = option(
        "FILE", "Count the visits in the access log of a web server; QUEUE is then the name of visits."
    )
    follow: bool = flag(
        "--follow", "Go on with the lines that are written to the access log from now on, until ^C."
    )
    log_format: str | None = option(
        "PATTERN",
        "Format of the access log, as in the settings of nginx or Apache. Default: common or combined format.",
    )
    bots: str = option(
        "REGEX",
        "Visits of browsers whose name matches do not count; an empty text matches none.",
        default=BOTS,
    )
    sessions: bool = flag(
        "--sessions", "Count the sessions of visitors, too, from now on: a session ends after 30 minutes."
    )
    name: str | None = option(
        "NAME", "Name of the position in the access log. Default: its path. Logs of several machines differ."
    )


@commands.command(
    "add",
    examples=[
        "cq add words hello=1 world=2",
        "cq add words --jsonl updates.jsonl",
        "cq add visits --access-log /var/log/nginx/access.log --follow",
    ],
)
def add(
    options: AddOptions,
    queue: Queue,
    updates: Annotated[
        list[str] | None, argument("KEY=UPDATE", "An update of a key, split at the last '='. " + WORDS)
    ] = None,
) -> None:
    """Add updates to a queue, or the visits of an access log.

    KEY=UPDATE arguments are added in one transaction. The lines of a file are added in batches. After an interruption
    run the command again: each line of the file is added once, also lines appended later. For standard input
    and pipes the position is not stored: a second run adds their lines again.

    The visits of an access log count in the queues QUEUE.views and so on. The first command creates them, with a
    window of ten minutes. Older visits count in the counts of all time only, and those of yesterday in sessions, too.
    After a rotation the former file is finished first, if it is beside the present one and its name has a number or a
    date at the end, such as access.log.1 or access.log-20261101.gz. Lines in another format are skipped with a message.
    If the first lines, ten or more, all have another format, the command counts no line and ends with an error.
    """
    given = [bool(updates), bool(options.jsonl), options.access_log is not None]
    if sum(given) != 1 or (options.once is not None and not updates):
        raise typer.BadParameter(
            "give either KEY=UPDATE ... (with or without --once), --jsonl FILE or --access-log FILE"
        )
    of_log = options.follow, options.sessions, options.log_format, options.name, options.bots != BOTS
    if options.access_log is None and any(of_log):
        raise typer.BadParameter(
            "--follow, --log-format, --bots, --sessions and --name need a log: add --access-log FILE"
        )
    if options.name == "":  # almost surely a variable of the shell that is not set
        raise typer.BadParameter("expected the --name of a position, got an empty one")
    if options.access_log is not None:
        _add_visits(options, queue, options.access_log)
        return
    db, handle = options.open_store(), cq.CombineQueue(queue)
    if options.jsonl:
        _, added, refused = _add_file(db, handle, options.jsonl)
        if refused:
            are = "is not added: its" if refused == 1 else "are not added: their"
            note(f"cq: {quantity(refused, 'update')} {are} time is too long ago or in the future")
    else:
        config = db.transact(lambda tr: read_config(tr.snapshot, queue))
        pairs = [_pair(config, word) for word in updates or ()]
        # A retry after a lost commit answer must not add the updates again.
        operation = secrets.token_bytes(16) if options.once is None else options.once
        db.transact(lambda tr: handle.add(tr, pairs, once=operation))
        added, refused = len(pairs), 0
    done = f"added {quantity(added, 'update')} to queue {queue!r}"
    options.answer(done, queue=queue, added=added, refused=refused)


@option_set
class AskOptions(Options):
    """The options of `cq ask`."""

    once: str | None = option(
        "ID", "Operation id: a repeated request of the key with the same id gets the same answer."
    )
    timeout: float = duration_option("How long to wait for the answer.", default=10.0)
    withdraw: bool = flag(
        "--withdraw", "Withdraw the request if it has no answer after the timeout. Default: it stays queued."
    )


@commands.command(
    "ask",
    examples=["cq ask stock nails 2", "cq ask stock nails -- -2", 'cq ask seats 12A \'{"claim": "ada"}\''],
)
def ask(
    options: AskOptions,
    queue: Queue,
    key: Annotated[str, argument("KEY", "A key. " + WORDS)],
    request: Annotated[str, argument("JSON", "The request.")],
) -> None:
    """Ask a queue with a decider, wait for the answer, and print it.

    Workers decide the requests of a key in commit order. An error has the ticket of the request. Requests to a bucket
    or a budget get the present time, unless they have one: {"take": 1}, {"reserve": 5, "hold": "call 1", "ttl": 60},
    {"settle": "call 1", "actual": 3}, {"release": "call 1"}, {"raise_cap": 10}.
    """
    content = parse_word(request, "a request in JSON")
    db, handle = options.open_store(), cq.CombineQueue(queue)
    config = db.transact(lambda tr: read_config(tr.snapshot, queue))
    asked, content = key_from_word(config.key, key), with_time(decider_of(config).kind, content)
    answer = handle.ask_now(
        db, asked, content, options.once, timeout=options.timeout, withdraw=options.withdraw
    )
    options.answer(as_word(answer), key=to_json(asked), answer=to_json(answer))


def _visits(db: Any, name: str, log: Path, *, sessions: bool) -> Visits:
    """The visits of a name. If its queues do not exist, it opens the log, to report an error, and configures them."""
    visits = Visits.stored(db, name)
    if visits is None:
        open_log(log).close()
        visits = Visits(name, sessions=sessions)
        visits.configure(db)
        note(f"configured visits {name!r}: queues {', '.join(visits.queues)}")
    elif sessions and not visits.has_sessions:
        visits.has_sessions = True
        visits.sessions.configure(db)
        note(f"configured sessions of visits {name!r}: queues {', '.join(visits.sessions.queues)}")
    return visits


def _add_visits(options: AddOptions, queue: str, path: Path) -> None:
    """Add the visits of an access log."""
    log_format, bots = AccessLogFormat(options.log_format), options.bots or None
    bot_pattern(bots)  # before the store and the queues are created
    db = options.make_store()
    counted = _visits(db, queue, path, sessions=options.sessions)
    visits = VisitLog(counted, log_format, bots=bots, ids=counted.ids(db))
    _add_log(options, queue, visits, visits.follow(db, path, name=options.name))


def _add_log(options: AddOptions, queue: str, visits: VisitLog, follower: LogFollower) -> None:
    """Count the visits of a log, until its end or, with --follow, until a signal."""
    stop = threading.Event()
    if options.follow:
        stop_on_signals(stop.set)
    added = skipped = outside = 0
    with progress(counted=False) as display, contextlib.closing(follower):
        task = display.add_task("visits counted")
        while not stop.is_set():
            done = follower.add_next(visits)
            if done is None:
                if not options.follow:
                    break
                stop.wait(_POLL_SECONDS)
                continue
            if done.problem and skipped < _SKIPPED_SHOWN:
                note(f"cq: skipped {quantity(done.skipped, 'line')}, the first: {done.problem}")
            added, skipped, outside = added + done.added, skipped + done.skipped, outside + done.outside
            display.update(task, description=f"{quantity(added, 'visit')} counted")
    text = f"counted {quantity(added, 'visit')} in {queue!r}"
    if outside:
        text += f" ({outside:,} outside the window, so in the counts of all time only)"
    if skipped:
        text += f", skipped {quantity(skipped, 'line')}"
    options.answer(text, queue=queue, added=added, outside=outside, skipped=skipped)


@commands.command("get", examples=["cq get words hello --pending", "cq get levels -- -5"])
def get(
    options: AppOptions,
    queue: Queue,
    keys: Annotated[list[str], argument("KEY", "Keys to read. " + WORDS)],
    pending: Annotated[
        bool, flag("--pending", "Include the queued updates, in addition to the combined ones.")
    ] = False,
) -> None:
    """Print the values of keys, one line per key.

    The exit status is 3 if a key has no value. With --json the lines are `{"key": ..., "value": ...}`. A queue with a
    combiner of your own needs --app for --pending, and for a window whose slices are merged. The values of a window's
    keys, such as those of `hits.window`, are their totals now, even if no worker runs.
    """
    app, db = options.load_app(), options.read_store()

    def read(tr: Any) -> list[tuple[Any, Any]]:
        config = read_config(tr.snapshot, queue)
        combines = pending or config.lists_keys
        handle = reader_of(config, app.combiner(config) if app and combines else None)
        wanted = [key_from_word(config.key, word) for word in keys]
        if pending:
            return _pending_values(tr.snapshot, handle, wanted)
        return list(handle.get_many(tr.snapshot, wanted).items())

    print_values(db.transact(read), json=options.json)


@commands.command(
    "items",
    examples=[
        "cq items words --json > words.jsonl",
        "cq items words --format csv > words.csv",
        "cq items words --format parquet --output words.parquet",
    ],
)
def items(
    options: AppRowsOptions,
    queue: Queue,
    limit: Annotated[
        int | None, option("NUMBER", "Maximum number of keys. Default: all keys.", min=0)
    ] = None,
) -> None:
    """Print all keys and their values, one line per key.

    The order has no meaning. With --json the lines are `{"key": ..., "value": ...}`. With --format csv or parquet the
    columns are key and value; a key of several parts has the columns key_1, key_2 and so on. A window whose
    slices are merged needs --app for a combiner of your own.
    """
    target, app, db = options.target(), options.load_app(), options.read_store()
    config = db.transact(lambda tr: read_config(tr.snapshot, queue))
    handle = cq.CombineQueue(queue, combiner=app.combiner(config) if app and config.lists_keys else None)
    print_rows(queue_rows(db, handle, limit), target)


def _pending_values(snapshot: Any, handle: Any, keys: list[Any]) -> list[tuple[Any, Any]]:
    """Keys with their values, queued updates included; raises `BacklogTooDeep` if these take too long to combine."""
    found: list[tuple[Any, Any]] = []
    begun = runtime.monotonic()
    for key in keys:
        if late := outlived(begun):
            # An embedded store would have the read tried again for ever.
            raise BacklogTooDeep(
                f"combining {len(found)} of {len(keys)} keys {late}: read fewer keys at once, run more workers, or "
                "read without --pending"
            )
        found.append((key, handle.get(snapshot, key, pending=True)))
    return found


def _add_file(db: Any, handle: cq.CombineQueue, path: str) -> LoadedLines:
    if path == "-":
        return _add_stream(db, handle, sys.stdin.buffer)
    with open(path, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):  # a pipe cannot be read again: no position is stored
            return _add_stream(db, handle, stream)
        return _add_stream(db, handle, stream, os.fsencode(os.path.abspath(path)), status.st_size)


def _add_stream(
    db: Any, handle: cq.CombineQueue, stream: Any, name: bytes | None = None, size: int | None = None
) -> LoadedLines:
    with progress() as display:
        task = display.add_task("bytes added", total=size)

        def show(position: FilePosition) -> None:
            display.update(task, completed=position.offset)

        try:
            return add_jsonl(db, handle, stream, name=name, progress=show)
        except InvalidData as error:
            path = "standard input" if stream is sys.stdin.buffer else stream.name
            raise InvalidData(f"{path}{', ' if str(error).startswith('line ') else ': '}{error}") from None


def _pair(config: QueueConfig, word: str) -> tuple[Any, Any]:
    key, update = split_word(config.value, word)
    return key_from_word(config.key, key), value_from_word(config.value, update)
