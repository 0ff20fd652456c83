"""`cq export-config`, `cq import-config`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cq import carrying
from cq.cli.options import AppPath, Json, Store, load_app, make_store, read_store
from cq.cli.output import print_document, print_json, say
from cq.observers.builtin import CHECKED


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "export-config",
        epilog="Examples: cq export-config > queues.json; cq export-config words --store fdb:",
    )(export_config)
    app.command(
        "import-config",
        epilog="Examples: cq import-config queues.json --store fdb:; cq import-config - --app shop.counts:app",
    )(import_config)


def export_config(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="The queues; all of them if left out.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Print the settings of queues as a JSON document, for `cq import-config`; with --json in one line.

    Types, buckets, combiner, observers with their settings, priority and pauses; no updates and no values.
    """
    document = carrying.export_config(read_store(store), queues or ())
    if json:
        print_json(document)
    else:
        print_document(carrying.to_text(document))


def import_config(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE|-", help="What `cq export-config` has printed; - is standard input."),
    ],
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Create the queues of a document that this store lacks, with all their settings.

    All of them or none: when one is there with other settings, or asks for code that --app does not have, nothing is
    changed. With --json a line that says which were created and which were there.
    """
    document = carrying.from_text(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    app = load_app(app_path)
    found = carrying.import_config(make_store(store), document, app, CHECKED)
    if json:
        print_json(asdict(found))
        return
    for name in found.created:
        say(f"queue {name!r} is created")
    for name in found.unchanged:
        say(f"queue {name!r} was there, with the same settings")
