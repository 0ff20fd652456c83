"""`cq status`: the backlogs of queues, and the workers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cq.admin.queue_status import QueueStatus
from cq.cli.shared.options import Json, Store, argument, read_store
from cq.cli.shared.output import make_console, make_table, print_json, say
from cq.observers.monitoring.store_overview import Overview, WorkerStatus, overview, remarks
from cq.plain_text import printable

WATCH_SECONDS: Final = 2.0


commands = typer.Typer()


@commands.command("status", epilog="Examples: cq status; cq status --watch; cq status words --json")
def show_status(
    queue: Annotated[str | None, argument("QUEUE", "Name of a queue. Default: all queues.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every 2 seconds, until ^C.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show the backlogs of queues, the workers and warnings.

    For each queue its backlog, its age and its rate; for each worker its work and its rate; then a line per warning.
    With --json one line per queue, then one line with all workers.
    """
    db = read_store(store)
    if not watch:
        _print(overview(db, queue), json)
        return
    try:
        if json or not make_console().is_terminal:
            while True:
                _print(overview(db, queue), json)
                if not json:
                    say("")
                time.sleep(WATCH_SECONDS)
        with Live(console=make_console(), auto_refresh=False) as live:
            while True:
                live.update(Group(*_shown(overview(db, queue))), refresh=True)
                time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return


def _print(found: Overview, json: bool) -> None:
    if not json:
        console = make_console()
        for each in _shown(found):
            console.print(each, soft_wrap=not console.is_terminal)
        return
    for queue in found.queues:
        export = found.exports.get(queue.name)
        print_json(
            {
                **asdict(queue),
                "telling": queue.backfilling,  # its name before 0.1.0, for programs that read it
                **asdict(found.activity[queue.name]),
                "export": None if export is None else asdict(export),
            }
        )
    print_json({"workers": [asdict(worker) for worker in found.workers]})


def _shown(found: Overview) -> Iterable[Table | Text]:
    """The queues, the workers, and a line for each remark."""
    if found.queues:
        columns = [
            "queue",
            "buckets",
            "waiting",
            "rows",
            "bytes",
            "oldest",
            "updates/s",
            "conflicts",
            "set aside",
        ]
        rows = (_queue(queue, found) for queue in found.queues)
        yield make_table([*columns, "export lag", "state"], rows, right=[*columns[1:], "export lag"])
    else:
        yield Text("no queue is configured in this store: begin with `cq configure QUEUE`")
    if found.workers:
        columns = ["worker", "host", "pid", "does", "queues", "buckets", "passes/s", "last beat", "state"]
        yield Text()
        yield make_table(
            columns, map(_worker, found.workers), right=["pid", "buckets", "passes/s", "last beat"]
        )
    lines = remarks(found)
    if lines:
        yield Text("\n".join(["", *map(printable, lines)]))


def _queue(queue: QueueStatus, found: Overview) -> list[Any]:
    about = "" if queue.exact else "about "
    activity, export = found.activity[queue.name], found.exports.get(queue.name)
    return [
        queue.name,
        queue.settings.get("buckets", "-"),
        queue.waiting_buckets,
        f"{about}{queue.rows:,}",
        f"{about}{queue.bytes:,}",
        _age(queue.oldest_seconds),
        f"{activity.updates_per_second:,.1f}",
        f"{activity.conflicts:,}",
        f"{queue.aside:,}",
        _age(export.oldest_seconds if export else None),
        _state(queue),
    ]


def _state(queue: QueueStatus) -> str:
    if queue.problem:
        return "unreadable"
    return f"paused: {queue.reason}" if queue.paused else "active"


def _worker(worker: WorkerStatus) -> list[Any]:
    return [
        worker.id,
        worker.host,
        worker.pid,
        ", ".join(worker.roles),
        "all" if worker.queues is None else ", ".join(worker.queues),
        worker.buckets,
        f"{worker.passes_per_second:,.1f}" if worker.alive else "-",
        _age(worker.beat_seconds),
        "alive" if worker.alive else "dead",
    ]


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.1f} s"
