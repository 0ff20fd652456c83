"""`cq doctor`: check the installation."""

from __future__ import annotations

from dataclasses import asdict

import typer

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import AppOptions
from cq.cli.shared.output import print_json, say
from cq.observers.monitoring.diagnosis import doctor

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
