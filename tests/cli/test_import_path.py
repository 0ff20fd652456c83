"""Processes that cq starts import nothing from the current folder, unless `--app` names a module there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import cq
from tests.cli.commands import LITTLE
from tests.cli.conftest import Cli
from tests.kit.queues import add

pytestmark = pytest.mark.sampled(4)

TRAP = """
import os
with open(os.environ["SPRUNG"], "a") as sprung:
    sprung.write(__name__ + "\\n")
raise SystemExit("code of the current folder was run")
"""
SHADOWS = (
    "typer",
    "rich",
    "cbor2",
    "sqlalchemy",
    "multiprocessing",
    "signal",
    "json",
    "threading",
    "selectors",
)
"""Modules that cq, or Python itself, imports when a process starts."""


@pytest.fixture
def trapped(cli: Cli) -> Cli:
    """The installed command in a folder whose modules have the names of those that cq imports."""
    for name in SHADOWS:
        (cli.folder / f"{name}.py").write_text(TRAP)
    (cli.folder / "texts").mkdir()
    (cli.folder / "texts" / "one.txt").write_text("a b a")
    cli.environment["SPRUNG"] = str(cli.folder / "sprung")
    cli.program = (str(Path(sys.executable).with_name("cq")),)
    return cli


@pytest.mark.parametrize(
    "command",
    [
        ("worker", "--processes", "2", "--drain"),
        ("demo", "words", "texts"),
        ("demo", "tags", "--store", "embedded:tags.db", "--number", "50"),
        ("bench", *LITTLE, "--against", "none", "--per-transaction", "5"),
    ],
    ids=lambda command: command[0] + command[1].replace("--seconds", ""),
)
def test_modules_of_the_current_folder_are_not_imported(
    trapped: Cli, db: Any, command: tuple[str, ...]
) -> None:
    cq.configure(db, "counted")
    add(db, "counted", {"a": 1})

    ended = trapped.run(*command)

    assert ended.status == 0, ended.err
    assert not (trapped.folder / "sprung").exists()


def test_the_processes_of_a_worker_find_the_app_in_the_current_folder(trapped: Cli, db: Any) -> None:
    (trapped.folder / "shop.py").write_text(
        "import cq\napp = cq.App()\napp.queue('words', combiner='maximum')\n"
    )
    for name in SHADOWS:  # with --app, modules of the current folder come first
        (trapped.folder / f"{name}.py").unlink()
    assert trapped.run("configure", "words", "--app", "shop:app").status == 0
    assert trapped.run("add", "words", "a=2", "a=1").status == 0

    assert trapped.run("worker", "--processes", "2", "--drain", "--app", "shop:app").status == 0

    assert trapped.run("get", "words", "a").out == "a\t2\n"
