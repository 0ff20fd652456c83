"""`cq worker`: one worker process, or several."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Final

import typer

from cq.cli.shared import completion
from cq.cli.shared.exit_status import LEFT
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import AppOptions, argument, duration_option, flag, opened, option, option_set
from cq.cli.shared.output import note, print_json
from cq.cli.shared.processes import Processes, at_end_of_input, stop_on_signals
from cq.cli.shared.settings import file_of
from cq.config.queue import read_config
from cq.feeds.config import is_feed
from cq.observers.scheduling.members import ROLES
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.logs import log_to_stderr
from cq.observers.telemetry.metrics import Address, serve
from cq.observers.telemetry.otel import start
from cq.observers.worker.service import Notifier, tune_garbage_collection
from cq.observers.worker.worker import CONCURRENCY, GRACE_SECONDS, Worker


class LogFormat(StrEnum):
    """The formats of log lines."""

    TEXT = "text"
    JSON = "json"


_PLACE_ENV: Final = "CQ_PLACE"  # set by the parent process: the identity of each of its processes
_METRICS_ENV: Final = "CQ_PLACE_METRICS"


commands = CommandSet()


def _roles() -> Sequence[str]:
    return ROLES


@option_set
class WorkerOptions(AppOptions):
    """The options of `cq worker`."""

    drain: bool = flag("--drain", "End when all queued updates are combined.")
    only: list[str] | None = option(
        "ROLE",
        f"Do only this work: one of {', '.join(ROLES)}; may be repeated. Default: all.",
        autocompletion=_roles,
    )
    processes: int = option(
        "NUMBER", "Number of processes; processes that die are started again.", min=1, default=1
    )
    concurrency: int = option(
        "NUMBER", "Number of concurrent tasks in each process.", min=1, default=CONCURRENCY
    )
    grace: float = duration_option("Time for unfinished steps after a stop.", default=GRACE_SECONDS)
    identity: str | None = option(
        "NAME",
        "Identity of the worker: after its death, a new worker with the same identity gets its tasks at once.",
        "--id",
    )
    metrics: str | None = option(
        "ADDRESS", "Serve metrics at [HOST:]PORT; of several processes, each has the next port."
    )
    metrics_host: list[str] | None = option(
        "NAME", "Another host name under which metrics are served; may be repeated."
    )
    otel: bool = flag(
        "--otel", "Send spans and metrics by OpenTelemetry, as the OTEL_* environment variables say."
    )
    history: bool = flag(
        "--history/--no-history", "Store the counts of each minute for a day, for charts.", default=True
    )
    log: LogFormat = option("text|json", "Format of log lines.", default=LogFormat.TEXT)
    verbose: bool = flag("--verbose", "Log each pass and batch, too.")

    @property
    def address(self) -> Address | None:
        """Where to serve metrics."""
        return None if self.metrics is None else Address.parse(self.metrics)

    def report(self, message: str) -> None:
        """Print a line for people, if log lines are for people, too: events have the same information."""
        if self.log is LogFormat.TEXT:
            note(message)


@commands.command(
    "worker",
    examples=[
        "cq worker words",
        "cq worker --processes 4",
        "cq worker --drain",
        "cq worker --only link",
        "cq worker --app shop.counts:app",
        "cq worker --metrics 127.0.0.1:9100 --log json",
        "cq worker --otel",
    ],
)
def worker(
    options: WorkerOptions,
    ctx: typer.Context,
    queues: Annotated[
        list[str] | None,
        argument(
            "QUEUE", "Names of queues and feeds. Default: all.", autocompletion=completion.queues_and_feeds
        ),
    ] = None,
) -> None:
    """Combine queues, send their changes, publish clouds, serve feeds.

    SIGTERM or ^C stops it: it finishes its unfinished steps, and loses no update. A second signal ends it at once. Any
    number of workers on any number of machines share the work, and take over the work of dead workers. Code for
    combiners, observers and targets comes from --app only. With --json it prints a line of totals at the end.

    With --drain, work that cannot be done is named in the log, and the rest is done: queues that cannot be combined,
    links, outboxes and clouds that fail or that this worker lacks something for. The exit status is then 5. A queue
    that QUEUE names is an error, with status 1. With --json the totals have a list `left`, with a line for each part.
    """
    log_to_stderr(as_json=options.log is LogFormat.JSON, verbose=options.verbose)
    place = os.environ.pop(_PLACE_ENV, None)
    if place is not None:  # this is one of several processes, see `_run_processes`
        metrics = os.environ.pop(_METRICS_ENV, None)
        options = replace(options, processes=1, identity=place, metrics=metrics)
    elif file := file_of(ctx, "app_path"):
        emit("app_named", app=options.app_path, file=os.path.abspath(file))  # logged before its code runs
    runner = _made(options, queues or ())
    if place is not None:
        at_end_of_input(runner.stop)
    if options.processes > 1:
        opened.close()
        options.report(f"cq worker: {options.processes} processes, ^C stops")
        raise typer.Exit(_run_processes(options))
    telemetry = opened.enter_context(ExitStack())
    if (address := options.address) is not None:
        opened.callback(serve(address, options.metrics_host or ()))
    if options.otel:
        telemetry.callback(start())
    left = _run(options, runner)
    if not runner.is_finished:
        # A step that never ends would keep the process alive. The store discards its uncommitted transaction.
        sys.stdout.flush()
        telemetry.close()  # sends the latest spans
        logging.shutdown()  # writes the counts of repeated warnings
        os._exit(LEFT if left else 0)
    if left:
        raise typer.Exit(LEFT)


def _made(options: WorkerOptions, queues: Sequence[str]) -> Worker:
    """The worker; raises `QueueNotConfigured` for a name of neither a queue nor a feed."""
    db, app = options.make_store(), options.load_app()
    made = Worker(
        db,
        app,
        queues,
        roles=options.only or ROLES,
        concurrency=options.concurrency,
        grace=options.grace,
        identity=options.identity,
        measure=options.otel or options.address is not None,
        history=options.history,
        app_path=options.app_path or "",
    )
    others = db.transact(lambda tr: [name for name in made.names if not is_feed(tr.snapshot, name)])
    db.transact(lambda tr: [read_config(tr.snapshot, name) for name in others])
    return made


def _run(options: WorkerOptions, runner: Worker) -> list[str] | None:
    """Run the worker until it is stopped, or has drained its queues; returns what a drain has left."""
    tune_garbage_collection()
    notifier = Notifier()
    stop_on_signals(runner.stop)
    left: list[str] | None = None
    if options.drain:
        left = runner.drain()
    else:
        options.report("cq worker: waiting for updates, ^C stops")
        runner.run(notifier.alive)
    notifier.stopping()
    _print_totals(options, runner, left)
    return left


def _print_totals(options: WorkerOptions, runner: Worker, left: list[str] | None) -> None:
    """Print the worker's totals and, after a drain, what it has left."""
    totals = runner.totals.as_dict()
    if options.json:
        print_json(totals if left is None else {**totals, "left": left})
        return
    options.report("cq worker: " + ", ".join(f"{name} {number:,}" for name, number in totals.items()))
    if left:  # with the reasons in the log
        options.report(f"cq worker: left undone: {', '.join(line.partition(': ')[0] for line in left)}")


def _run_processes(options: WorkerOptions) -> int:
    """Run this command in several processes, until a signal; returns the exit status.

    Processes that die are started again, except after a drain.
    """
    name = secrets.token_hex(8)
    places: list[dict[str, str]] = [{_PLACE_ENV: f"{name}-{place}"} for place in range(options.processes)]
    if (address := options.address) is not None:
        places = [{**each, _METRICS_ENV: str(address.plus(at))} for at, each in enumerate(places)]
    notifier = Notifier()
    for variable in ("NOTIFY_SOCKET", "WATCHDOG_USEC"):
        os.environ.pop(variable, None)  # only the parent notifies systemd
    environments = [{**os.environ, **place} for place in places]
    # With -P: -m alone would import a `typer.py` in the current folder. --app adds that folder itself.
    command = [sys.executable, "-P", "-m", "cq", *sys.argv[1:]]
    ends = (0, LEFT) if options.drain else ()
    running = Processes(command, environments, grace=options.grace, ends=ends)
    stop_on_signals(running.stop, running.kill)
    status = running.run(notifier.alive)
    notifier.stopping()
    return status
