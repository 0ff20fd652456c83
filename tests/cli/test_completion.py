"""Completion: what shells get for a word of the command line, by the variables and the scripts of typer."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import links
from cq.cells.directory import Directory
from cq.combiners import BUILT_IN
from cq.feeds.feed import Feed
from cq.observers.scheduling.members import ROLES
from cq.observers.top.index import top
from tests.cli.conftest import Cli, Here
from tests.kit.processes import Outcome, run_program


@pytest.fixture
def names(db: Any) -> None:
    """Queues, a feed and a cell."""
    cq.configure(db, "words", observers=[top()], links=[links.table("t", name="report")])
    cq.configure(db, "tags")
    Feed("chat").configure(db)
    Directory(db).put_cell("eu-1", {"url": "embedded:/eu.db"}, is_new=True)


class Shell:
    """Asks `cq` for candidates as the scripts of shells do."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here = here
        self._monkeypatch = monkeypatch

    def ask(self, shell: str, **variables: str) -> Outcome:
        """What the command prints for these variables of a shell."""
        with self._monkeypatch.context() as patch:
            for name, value in {"_CQ_COMPLETE": f"complete_{shell}", **variables}.items():
                patch.setenv(name, value)
            return self._here()

    def words(self, *words: str) -> list[str]:
        """The candidates for the last of these words, which bash has broken."""
        ended = self.ask("bash", COMP_WORDS="\n".join(["cq", *words]), COMP_CWORD=str(len(words)))
        assert (ended.status, ended.err) == (0, "")
        return ended.out.split()


@pytest.fixture
def shell(here: Here, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell that completes words on the store of `cli`."""
    return Shell(here, monkeypatch)


@pytest.mark.usefixtures("names")
def test_names_are_candidates(shell: Shell) -> None:
    for line, expected in {
        "pause ": ["tags", "words"],
        "pause z": [],
        "pause words ": [],
        "link list t": ["tags"],
        "worker words ": ["tags", "words", "chat"],
        "worker --only ": ROLES,
        "feed read ": ["chat"],
        "cells drain ": ["eu-1"],
        "configure words --combiner ": BUILT_IN,
        "configure words --combiner = mi": ["minimum"],
        "configure words --feed c": ["chat"],
        "configure words --rebuild ": ["top", "report"],
        "link check words ": ["report"],
        "configure none --rebuild ": [],
        "--version pau": ["pause"],
    }.items():
        assert shell.words(*line.split(" ")) == list(expected), line


@pytest.mark.usefixtures("names")
def test_the_store_is_that_of_the_command_line_else_of_the_settings_file(
    shell: Shell, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CQ_STORE")
    assert shell.words("pause", "") == []
    for given in (["--store", "embedded", ":", "./cli.db"], ["--store", "=", "embedded", ":", "./cli.db"]):
        assert shell.words("pause", *given, "w") == ["words"]
    assert shell.words("cells", "drain", "--directory", "embedded", ":", "cli.db", "") == ["eu-1"]
    settings = cli.folder / "cq.toml"
    settings.write_text('store = "embedded:cli.db"\n')
    assert shell.words("pause", "") == ["tags", "words"]
    assert shell.words("pause", "--store", "embedded", ":", "./other.db", "") == []
    settings.write_text("store = [")
    assert shell.words("pause", "") == []


@pytest.mark.parametrize(
    "store", ["embedded:missing.db", "embedded:broken.db", "fdb:missing", "nothing:", ""]
)
def test_after_an_error_there_are_no_candidates_messages_and_files(
    shell: Shell, cli: Cli, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    (cli.folder / "broken.db").write_bytes(b"no store\n" * 1_000)
    monkeypatch.setenv("CQ_STORE", store)

    assert shell.words("pause", "") == []
    assert shell.words("cells", "drain", "") == []
    assert [file.name for file in cli.folder.iterdir()] == ["broken.db"]


def test_names_that_a_shell_would_evaluate_are_no_candidates(shell: Shell, db: Any) -> None:
    """Another program may have written them."""
    cells = Directory(db)
    for name in ("$(touch run)", "eu-1", "a b", "x\n", "`y`", ":", ""):
        cells.put_cell(name, {"url": "embedded:/eu.db"}, is_new=True)

    assert shell.words("cells", "drain", "") == ["eu-1"]


@pytest.mark.usefixtures("names")
def test_bash_completes_with_the_generated_script(cli: Cli) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this machine")
    program = cli.folder / "cq"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cq "$@"\n')
    program.chmod(0o700)
    script = """
        eval "$(_CQ_COMPLETE=source_bash cq)"
        complete -p cq
        COMP_WORDS=(cq pause --store embedded : ./cli.db w) COMP_CWORD=6
        _cq_completion cq
        printf '<%s>' "${COMPREPLY[@]}"
    """
    path = os.pathsep.join([str(cli.folder), cli.environment["PATH"]])
    environment = {**cli.environment, "PATH": path, "CQ_STORE": "embedded:missing.db"}

    ended = run_program(bash, "--norc", "-c", script, cwd=cli.folder, env=environment)

    assert ended == (0, "complete -o default -F _cq_completion cq\n<words>", "")
    assert not Path(cli.folder, "missing.db").exists()
