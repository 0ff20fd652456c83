"""`cq bench`: measure cq on this machine, and the systems that it is compared with."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from cq.cli.bench.report import chart, tables
from cq.cli.bench.systems.backends import REPORTING, RIVALS, Backends
from cq.cli.bench.systems.workload import KINDS, BenchWorkload
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Json, duration_option, number_option, option
from cq.cli.shared.output import note, print_json, print_table, progress, say

GROWING: Final = ("keys", "sparse", "backlog")

commands = CommandSet()


@commands.command(
    "bench",
    examples=[
        "cq bench",
        "cq bench --per-transaction 5,100,5000 --against postgres-rollup --json",
        "cq bench --live 100 --cloud --export sqlite --against postgres-upsert",
        "cq bench --per-transaction none --grow keys,backlog --grow-to 10000000",
        "cq bench --live 100 --workers 1,2,4 --against none",
        "cq bench --rollup 1m:1h,1h:forever --distinct --grow keys",
    ],
)
def bench(
    per_transaction: Annotated[
        str,
        option(
            "NUMBER,...",
            "Measure adding and draining in turn, with this number of updates per transaction; or none.",
        ),
    ] = "100",
    against: Annotated[
        str | None,
        option(
            "NAME,...",
            f"Systems to compare with: any of {', '.join(RIVALS)}, or none. Default: all that are installed, "
            "postgres-periods only with --rollup and postgres-distinct only with --distinct.",
        ),
    ] = None,
    live: Annotated[
        str,
        option(
            "NUMBER,...",
            "Measure adding and combining at the same time, with this number of updates in each transaction: at full "
            "speed, and at a half and a quarter of the rate that this reached; or none.",
        ),
    ] = "none",
    rate: Annotated[
        float | None,
        number_option("With --live: add this number of updates per second. Default: full speed."),
    ] = None,
    grow: Annotated[
        str,
        option(
            "WHAT,...",
            f"Measure the cost of an update as a queue grows from 10,000. Any of {', '.join(GROWING)}: "
            "keys with 2 updates each, keys with 200,000 updates in all, queued updates; or none.",
        ),
    ] = "none",
    grow_to: Annotated[int, number_option("With --grow: the largest size.")] = 1_000_000,
    emitters: Annotated[
        bool,
        typer.Option(
            "--emitters",
            help="Measure single increments in one process: one transaction each, and through cq.Emitter.",
        ),
    ] = False,
    tasks: Annotated[
        int | None,
        number_option(
            "Measure adds of one update by this number of tasks of asyncio in one process, against --threads "
            "and an executor."
        ),
    ] = None,
    cloud: Annotated[
        bool,
        typer.Option("--cloud", help="Measure cq with a cloud, too; --live measures it only with the cloud."),
    ] = False,
    export: Annotated[
        str | None,
        option(
            "|".join(REPORTING),
            "Measure cq with an export into such a database, too; --live measures it only with the export.",
        ),
    ] = None,
    rollup: Annotated[
        str | None,
        option(
            "PERIOD:RETENTION,...",
            "Measure cq with this roll-up, such as 1m:1h,1h:forever, too, and postgres-periods; --live measures it "
            "only with the roll-up.",
        ),
    ] = None,
    distinct: Annotated[
        bool,
        typer.Option(
            "--distinct",
            help="Measure cq with distinct visitors of each key by sketches, too, and postgres-distinct; not --live.",
        ),
    ] = False,
    keys: Annotated[int, number_option("Number of different keys.")] = 100_000,
    skew: Annotated[
        float,
        option(
            "NUMBER",
            "Skew of the keys: the exponent of Zipf's law, 0 to 10; 0: all keys alike.",
            min=0,
            max=10,
        ),
    ] = 1.0,
    value: Annotated[str, option("KIND", f"Type of the values: {' or '.join(KINDS)}.")] = "int",
    adders: Annotated[int, number_option("Number of processes that add.")] = 2,
    threads: Annotated[
        int, number_option("Threads of each adding process; each runs one transaction at a time.")
    ] = 8,
    workers: Annotated[
        str,
        option(
            "NUMBER,...",
            "Numbers of worker processes. With several, the queue is drained, or combined --live, with each "
            "of them in turn; other measurements have the first number of workers.",
        ),
    ] = "1",
    buckets: Annotated[
        int | None, number_option("Buckets of the queue. Default: those of a new queue.")
    ] = None,
    seconds: Annotated[float, duration_option("Duration of adding in each repetition.", least=0.1)] = 1.0,
    repetitions: Annotated[
        int, number_option("Number of repetitions, in addition to a warm-up; the figures are their medians.")
    ] = 3,
    postgres_url_env: Annotated[
        str | None,
        option(
            "NAME",
            "The environment variable with the URL of a PostgreSQL database, in which tables are created and "
            "dropped. Default: a temporary server.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        option("DIR", "Directory for temporary stores and servers: the disk to measure.", "--dir"),
    ] = None,
    store: Annotated[
        str | None,
        option(
            "URL",
            "A store to measure, such as a cluster; it must not hold other queues. Default: temporary "
            "embedded stores; $CQ_STORE and cq.toml have no effect.",
            "--store",
        ),
    ] = None,
    svg: Annotated[
        Path | None, option("FILE", "Write a chart of adding and draining to this file, as SVG.", "--svg")
    ] = None,
    json: Json = False,
) -> None:
    """Measure cq and other systems on this machine.

    Each system counts words drawn by Zipf's law, added by the same number of processes and threads for the same time.
    The figures are updates per second: of adding, of combining the added updates, and of both in turn. After each
    repetition the benchmark checks the counts of the system. It removes everything that it creates. The page
    docs/benchmarks.md describes the systems and the limits of the comparison.
    """
    # Imported here: every other command would wait for these imports.
    from cq.cli.bench.measures.measured_system import Plan
    from cq.cli.bench.run import BenchRun

    with (
        _temporary(folder) as temporary,
        progress(counted=False) as display,
        Backends(temporary, store, postgres_url_env) as backends,
    ):
        task = display.add_task("starting")
        run = BenchRun(
            backends,
            notify=lambda step: display.update(task, description=step),
            workload=BenchWorkload(keys=keys, skew=skew, kind=_one_of("--value", KINDS, value)),
            plans=[
                Plan(adders, threads, number, seconds, warm_up=seconds / 2, repetitions=repetitions)
                for number in _numbers("--workers", workers.split(","))
            ],
            buckets=buckets,
            sizes=_numbers("--per-transaction", _words(per_transaction)),
            against=None
            if against is None
            else [_one_of("--against", RIVALS, each) for each in _words(against)],
            live=_numbers("--live", _words(live)),
            rate=rate,
            grow=[_one_of("--grow", GROWING, each) for each in _words(grow)],
            grow_to=grow_to,
            emitters=emitters,
            tasks=tasks or 0,
            cloud=cloud,
            export=export and _one_of("--export", REPORTING, export),
            rollup=rollup,
            distinct=distinct,
        )
        if svg is not None:
            svg.touch()  # fail now, not after minutes of measuring, if the file cannot be written
        report = run.run()
    if svg is not None:
        svg.write_text(chart(report), encoding="utf-8")
    if json:
        print_json(report)
    else:
        _print(report)


def _print(report: dict[str, Any]) -> None:
    for number, table in enumerate(tables(report)):
        if number:
            say("")
        say(table.title)
        print_table(table.columns, table.lines, right=table.columns[1:])
    for name, reason in report["left_out"].items():
        note(f"left out: {name}: {reason}")


def _words(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")


def _numbers(option: str, words: list[str]) -> list[int]:
    with suppress(ValueError):
        numbers = [int(each) for each in words]
        if min(numbers, default=1) >= 1:
            return numbers
    expected = f"expected numbers of at least 1, such as 1,5,100, got: {','.join(words)!r}"
    raise typer.BadParameter(expected, param_hint=option)


def _one_of(option: str, choices: Iterable[str], given: str) -> str:
    if given not in choices:
        expected = f"expected one of {', '.join(choices)}, got: {given!r}"
        raise typer.BadParameter(expected, param_hint=option)
    return given


@contextmanager
def _temporary(folder: Path | None) -> Iterator[Path]:
    """A temporary folder, removed at exit, also on SIGTERM."""
    # SIGTERM ends Python without running `finally`; as KeyboardInterrupt it runs the cleanup.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with TemporaryDirectory(prefix="cq-bench-", dir=folder, ignore_cleanup_errors=True) as path:
            yield Path(path)
    finally:
        signal.signal(signal.SIGTERM, before)
