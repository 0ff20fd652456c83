"""`cq bench`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cq.cli.options import Json
from cq.cli.output import note, print_json, print_table, progress, say
from cq.observers.bench.names import AGAINST, GROWING, REPORTING
from cq.observers.bench.workload import KINDS, Workload


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "bench",
        epilog="Examples: cq bench; cq bench --per-transaction 5,100,5000 --against postgres-rollup --json; "
        "cq bench --live 100 --cloud --export sqlite --against postgres-upsert; "
        "cq bench --per-transaction none --grow keys,backlog --grow-to 10000000",
    )(bench)


def bench(
    per_transaction: Annotated[
        str,
        typer.Option(
            metavar="N,...",
            help="Measure adding and draining in turn, with so many updates in each transaction; none for not at all.",
        ),
    ] = "100",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help=f"What to compare with: any of {', '.join(AGAINST)}, or none; all that is there if left out.",
        ),
    ] = None,
    live: Annotated[
        str,
        typer.Option(
            metavar="N,...",
            help="Measure adding and combining at the same time, with so many updates in each transaction: at full "
            "speed, and at a half and a quarter of what was done then.",
        ),
    ] = "none",
    rate: Annotated[
        float | None,
        typer.Option(min=1, metavar="N", help="With --live: only so many updates a second are added."),
    ] = None,
    grow: Annotated[
        str,
        typer.Option(
            metavar="WHAT,...",
            help=f"Measure what an update costs as a queue grows, from 10,000 on. Of {', '.join(GROWING)}: "
            "keys with 2 updates for each, keys with 200,000 updates in all, and updates that wait.",
        ),
    ] = "none",
    grow_to: Annotated[int, typer.Option(min=1, metavar="N", help="With --grow: up to so many.")] = 1_000_000,
    emitters: Annotated[
        bool,
        typer.Option(
            "--emitters",
            help="Measure increments one at a time in one process: each in a transaction, and through cq.Emitter.",
        ),
    ] = False,
    cloud: Annotated[
        bool, typer.Option("--cloud", help="Measure cq with a cloud, too; --live only so.")
    ] = False,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(REPORTING),
            help="Measure cq with an export into such a database, too; --live only so.",
        ),
    ] = None,
    keys: Annotated[int, typer.Option(min=1, metavar="N", help="How many different keys.")] = 100_000,
    skew: Annotated[
        float, typer.Option(min=0, max=10, metavar="S", help="Of the keys: Zipf's exponent, 0 for all alike.")
    ] = 1.0,
    value: Annotated[str, typer.Option(metavar="KIND", help=f"Of the values: {' or '.join(KINDS)}.")] = "int",
    adders: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that add.")] = 2,
    threads: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Threads in each of them, a transaction under way in each."),
    ] = 8,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that combine.")] = 1,
    buckets: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of the queue; what a new one gets if left out.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="How long adding goes on in each repetition.")
    ] = 1.0,
    repetitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often; figures are medians of all but a warm-up.")
    ] = 3,
    postgres_url_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment variable with the URL of a PostgreSQL database to use, for tables that are made and "
            "dropped; a server of its own if left out.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="For temporary stores and servers: the disk to measure."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="A store to use in place of temporary ones, such as a cluster; it must hold no other queues. "
            "No setting names it.",
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write a chart of adding and draining to this file."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure what cq does on this machine, beside what one would use instead of it.

    Words are drawn by Zipf's law and added to each system by as many processes and threads, for the same time. Figures
    are updates per second: of adding, of combining what was added, and of both in turn. What each system has
    counted is checked after each repetition. All that is made is removed again. The page docs/benchmarks.md says what
    is compared, and what the figures leave out.
    """
    # Here, as every other command would wait for it to be imported.
    from cq.observers.bench.chart import to_svg
    from cq.observers.bench.phases import Plan
    from cq.observers.bench.run import Asked, run
    from cq.observers.bench.systems import Where

    asked = Asked(
        workload=Workload(keys=keys, skew=skew, kind=value),
        plan=Plan(adders, threads, workers, seconds, warm_up=seconds / 2, repetitions=repetitions),
        buckets=buckets,
        sizes=_numbers(per_transaction),
        against=None if against is None else _words(against),
        live=_numbers(live),
        rate=rate,
        grow=_words(grow),
        grow_to=grow_to,
        emitters=emitters,
        cloud=cloud,
        export=export,
    )
    if svg is not None:
        svg.touch()  # not after all the measuring is it to be found that it cannot be written
    with _temporary(folder) as temporary, progress(counted=False) as display:
        task = display.add_task("starting")
        report = run(
            asked,
            Where(temporary, store, postgres_url_env),
            lambda what: display.update(task, description=what),
        )
    if svg is not None:
        svg.write_text(to_svg(report), encoding="utf-8")
    _print(report, json)


def _print(report: Any, json: bool) -> None:
    if json:
        print_json(report.as_dict())
        return
    for number, table in enumerate(report.tables()):
        if number:
            say("")
        say(table.title)
        print_table(table.columns, table.lines, right=table.columns[1:])
    for name, why in report.left_out.items():
        note(f"left out: {name}: {why}")


def _words(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in _words(text)]
    except ValueError:
        raise typer.BadParameter(f"expected numbers such as 5,100,5000, got: {text!r}") from None


@contextmanager
def _temporary(folder: Path | None) -> Iterator[Path]:
    """A folder that is removed in the end, also on SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = Path(tempfile.mkdtemp(prefix="cq-bench-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
