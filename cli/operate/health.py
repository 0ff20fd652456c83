"""`cq health`: the check for monitoring."""

from __future__ import annotations

from typing import Annotated

import typer

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, duration_option, flag
from cq.cli.shared.output import print_json, say
from cq.observers.monitoring.health_check import ANSWER_SECONDS, MAX_AGE_SECONDS, health

commands = CommandSet()


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
