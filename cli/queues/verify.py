"""`cq verify`: check a queue for corrupt or inconsistent data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import typer

from cq.cli.shared.exit_status import DIFFERENT
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import AppOptions, Queue, duration_option, flag, option
from cq.cli.shared.output import as_word, note, print_json, print_words, progress
from cq.encoding.json_values import to_json
from cq.observers.verify.queue import WAIT_SECONDS, verification
from cq.plain_text import printable
from cq.verify.layout import shown
from cq.verify.piece import Difference
from cq.verify.verification import Verification

_MAX_SHOWN: Final = 1_000
_ADVICE: Final = "`cq verify --repair` repairs everything that can be derived"

Wait = Annotated[float, duration_option("How long to wait for changes that are not sent yet.")]


commands = CommandSet()


@commands.command(
    "verify",
    examples=["cq verify words", "cq verify words --repair", "cq verify words --app shop.counts:app --json"],
)
def verify(
    options: AppOptions,
    queue: Queue,
    repair: Annotated[
        bool, flag("--repair", "Repair everything that can be derived from other data in the store.")
    ] = False,
    most: Annotated[
        int, option("NUMBER", "Maximum number of differences to print.", "--limit", min=0)
    ] = _MAX_SHOWN,
    wait: Wait = WAIT_SECONDS,
) -> None:
    """Check a queue for corrupt or inconsistent data.

    The queue may be in use. Checks rows, values, notifications, states of buckets and updates set aside;
    compares top, cloud and, if its URL is known, the tables of links with the values; and searches cq's keys for other
    data. Each difference is a line: kind, key, description. With --json one line per difference, and one of totals.

    The exit status is 4 if unrepaired differences remain, otherwise 0.
    """
    app = options.load_app()
    db = options.open_store() if repair else options.read_store()
    found = verification(db, queue, app=app, repair=repair, wait=wait)
    counts = report("cq verify", found, options.json, most)
    if counts["repaired"] < counts["differences"]:
        raise typer.Exit(DIFFERENT)


def report(
    command: str, found: Verification, json: bool, most: int = _MAX_SHOWN, advice: str = _ADVICE
) -> dict[str, int]:
    """Run a verification, and print up to `most` differences, its notes and its totals; return the totals.

    `advice` says what repairs the differences, if they can be repaired.
    """
    printed: list[Difference] = []
    counts = {"checked": 0, "differences": 0, "repaired": 0, "repairable": 0}
    with progress(counted=False) as display:
        task = display.add_task("verifying")

        def show(so_far: Verification) -> None:
            text = f"{so_far.part}: {so_far.checked:,} keys, {so_far.found:,} differences"
            display.update(task, description=text)

        found.progress = show
        for difference in found.run():
            counts["differences"] += 1
            counts["repaired"] += difference.repaired
            counts["repairable"] += difference.repairable
            if len(printed) < most:
                printed.append(difference)
    counts["checked"] = found.checked
    for each in printed:
        _print_difference(each, json)
    if json:
        print_json({**counts, **found.totals, "notes": found.notes})
    else:
        _print_totals(command, counts, found.notes, len(printed))
        if counts["repairable"] > counts["repaired"]:
            note(advice)
    return counts


def _print_difference(each: Difference, json: bool) -> None:
    if json:
        content = asdict(each)
        details = content.pop("details")
        print_json({**to_json(content), "where": shown(each.where), **to_json(details)})
        return
    what = printable(" ".join(each.what.split())) + (" (repaired)" if each.repaired else "")
    key = [] if each.key is None else [f"key {as_word(each.key)}"]
    print_words(each.kind, shown(each.where), *key, what)


def _print_totals(command: str, counts: dict[str, int], notes: list[str], printed: int) -> None:
    differences, repaired = counts["differences"], counts["repaired"]
    if differences > printed:
        note(f"and {differences - printed:,} more")
    for each in notes:
        note(each)
    summary = f"{command}: {counts['checked']:,} keys checked, {differences:,} differences"
    if repaired:
        summary += f", {repaired:,} of them repaired"
    note(summary)
