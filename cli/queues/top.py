"""`cq top` and `cq cloud`: the highest values of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from cq import runtime
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, Queue, flag, option, option_set
from cq.cli.shared.output import is_read, note, print_document, print_json, print_words, quantity, say
from cq.cli.shared.rows import RowsOptions, print_rows, whole_file
from cq.durations import seconds_in
from cq.encoding.json_values import to_json
from cq.errors import NotInStore
from cq.observers.top.cloud import Cloud, CloudReader
from cq.observers.top.html import to_animation, to_html
from cq.observers.top.ranking import Ranking
from cq.store.transact import transact
from cq.tables.rows import group_rows, top_rows, trending_rows

_FRAMES: Final = 60
_MODE: Final = 0o644  # of a page: readable for web servers, which run as other users
Group = Annotated[str | None, option("GROUP", "Group to show, if the queue keeps its top in groups.")]


commands = CommandSet()


@option_set
class TopOptions(RowsOptions):
    """The options of `cq top`."""

    number: int = option(
        "NUMBER", "Maximum number of keys, or of groups.", "-n", "--number", min=1, default=20
    )
    bottom: bool = flag("--bottom", "Show the lowest scores, the lowest first.")
    group: Group = None
    by: str | None = option(
        "PERIOD",
        "Show the top of a period of a roll-up, or of the window: 1h, 10m ..., with the ranks before.",
    )
    at: str | None = option(
        "TIME",
        "With --by: a time in the period, as 2026-01-31T12:00 in UTC, or 2d for two days ago. Default: now.",
    )
    groups: bool = flag("--groups", "Show the names of the groups, with the number of keys of each.")


@commands.command(
    "top",
    examples=[
        "cq top words -n 20",
        "cq top words --bottom --json",
        "cq top words --format csv",
        "cq top hits --by 1h",
    ],
)
def top(options: TopOptions, queue: Queue) -> None:
    """Print the keys with the highest scores.

    Each line has a key and its score. The highest score is first; keys with equal scores are in order. The result is
    exact as of the last pass. With --json the lines are `{"key": ..., "score": ...}`, or with --groups
    `{"group": ..., "count": ...}`. --format csv and parquet have these names as columns; a key of several parts has the
    columns key_1, key_2 and so on.

    With --by, for a level or a window with a top (`cq configure hits.1h --top`, `cq configure hits.window --top`): each
    line has a key, its score and rank in the period, and its rank in the period before, - if it had no value there. In
    JSON these are `key`, `score`, `rank` and `before`. A window's period is its width; its ranks before are those of
    the first keys of the top.
    """
    by, at = options.by, options.at
    if by is None and at is not None:
        raise typer.BadParameter("--at needs the period: add --by 1h")
    if by is not None and (options.groups or options.bottom or options.group is not None):
        raise typer.BadParameter("give either --by or --group, --groups and --bottom")
    target = options.target()
    db, ranking = options.read_store(), Ranking(queue)
    if by is not None:
        rows = trending_rows(db, queue, by, None if at is None else _time(at), options.number)
    elif options.groups:
        rows = group_rows(db, ranking, options.number)
    else:
        rows = top_rows(db, ranking, options.number, group=options.group, bottom=options.bottom)
    print_rows(rows, target)


def _time(given: str) -> float:
    """Seconds since 1970 of a time, which is in UTC if it has no zone, or of a duration before now."""
    ago = seconds_in(given)
    try:
        if ago is not None:
            return datetime.fromtimestamp(runtime.time() - ago, UTC).timestamp()
        time = datetime.fromisoformat(given)
        return (time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # no time, or one outside of the years 1 to 9999 in UTC
        raise typer.BadParameter(
            f"expected a time such as 2026-01-31T12:00, or 2d for two days ago, got: {given!r}"
        ) from None


@option_set
class CloudOptions(Options):
    """The options of `cq cloud`."""

    group: Group = None
    at: str | None = option(
        "TIME", "Show the cloud as of this time: 2026-01-31T12:00 in UTC, or 2d for two days ago."
    )
    since: str | None = option(
        "TIME", "Show what has changed since the cloud of this time; with --html as an animation."
    )
    follow: bool = flag("--follow", "Print each newer version when it is published, until ^C.")
    html: str | None = option(
        "FILE|-", "Write an HTML page to this file, for each version; - is standard output."
    )


@commands.command(
    "cloud",
    examples=[
        "cq cloud words --html words.html",
        "cq cloud words --follow --json",
        "cq cloud words --at 2026-11-01",
        "cq cloud words --since 1h",
    ],
)
def cloud(options: CloudOptions, queue: Queue) -> None:
    """Print the published cloud of a queue.

    The first line has the version. Then each line has the weight (1 to 9), key and score of an entry. Workers publish
    the cloud. With --json one line per version: queue, group, version, created, through, and entries as
    `[{"key": ..., "score": ..., "weight": ...}, ...]`. The scores include every update that was committed up to the
    version `through` of the store.

    --at and --since read the versions that `cq configure words --top --keep-clouds 30d` keeps. With --since the first
    line has the two versions. If no version of that time is kept, the older one is the oldest version. Each other line
    has a key, its score and its former score, or - for a key that was not in the older cloud. In JSON these are
    `since`, `version`, and `changes` as `[{"key": ..., "score": ..., "before": ...}, ...]`. With --html, up to 60
    versions of the time are shown one after the other.
    """
    if options.follow and (options.at is not None or options.since is not None):
        raise typer.BadParameter("give either --follow, or --at and --since")
    begin, end = (None if time is None else _time(time) for time in (options.since, options.at))
    db, reader = options.read_store(), CloudReader(queue, options.group)
    if begin is not None:
        _show_since(options, db, reader, begin, end)
        return
    for found in _versions(db, reader) if options.follow else [_read(db, reader, end)]:
        if options.html is not None:
            _write_page(options.html, to_html(found))
        if options.json:
            print_json(_as_json(found))
        elif options.html is None:
            _print_cloud(found)
        elif options.html != "-":
            note(f"cq cloud: wrote version {found.version:,} to {options.html}")


def _read(db: Any, reader: CloudReader, at: float | None) -> Cloud:
    return transact(db, lambda tr: reader.read(tr.snapshot, at))


def _versions(db: Any, reader: CloudReader) -> Iterator[Cloud]:
    version = 0
    while is_read() and (found := reader.wait(db, version)):
        yield found
        version = found.version


def _show_since(options: CloudOptions, db: Any, reader: CloudReader, begin: float, end: float | None) -> None:
    """Print the changes from the cloud of one time to that of another, or write the versions between as a page."""
    html, newer = options.html, _read(db, reader, end)
    try:
        older = _read(db, reader, begin)
    except NotInStore:
        older = transact(db, lambda tr: reader.oldest(tr.snapshot))
    if html is not None:
        _write_page(html, to_animation(_frames(db, reader, older, newer)))
    changes = newer.changes_since(older)
    if options.json:
        print_json(
            {
                "queue": newer.queue,
                "group": newer.group,
                "since": older.version,
                "version": newer.version,
                "changes": [
                    {"key": to_json(key), "score": _score_in_json(score), "before": _score_in_json(before)}
                    for key, score, before in changes
                ],
            }
        )
    elif html is None:
        say(f"version {older.version:,} to {newer.version:,}, {quantity(len(changes), 'change')}")
        for key, score, before in changes:
            print_words(key, *("-" if each is None else each for each in (score, before)))
    elif html != "-":
        versions = f"versions {older.version:,} to" if older.version < newer.version else "version"
        note(f"cq cloud: wrote {versions} {newer.version:,} to {html}")


def _frames(db: Any, reader: CloudReader, oldest: Cloud, newest: Cloud) -> list[Cloud]:
    """The versions at equal distances of time, each once."""
    begin, step = oldest.created, (newest.created - oldest.created) / (_FRAMES - 1)
    between = (_read(db, reader, (begin + number * step).timestamp()) for number in range(1, _FRAMES - 1))
    return [*{each.version: each for each in (oldest, *between, newest)}.values()]


def _score_in_json(score: Any) -> Any:
    return None if score is None else to_json(score)


def _print_cloud(found: Cloud) -> None:
    keys = quantity(len(found.entries), "key")
    say(f"version {found.version:,}, {found.created:%Y-%m-%d %H:%M:%S} UTC, {keys}")
    for entry in found.entries:
        print_words(entry.weight, entry.key, entry.score)


def _as_json(found: Cloud) -> dict[str, Any]:
    return {
        "queue": found.queue,
        "group": found.group,
        "version": found.version,
        "created": found.created.isoformat(),
        "through": found.through,
        "entries": [
            {"key": to_json(entry.key), "score": to_json(entry.score), "weight": entry.weight}
            for entry in found.entries
        ],
    }


def _write_page(path: str, page: str) -> None:
    """Write a page; web servers may read it at any moment."""
    if path == "-":
        print_document(page)
        return
    with whole_file(path, _MODE) as write:
        write(page.encode())
