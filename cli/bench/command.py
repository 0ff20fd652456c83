"""`cq bench`: measure cq on this machine, and the systems that it is compared with."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from cq.cli.bench.report import tables
from cq.cli.bench.systems.backends import REPORTING, RIVALS, Backends
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Json, duration_option, flag, number_option, option, option_set
from cq.cli.shared.output import note, print_json, print_table, progress, say
from cq.cli.shared.processes import end_signals

GROWING: Final = ("keys", "sparse", "backlog")


@option_set
class BenchOptions:
    """The options as given."""

    per_transaction: str = option(
        "NUMBER,...",
        "Measure adding and draining in turn, with this number of updates per transaction; or none.",
        default="100",
    )
    against: str | None = option(
        "NAME,...",
        f"Systems to compare with: any of {', '.join(RIVALS)}, or none. Default: all that are installed, "
        "postgres-periods only with --rollup and postgres-distinct only with --distinct.",
    )
    live: str = option(
        "NUMBER,...",
        "Measure adding and combining at the same time, with this number of updates in each transaction: at full "
        "speed, at a half and a quarter of the rate that this reached, and idle; or none.",
        default="none",
    )
    grow: str = option(
        "WHAT,...",
        f"Measure the cost of an update as a queue grows from 10,000. Any of {', '.join(GROWING)}: "
        "keys with 2 updates each, keys with 200,000 updates in all, queued updates; or none.",
        default="none",
    )
    grow_to: int = number_option("With --grow: the largest size.", default=1_000_000)
    single_adds: bool = flag(
        "--single-adds",
        "Measure single updates in one process: a transaction each, add_now, and cq.Emitter, of threads and of tasks "
        "of asyncio.",
    )
    decide: bool = flag(
        "--decide",
        "Measure decisions per second of a queue with a decider, of one key and of --keys, and the time to answer "
        "calls one by one, of threads and of tasks of asyncio; compared with read-modify-write and with UPDATE in "
        "PostgreSQL, unless --against none.",
    )
    cloud: bool = flag("--cloud", "Measure cq with a cloud, too; --live measures it only with the cloud.")
    export: str | None = option(
        "|".join(REPORTING),
        "Measure cq with an export into such a database, too; --live measures it only with the export.",
    )
    rollup: str | None = option(
        "PERIOD:RETENTION,...",
        "Measure cq with this roll-up, such as 1m:1h,1h:forever, too, and postgres-periods; --live measures it "
        "only with the roll-up.",
    )
    distinct: bool = flag(
        "--distinct",
        "Measure cq with distinct visitors of each key by sketches, too, and postgres-distinct; not --live.",
    )
    keys: int = number_option("Number of different keys.", default=100_000)
    adders: int = number_option("Number of processes that add.", default=2)
    threads: int = number_option(
        "Threads of each adding process; each runs one transaction at a time.", default=8
    )
    workers: str = option(
        "NUMBER,...",
        "Numbers of worker processes. With several, the queue is drained, or combined --live, with each "
        "of them in turn; other measurements of it have the first number of workers.",
        default="1",
    )
    buckets: int | None = number_option(
        "Buckets of the queue, at least one for each worker. Default: those of a new queue."
    )
    seconds: float = duration_option("Duration of adding in each repetition.", least=0.1, default=1.0)
    repetitions: int = number_option(
        "Number of repetitions, in addition to a warm-up; the figures are their medians.", default=3
    )
    store: str | None = option(
        "URL",
        "A store to measure, such as a cluster; it must not hold other queues. Default: temporary "
        "embedded stores below $TMPDIR, the disk to measure; $CQ_STORE and cq.toml have no effect.",
        "--store",
    )
    json: Json = False


commands = CommandSet()


@commands.command(
    "bench",
    examples=[
        "cq bench",
        "cq bench --per-transaction 5,100,5000 --against postgres-rollup --json",
        "cq bench --live 100 --cloud --export sqlite --against postgres-upsert",
        "cq bench --per-transaction none --grow keys,backlog --grow-to 10000000",
        "cq bench --live 100 --workers 1,2,4 --buckets 4 --against none",
        "cq bench --rollup 1m:1h,1h:forever --distinct --grow keys",
        "cq bench --per-transaction none --decide",
    ],
)
def bench(options: BenchOptions) -> None:
    """Measure cq and other systems on this machine.

    Each system counts words drawn by Zipf's law, added by the same number of processes and threads for the same time.
    The figures are updates per second: of adding, of combining the added updates, and of both in turn. After each
    repetition the benchmark checks the counts of the system. It removes the queues, tables and servers that it creates;
    a store given by --store keeps its id and the history of its workers. The page docs/understand/benchmarks.md
    describes the systems and the limits of the comparison.
    """
    # Imported here: every other command would wait for these imports.
    from cq.cli.bench.run import BenchRun

    with (
        _temporary() as temporary,
        progress(counted=False) as display,
        Backends(temporary, options.store) as backends,
    ):
        task = display.add_task("starting")
        run = BenchRun(options, backends, lambda step: display.update(task, description=step))
        report = run.run()
    if options.json:
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


@contextmanager
def _temporary() -> Iterator[Path]:
    """A temporary folder, removed at exit, also on the signals of `end_signals`."""
    # They end Python without running `finally`, and servers of the run would stay; as KeyboardInterrupt they run it.
    before = {each: signal.signal(each, signal.default_int_handler) for each in end_signals()}
    try:
        with TemporaryDirectory(prefix="cq-bench-", ignore_cleanup_errors=True) as path:
            yield Path(path)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
