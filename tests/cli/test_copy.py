"""`cq copy`: a copy of a store in use, whose age commands print."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Here


def test_commands_read_a_copy_and_say_how_old_it_is(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    here("add", "words", "a=1")
    here("worker", "--drain")
    (copied,) = here("copy", "copy.db", "--json").rows()
    assert copied == {"path": "copy.db", "bytes": Path("copy.db").stat().st_size}
    here("add", "words", "a=1")
    here("worker", "--drain")

    found = here("get", "words", "a", "--store", "embedded:copy.db")

    assert (found.status, found.out.split()) == (0, ["a", "1"])
    assert found.err.startswith("reading a copy of the store, ")
    assert here("copy", "copy.db").out == f"copy.db: {Path('copy.db').stat().st_size:,} bytes\n"
    assert here("get", "words", "a", "--store", "embedded:copy.db").out.split() == ["a", "2"]


def test_a_copy_replaces_no_store(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    found = here("copy", "cq.db", "--store", "embedded:cq.db")
    assert (found.status, found.out, found.err.count("\n")) == (1, "", 1)
