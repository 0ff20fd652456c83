"""The pages say what is so: links lead somewhere, and commands and numbers are the code's."""

from __future__ import annotations

import ast
import re
import runpy
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.config import parts, rollup
from cq.encoding import codec
from cq.queue import operation_ids, packing, pending
from cq.testing import drain
from tests.docs.pages import DOCS, ROOT, anchors, blocks

PAGES = sorted(DOCS.rglob("*.md"))
TOP_PAGES = sorted(ROOT.glob("*.md"))
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def named(path: Path) -> str:
    """Its path from the folder of the documentation, or the name of a page at the top."""
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The names in docs/reference.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return runpy.run_path(str(DOCS / "reference.py"))


@pytest.mark.parametrize("page", [*PAGES, *TOP_PAGES], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", TOP_PAGES, ids=named)
def test_files_and_modules_that_a_page_at_the_top_names_exist(page: Path) -> None:
    for path in re.findall(r"`((?:\.ci|cq|observers|cli|tests|docs)/[\w./*-]*)`", page.read_text()):
        assert [*ROOT.glob(path)], path
    for module in re.findall(r"python -m (tests[\w.]*)", page.read_text()):
        assert (ROOT / module.replace(".", "/")).exists(), module


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "index.md"], ids=named)
def test_the_index_leads_to_every_page(page: Path) -> None:
    assert f"]({named(page)})" in (DOCS / "index.md").read_text()


def test_what_repeats_the_code_is_up_to_date(reference: dict[str, Any]) -> None:
    pages: dict[Path, str] = reference["written_pages"]()

    assert len(pages) > 15
    outdated = [named(path) for path, content in pages.items() if path.read_text() != content]
    assert outdated == [], "run `python docs/reference.py`"


def test_every_command_is_written_about(reference: dict[str, Any]) -> None:
    """Besides its own section in cli.md."""
    commands = dict(reference["commands"](reference["typer"].main.get_command(reference["command_line"]())))
    text = "\n".join(page.read_text() for page in [*PAGES, ROOT / "README.md"] if page.name != "cli.md")

    assert [words for words in commands if words not in text] == []


@pytest.mark.parametrize("page", [*PAGES, *TOP_PAGES], ids=named)
def test_python_that_is_shown_is_python(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)


@pytest.mark.parametrize(
    "number",
    [
        codec.MAX_KEY_BYTES,
        codec.MAX_KEY_BYTES - rollup.LEVEL_KEY_BYTES,
        codec.MAX_UPDATE_BYTES,
        codec.MAX_VALUE_BYTES,
        parts.MAX_BUCKETS,
        pending.PENDING_BYTES,
        packing.ROW_BYTES,
        int(operation_ids.REMEMBER_SECONDS / 3600),
    ],
)
def test_limits_are_those_of_the_code(number: int) -> None:
    table = (DOCS / "operate/problems.md").read_text().split("## Limits")[1].split("\n## ")[0]

    assert re.search(rf"\b{number:,}\b", table)


def rows(page: Path, header: str) -> list[list[str]]:
    """The cells of the table of a page whose header begins with these columns, without the line below the header."""
    (table,) = re.findall(rf"^\| {re.escape(header)} .*(?:\n\|.*)+", page.read_text(), flags=re.MULTILINE)
    head, _, *body = ([cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return [head, *body]


def test_the_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    fit, benchmarks = DOCS / "learn/fit.md", DOCS / "understand/benchmarks.md"
    cluster = "updates per transaction | cq add"
    (_, *systems), *ratios = rows(fit, "updates per transaction | `read-modify-write`")
    measured = {(row[0], row[1]): row[-1] for row in rows(benchmarks, "updates in a transaction")}

    assert rows(fit, cluster) == rows(benchmarks, cluster)
    for number, *row in ratios:
        assert row == [measured[number, system] for system in systems]


def test_a_copy_made_as_the_page_of_backups_says_is_a_whole_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by another process, as SQLite must not open a file twice in one, while updates are added."""
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(DOCS / "operate/backup.md", "python")
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
        subprocess.run([sys.executable, "-c", program, "cq.db", "copy.db"], check=True)
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
