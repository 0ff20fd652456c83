"""`cq export-config` and `cq import-config`: settings from one store to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Here

APP = """
import cq

def watch(tr, changes):
    pass

app = cq.App()
app.queue("notes", combiner=cq.Combiner("joined", 1, lambda key, values: "-".join(values)), observers=[watch])
"""


@pytest.fixture
def notes(here: Here, cli: Cli) -> str:
    """A file with the settings of `notes`, whose code `notes_app:app` has, and of `words`, which needs none."""
    (cli.folder / "notes_app.py").write_text(APP)
    here("configure", "words", "--buckets", "4", "--top", "7", "--export", "counts")
    here("configure", "notes", "--value", "str", "--app", "notes_app:app")
    here("pause", "words", "--reason", "it moves")
    (cli.folder / "queues.json").write_text(here("export-config").out)
    return "queues.json"


def test_settings_are_carried_to_another_store(here: Here, cli: Cli, notes: str) -> None:
    there = ["--app", "notes_app:app", "--store", "embedded:there.db"]

    assert here("import-config", notes, *there) == (
        0,
        "created queue 'notes'\ncreated queue 'words'\n",
        "",
    )
    assert here("export-config", "--store", "embedded:there.db").out == (cli.folder / notes).read_text()
    assert here("import-config", notes, *there, "--json").rows() == [
        {"created": [], "unchanged": ["notes", "words"]}
    ]
    words = here("status", "words", "--store", "embedded:there.db", "--json").rows()[0]
    assert (words["reason"], words["settings"]["buckets"]) == ("it moves", 4)


def test_a_document_comes_through_a_pipe(cli: Cli) -> None:
    cli.run("configure", "words")
    one_line = cli.run("export-config", "words", "--json").out
    assert one_line.count("\n") == 1

    ended = cli.run("import-config", "-", "--store", "embedded:there.db", stdin=one_line.encode())

    assert (ended.status, ended.out) == (0, "created queue 'words'\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "combiner joined@1, this process has none of that name: start it with --app"),
        (
            ["--app", "notes_app:app", "--store", "embedded:other.db"],
            "queue 'words' is configured with other settings",
        ),
    ],
)
def test_it_is_all_or_nothing(here: Here, notes: str, args: list[str], said: str) -> None:
    here("configure", "words", "--store", "embedded:other.db")
    args = args or ["--store", "embedded:empty.db"]

    ended = here("import-config", notes, *args)

    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert said in ended.err
    assert "notes" not in here("status", *args[-2:], "--json").out


def test_what_is_no_document_makes_no_store(here: Here, cli: Cli) -> None:
    Path(cli.folder / "broken.json").write_text("{")

    ended = here("import-config", "broken.json", "--store", "embedded:new.db")

    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert not (cli.folder / "new.db").exists()
