"""`cq export-config` and `cq import-config`: copy the configuration of queues to another store."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cq import transfer
from cq.cli.shared.options import AppPath, Json, Store, load_app, make_store, read_store
from cq.cli.shared.output import print_document, print_json, say
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
        list[str] | None, typer.Argument(metavar="QUEUE", help="Names of queues. Default: all queues.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Print the configuration of queues as a JSON document.

    `cq import-config` reads it. It has types, buckets, combiner, observers with their settings, priority and pauses; no
    updates and no values. With --json the document is one line.
    """
    document = transfer.export_config(read_store(store), queues or ())
    if json:
        print_json(document)
    else:
        print_document(transfer.to_text(document))


def import_config(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", help="A file with the output of `cq export-config`; - is standard input."
        ),
    ],
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Create the queues of a document that the store lacks.

    It reads the document of `cq export-config`, and creates the queues with all their settings. It creates all of them
    or changes nothing: it fails if a queue exists with other settings, or needs code that --app does not have. With
    --json it prints one line with the names of the created and the unchanged queues.
    """
    document = transfer.from_text(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    app = load_app(app_path)
    result = transfer.import_config(make_store(store), document, app, CHECKED)
    if json:
        print_json(asdict(result))
        return
    for name in result.created:
        say(f"created queue {name!r}")
    for name in result.unchanged:
        say(f"queue {name!r} exists with the same settings")
