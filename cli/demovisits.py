"""`cq demo visits`: views and unique visitors of the last minutes, from an access log that is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cq.cli.demo import demo
from cq.cli.demoing import DEMO_URL, DemoStore, KillEvery, Seed, drawn
from cq.cli.options import Json, make_store
from cq.cli.output import as_word, make_table, note, print_json, print_table, stderr

if TYPE_CHECKING:
    from cq.observers.demos.visits import Look, Outcome


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    demo.command(
        "visits",
        epilog="Example: cq demo visits --seed 7; cq demo visits access.log.1.gz access.log --chart visits.svg",
    )(visits)


def visits(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="ACCESS_LOG",
            help="Of a web server, in common or combined format, also gzip's; a generated one if left out.",
        ),
    ] = None,
    number: Annotated[int, typer.Option(min=1, metavar="N", help="How many visits to generate.")] = 10_000,
    speed: Annotated[
        float,
        typer.Option(min=0.01, metavar="N", help="How many seconds of the log are replayed in one, about."),
    ] = 100.0,
    window: Annotated[
        str, typer.Option(metavar="WIDTH/SLICE", help="In seconds of the log's own time.")
    ] = "600/10",
    servers: Annotated[int, typer.Option(min=1, metavar="N", help="Web server processes.")] = 2,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Worker processes.")] = 2,
    kill_every: KillEvery = 2.0,
    look_every: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="After how long all numbers are compared with a recount again."
        ),
    ] = 0.5,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many pages to show.")] = 5,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what was seen over time, as SVG.")
    ] = None,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Show the views and unique visitors of the last ten minutes of an access log, while processes are killed.

    The log is replayed by its own times, faster: web servers count each visit when it happens, workers combine and take
    out what has left the window. Any of them is killed at any moment, by SIGKILL, and started again. At each look,
    views and unique visitors of every page must be those of a recount of the visits counted so far, for that very
    moment; in the end nothing may be left in the window, and all views of a lifetime must be there; else the exit
    status is 1. The queues are called `demo_visits.*`, and are deleted first.

    A visit is a GET that was answered by a status of 2xx or 304; its visitor is told by address and browser. Lines that
    are of neither format are named and skipped. What happens while its server is dead is counted later: if that is
    after its window, in the views of a lifetime alone. At 100 times its speed, a window of 600 s is one of 6 s.
    """
    from random import Random

    from cq.observers.demos import visits as demo_of_visits
    from cq.observers.demos.accesslog import write_log
    from cq.observers.demos.visitchart import to_svg
    from cq.windowspec import WindowSpec

    spec = WindowSpec.parse(window)
    db = make_store(store)
    settings = demo_of_visits.Settings(
        speed, spec.width / 1000, spec.slice / 1000, servers, workers, kill_every, look_every, top
    )
    for path in logs or []:
        path.open("rb").close()  # before anything is said
    seed = drawn(seed)
    rng = Random(seed)  # noqa: S311 - a load that can be repeated
    with TemporaryDirectory(prefix="cq-demo-") as folder, _live() as show:
        paths = logs or [Path(folder, "access.log.gz")]
        if not logs:
            write_log(paths[0], rng, visits=number)
        outcome = demo_of_visits.run(db, store, paths, settings, rng, show)
    for line in outcome.skipped:
        note(f"skipped, {line}")
    if chart is not None:
        chart.write_text(to_svg(outcome.looks, settings.window), encoding="utf-8")
    if json:
        print_json({"seed": seed, **asdict(outcome), "seconds": round(outcome.seconds, 1)})
    else:
        _print(outcome)


@contextmanager
def _live() -> Iterator[Callable[[Look], object]]:
    """What shows a look: a table that is renewed, on a terminal."""
    from rich.live import Live

    if not stderr.is_terminal:
        yield lambda look: None
        return
    with Live(console=stderr, transient=True) as live:
        yield lambda look: live.update(_page_table(look))


def _page_table(look: Look) -> Any:
    rows = [[_clock(look.time), f"{look.views:,}", f"{look.visitors:,}"]]
    rows += [[as_word(page), f"{views:,}", f"{visitors:,}"] for page, views, visitors in look.top]
    return make_table(["page", "views", "visitors"], rows, right=["views", "visitors"])


def _print(outcome: Outcome) -> None:
    rows = (
        [
            _clock(look.time),
            f"{look.views:,}",
            f"{look.visitors:,}",
            ", ".join(f"{as_word(page)} {views:,}" for page, views, _ in look.top),
        ]
        for look in outcome.looks
    )
    print_table(["time", "views", "visitors", "most views"], rows, right=["views", "visitors"])
    skipped = f", {outcome.lines_skipped:,} lines skipped" if outcome.lines_skipped else ""
    note(
        f"{outcome.visits:,} visits of {outcome.pages:,} pages at {outcome.speed:,.0f} times their speed, "
        f"{outcome.kills:,} processes killed, {outcome.late:,} visits later than the window{skipped}: "
        f"as recounted at {len(outcome.looks):,} looks, and 0 lost"
    )


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"
