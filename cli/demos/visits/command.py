"""`cq demo visits`: views and unique visitors of the last minutes, from a replayed access log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cq.cli.demos.options import DEMO_URL, DemoStore, KillEvery, Seed, resolved_seed
from cq.cli.demos.words import demo
from cq.cli.shared.options import Json, make_store
from cq.cli.shared.output import as_word, make_table, note, print_json, print_table, stderr

if TYPE_CHECKING:
    from cq.cli.demos.visits.run import Look, VisitOutcome


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    demo.command(
        "visits",
        epilog="Examples: cq demo visits --seed 7; cq demo visits access.log.1.gz access.log --chart visits.svg",
    )(visits)


def visits(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="ACCESS_LOG",
            help="Access logs in common or combined format, plain or gzip. Default: a generated log.",
        ),
    ] = None,
    number: Annotated[int, typer.Option(min=1, metavar="N", help="Number of visits to generate.")] = 10_000,
    speed: Annotated[
        float,
        typer.Option(
            min=0.01, metavar="N", help="About how many seconds of the log are replayed per second."
        ),
    ] = 100.0,
    window: Annotated[
        str,
        typer.Option(
            metavar="WIDTH/SLICE", help="Width and slice of the window, in seconds of the log's time."
        ),
    ] = "600/10",
    servers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of web server processes.")] = 2,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of worker processes.")] = 2,
    kill_every: KillEvery = 2.0,
    look_every: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="Time between two comparisons of all numbers with a recount."
        ),
    ] = 0.5,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of pages to show.")] = 5,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a chart of the compared numbers over time to this file, as SVG."
        ),
    ] = None,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Count views and visitors of the last ten minutes of an access log.

    The log is replayed by its own times, but faster. Web servers count each visit when it happens. Workers combine the
    visits and remove those that have left the window. Processes are killed by SIGKILL at random moments and started
    again. Several times the views and unique visitors of every page must equal a recount of the visits counted so far,
    at the same moment. At the end the window must be empty, and all views must be in the lifetime counts; otherwise the
    exit status is 1. The queues `demo_visits.*` are deleted first.

    A visit is a GET with an answer of status 2xx or 304. Address and browser identify the visitor. Lines in another
    format are skipped with a message. Visits of a server that is down are counted later: after the end of their window
    they count in the lifetime counts only. At 100 times the speed, a window of 600 s takes 6 s.
    """
    from random import Random

    from cq.cli.demos.visits import run as demo_of_visits
    from cq.cli.demos.visits.access_log import write_log
    from cq.cli.demos.visits.chart import to_svg
    from cq.config.window import WindowSpec

    spec = WindowSpec.parse(window)
    db = make_store(store)
    settings = demo_of_visits.VisitSettings(
        speed, spec.width / 1000, spec.slice / 1000, servers, workers, kill_every, look_every, top
    )
    for path in logs or []:
        path.open("rb").close()  # report a missing file before the first line of output
    seed = resolved_seed(seed)
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
    """A function that shows a look in a live table; without a terminal it does nothing."""
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


def _print(outcome: VisitOutcome) -> None:
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
