"""`cq copy`: a copy of an embedded store that is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, argument
from cq.store import make_copy

commands = CommandSet()


@commands.command("copy", examples=["cq copy backup.db", "cq copy /backups/shop.db --store embedded:shop.db"])
def copy(
    options: Options,
    path: Annotated[Path, argument("PATH", "Path of the copy: a new file, or an earlier copy.")],
) -> None:
    """Copy an embedded store to a file, while it is in use.

    The copy is of one moment. It replaces an earlier copy at once, and commands that only read print its age. Put in
    the place of a lost store, it is that store as it was.
    """
    if str(path) == "-":
        raise typer.BadParameter("a copy is a file: give its path", param_hint="PATH")
    make_copy(options.read_store(), path)
    size = path.stat().st_size
    options.answer(f"{path}: {size:,} bytes", path=str(path), bytes=size)
