"""`cq worker`."""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import asdict
from types import FrameType
from typing import Annotated

import typer

from cq.cli.options import AppPath, Json, Store, load_app, open_store
from cq.cli.output import note, print_json
from cq.config import read_config
from cq.observers.worker import Worker


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "worker", epilog="Examples: cq worker words; cq worker --drain; cq worker --app shop.counts:app"
    )(worker)


def worker(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="The queues; all of them if left out.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when everything queued is combined.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Buckets in flight at once.")] = 4,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Combine queues until SIGTERM or ^C: passes under way are finished, nothing is lost. A second one ends at once.

    Code for combiners and observers comes from --app only. With --json a line of totals is printed at the end.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    db, app = open_store(store), load_app(app_path)
    runner = Worker(db, app, queues or (), concurrency=concurrency)
    db.transact(lambda tr: [read_config(tr.snapshot, queue) for queue in runner.names])
    stop_on_signals(runner)
    if drain:
        runner.drain()
    else:
        note("cq worker: waiting for updates, ^C stops")
        runner.run()
    totals = asdict(runner.totals)
    if json:
        print_json(totals)
    else:
        note("cq worker: " + ", ".join(f"{what} {number:,}" for what, number in totals.items()))


def stop_on_signals(runner: Worker) -> None:
    """Stop the worker at the first SIGTERM or SIGINT, end the process at the second."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
        # Not here: the main thread may be holding just the locks that this needs.
        threading.Thread(target=runner.stop).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
