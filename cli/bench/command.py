"""`cq bench`: measure cq on this machine, and the systems that it is compared with."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cq.cli.bench.options import BenchOptions
from cq.cli.bench.report import chart, tables
from cq.cli.bench.systems.backends import Backends
from cq.cli.shared.help import CommandSet
from cq.cli.shared.output import note, print_json, print_table, progress, say

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
    repetition the benchmark checks the counts of the system. It removes everything that it creates. The page
    docs/understand/benchmarks.md describes the systems and the limits of the comparison.
    """
    # Imported here: every other command would wait for these imports.
    from cq.cli.bench.run import BenchRun

    with (
        _temporary(options.folder) as temporary,
        progress(counted=False) as display,
        Backends(temporary, options.store, options.postgres_url_env) as backends,
    ):
        task = display.add_task("starting")
        run = BenchRun(options, backends, lambda step: display.update(task, description=step))
        if options.svg is not None:
            options.svg.touch()  # fail now, not after minutes of measuring, if the file cannot be written
        report = run.run()
    if options.svg is not None:
        options.svg.write_text(chart(report), encoding="utf-8")
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
def _temporary(folder: Path | None) -> Iterator[Path]:
    """A temporary folder, removed at exit, also on SIGTERM."""
    # SIGTERM ends Python without running `finally`; as KeyboardInterrupt it runs the cleanup.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with TemporaryDirectory(prefix="cq-bench-", dir=folder, ignore_cleanup_errors=True) as path:
            yield Path(path)
    finally:
        signal.signal(signal.SIGTERM, before)
