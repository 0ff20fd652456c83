"""`cq worker`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Annotated

import typer

from cq.cli.options import AppPath, Json, Store, load_app, open_store, opened
from cq.cli.output import note, print_json
from cq.config import read_config
from cq.observers.membership import ROLES
from cq.observers.processes import Processes
from cq.observers.systemd import Notifier
from cq.observers.worker import CONCURRENCY, GRACE_SECONDS, Worker


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "worker",
        epilog="Examples: cq worker words; cq worker --processes 4; cq worker --drain; "
        "cq worker --only export; cq worker --app shop.counts:app",
    )(worker)


def worker(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="The queues; all of them if left out.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when everything queued is combined.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help=f"Do this only, of {', '.join(ROLES)}; may be given again."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes; those that die are started again.")
    ] = 1,
    concurrency: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tasks in flight at once, in each process.")
    ] = CONCURRENCY,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long steps under way may take when stopped.")
    ] = GRACE_SECONDS,
    with_input: Annotated[
        bool, typer.Option("--with-input", help="Stop when standard input ends, as on SIGTERM.")
    ] = False,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Combine queues, export them and publish clouds, until SIGTERM or ^C.

    Steps under way are finished then, nothing is lost; a second signal ends at once. Any number of workers share the
    work, on any number of machines, and take over from those that die. Code for combiners, observers and exporters
    comes from --app only. With --json a line of totals is printed at the end.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    db, app = open_store(store), load_app(app_path)
    runner = Worker(db, app, queues or (), roles=only or ROLES, concurrency=concurrency, grace=grace)
    exporters = app.exporters if app else {}
    db.transact(lambda tr: [read_config(tr.snapshot, name) for name in runner.names if name not in exporters])
    if processes > 1:
        opened.close()
        raise typer.Exit(_run_processes(processes, grace))
    notifier = Notifier()
    stop_on_signals(runner.stop)
    if with_input:
        threading.Thread(target=_stop_with_input, args=(runner.stop,), daemon=True).start()
    if drain:
        runner.drain()
    else:
        note("cq worker: waiting for updates, ^C stops")
        runner.run(notifier.alive)
    notifier.stopping()
    totals = runner.totals.as_dict()
    if json:
        print_json(totals)
    else:
        note("cq worker: " + ", ".join(f"{what} {number:,}" for what, number in totals.items()))
    if not runner.is_finished:
        # Steps that come to no end would keep the process from ending; what they do is thrown away by the store.
        sys.stdout.flush()
        os._exit(0)


def _run_processes(number: int, grace: float) -> int:
    """Run this command in so many processes, until told to stop."""
    # The options given last count.
    command = [sys.executable, "-m", "cq.cli", *sys.argv[1:], "--processes", "1", "--with-input"]
    notifier = Notifier()
    for variable in ("NOTIFY_SOCKET", "WATCHDOG_USEC"):
        os.environ.pop(variable, None)  # the parent speaks for all
    running = Processes([command] * number, grace=grace)
    stop_on_signals(running.stop, running.kill)
    note(f"cq worker: {number} processes, ^C stops")
    status = running.run(notifier.alive)
    notifier.stopping()
    return status


def stop_on_signals(stop: Callable[[], object], end: Callable[[], object] = lambda: None) -> None:
    """Stop at the first SIGTERM or SIGINT; end the process at the second, after `end`."""

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, second)
        signal.signal(signal.SIGINT, second)
        # Not here: the main thread may be holding just the locks that this needs.
        threading.Thread(target=stop).start()

    def second(number: int, frame: FrameType | None) -> None:
        end()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, first)
    signal.signal(signal.SIGINT, first)


def _stop_with_input(stop: Callable[[], object]) -> None:
    while os.read(0, 4096):
        pass
    stop()
