"""`cq verify`."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from cq.cli.options import AppPath, Json, Queue, Store, load_app, open_store, read_store
from cq.cli.output import as_word, note, print_json, print_words, progress
from cq.jsonvalues import to_json
from cq.layout import shown
from cq.observers.verify import WAIT_SECONDS, Difference, Progress, verification
from cq.plaintext import printable

DIFFERENT: Final = 4
"""Exit status when there are differences that were not mended."""
_MOST: Final = 1_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "verify",
        epilog="Examples: cq verify words; cq verify words --repair; cq verify words --app shop.counts:app --json",
    )(verify)


def verify(
    queue: Queue,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be derived from what the store has.")
    ] = False,
    most: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="How many differences to name at most.")
    ] = _MOST,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="How long changes may be on their way to an exported table."
        ),
    ] = WAIT_SECONDS,
    url_env: Annotated[
        str | None,
        typer.Option(
            "--reporting-url-env",
            metavar="NAME",
            help="The environment variable with the URL of the table's database, if not the one configured.",
        ),
    ] = None,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Look through all that a queue keeps for what cannot be so, while it is in use: damage, lost notifications ...

    Rows, values, notifications, states of buckets, what was set aside; that top and cloud are what the values make, and
    an exported table, if its URL is known; and that nothing else lies in cq's keys. Each difference is a line: kind,
    key, what is wrong. With --json a line for each, and one of totals.

    Exit status 4 when there are differences that --repair did not mend, or could not; 0 when there are none.
    """
    app = load_app(app_path)
    db = open_store(store) if repair else read_store(store)
    named: list[Difference] = []
    counts = {"checked": 0, "differences": 0, "repaired": 0, "repairable": 0}
    with progress(counted=False) as display:
        task = display.add_task("verifying")

        def show(so_far: Progress) -> None:
            said = f"{so_far.part}: {so_far.checked:,} keys, {so_far.differences:,} differences"
            display.update(task, description=said)

        found = verification(
            db, queue, app=app, repair=repair, wait_seconds=wait, url_env=url_env, progress=show
        )
        for difference in found.run():
            counts["differences"] += 1
            counts["repaired"] += difference.repaired
            counts["repairable"] += difference.repairable
            if len(named) < most:
                named.append(difference)
    counts["checked"] = found.checked
    for each in named:
        _print_difference(each, json)
    _print_totals(counts, found.notes, counts["differences"] - len(named), json)
    if counts["repaired"] < counts["differences"]:
        raise typer.Exit(DIFFERENT)


def _print_difference(each: Difference, json: bool) -> None:
    if json:
        print_json(
            {
                "kind": each.kind,
                "where": shown(each.where),
                "key": to_json(each.key),
                "what": each.what,
                "repairable": each.repairable,
                "repaired": each.repaired,
            }
        )
        return
    what = printable(" ".join(each.what.split())) + (" (mended)" if each.repaired else "")
    key = [] if each.key is None else [f"key {as_word(each.key)}"]
    print_words(each.kind, shown(each.where), *key, what)


def _print_totals(counts: dict[str, Any], notes: list[str], more: int, json: bool) -> None:
    if json:
        print_json({**counts, "notes": notes})
        return
    if more:
        note(f"and {more:,} more")
    for each in notes:
        note(each)
    differences, repaired = counts["differences"], counts["repaired"]
    said = f"cq verify: {counts['checked']:,} keys looked at, {differences:,} differences"
    if repaired:
        said += f", {repaired:,} of them mended"
    note(said)
    if counts["repairable"] > repaired:
        note("`cq verify --repair` mends what can be derived")
