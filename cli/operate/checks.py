"""`cq doctor` and `cq health`: checks of the installation, and of what runs, for people and for monitoring."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import AppOptions, Options, duration_option, flag
from cq.cli.shared.output import print_json, say
from cq.observers.monitoring.diagnosis import doctor
from cq.observers.monitoring.findings import MAX_AGE_SECONDS
from cq.observers.monitoring.health_check import ANSWER_SECONDS, health

commands = CommandSet()


@commands.command(
    "doctor", examples=["cq doctor", "cq doctor --store fdb: --json", "cq doctor --app shop.counts:app"]
)
def show_checks(options: AppOptions) -> None:
    """Check what cq needs, from Python to reporting databases.

    Each check prints a line: OK, or what to do. The exit status is 1 if there is something to do. No data is changed.
    With --json one line per check.
    """
    app = options.load_app()  # its code declares targets, and columns of tables
    sick = False
    for check in doctor(options.store, app):
        sick = sick or not check.ok
        if options.json:
            print_json(asdict(check))
        else:
            say(f"{'OK' if check.ok else 'TO DO':5}  {check.name}: {check.message}")
    if sick:
        raise typer.Exit(1)


@commands.command("health", examples=["cq health", "cq health --max-age 5m --here --json"])
def show_health(
    options: Options,
    max_age: Annotated[
        float, duration_option("Maximum age of queued updates in a queue that is not paused.")
    ] = MAX_AGE_SECONDS,
    here: Annotated[bool, flag("--here", "Require a live worker on this host.")] = False,
) -> None:
    """Check that the store answers and workers keep up.

    It is healthy if the store answers, a worker is alive, no queue without a pause has an update older than
    --max-age, and `cq status` reports no problem, such as a stopped link or missing code. Each problem is a line; the
    exit status is then 1. With --json it prints one line. With --here it leaves out what a restart of the workers on
    this host would not change: use it for containers.
    """
    db = options.read_store()
    db.options.set_transaction_timeout(int(ANSWER_SECONDS * 1000))
    problems = health(db, max_age=max_age, here=here)
    if options.json:
        print_json({"healthy": not problems, "problems": problems})
    else:
        for line in problems or ["healthy"]:
            say(line)
    if problems:
        raise typer.Exit(1)
