"""The pages say what is so: links lead somewhere, commands and numbers are the code's, and the tutorial works."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import codec, config, markers, packing, pendingrows
from cq.testing import drain

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def named(path: Path) -> str:
    return path.relative_to(DOCS).as_posix()


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def blocks(page: Path, language: str) -> list[str]:
    """The code of a language that a page shows."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The names in docs/reference.py."""
    return runpy.run_path(str(DOCS / "reference.py"))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "index.md"], ids=named)
def test_the_index_leads_to_every_page(page: Path) -> None:
    assert f"]({named(page)})" in (DOCS / "index.md").read_text()


@pytest.mark.parametrize("name", ["cli.md", "howto/verify.md", "key-layout.md", "operations.md"])
def test_what_repeats_the_code_is_up_to_date(reference: dict[str, Any], name: str) -> None:
    written = reference["page"](name, reference["PAGES"][name]())

    assert (DOCS / name).read_text() == written, "run `python docs/reference.py`"


def test_every_command_is_written_about(reference: dict[str, Any]) -> None:
    """Besides its own section in cli.md."""
    commands = dict(reference["commands"](reference["typer"].main.get_command(reference["app"])))
    text = "\n".join(page.read_text() for page in [*PAGES, ROOT / "README.md"] if page.name != "cli.md")

    assert [words for words in commands if words not in text] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_python_that_is_shown_is_python(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)


@pytest.mark.parametrize(
    "number",
    [
        codec.MAX_KEY_BYTES,
        codec.MAX_UPDATE_BYTES,
        codec.MAX_VALUE_BYTES,
        config.MAX_BUCKETS,
        pendingrows.PENDING_BYTES,
        packing.ROW_BYTES,
        int(markers.REMEMBER_SECONDS / 3600),
    ],
)
def test_limits_are_those_of_the_code(number: int) -> None:
    table = (DOCS / "operations.md").read_text().split("## Limits")[1].split("\n## ")[0]

    assert re.search(rf"\b{number:,}\b", table)


def test_the_tutorial_works_step_by_step(tmp_path: Path) -> None:
    """Its commands and programs one after the other, but for the installation."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, target in {"cq": f"{sys.executable} -m cq.cli", "python": sys.executable}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        (commands / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "CQ_STORE"}
    environment |= {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    shell = shutil.which("bash") or "/bin/sh"
    page = DOCS / "tutorial.md"
    saving, reading = blocks(page, "python")
    (tmp_path / "notes.py").write_text(saving)
    shown = []
    for script in blocks(page, "sh")[1:]:
        ended = subprocess.run(
            [shell, "-c", script], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )
        assert "Traceback" not in ended.stderr
        shown.append((ended.returncode, ended.stdout))
    (tmp_path / "reading.py").write_text(reading)
    read = subprocess.run(
        [sys.executable, "reading.py"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )

    configured, by_hand, pending, combined, from_application = shown
    assert configured[0] == 0
    assert (by_hand[0], by_hand[1].splitlines()[-1]) == (3, "hello\t-")
    assert pending == (0, "hello\t2\n")
    assert combined == (0, "hello\t2\nworld\t1\n")
    found = {"hello\t2", "world\t1", "sun\t2", "all\t1", "day\t1"}
    assert (from_application[0], set(from_application[1].splitlines())) == (0, found)
    assert read.stdout.splitlines()[0] == "2"
    assert {line.replace(" ", "\t") for line in read.stdout.splitlines()[1:]} == found


def test_a_copy_made_as_operations_says_is_a_whole_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by another process, as SQLite must not open a file twice in one, while updates are added."""
    monkeypatch.chdir(tmp_path)
    (program,) = [code for code in blocks(DOCS / "operations.md", "python") if "sqlite3" in code]
    db: Any = cq.open("embedded:cq.db")
    cq.configure(db, "words")
    done = threading.Event()
    added = 0

    def add() -> None:
        nonlocal added
        while not done.is_set():
            cq.transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"a": 1}))
            added += 1

    adding = threading.Thread(target=add)
    adding.start()
    try:
        while not added:
            done.wait(0.01)
        before = added
        subprocess.run([sys.executable, "-c", program], check=True)
        after = added
    finally:
        done.set()
        adding.join()

    copy: Any = cq.open("embedded:copy.db")
    drain(copy, "words")
    drain(db, "words")
    assert before <= dict(cq.CombineQueue("words").scan(copy))["a"] <= after + 1
    assert dict(cq.CombineQueue("words").scan(db)) == {"a": added}
    db.close()
    copy.close()
    assert sqlite3.connect("copy.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
