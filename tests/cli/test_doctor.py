"""`cq doctor`: a line for each check, and how it ends. What is looked at is tested with the library."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli, Here


def test_what_is_in_order_is_ok_and_ends_with_0(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")

    ended = here("doctor")

    assert (ended.status, ended.err) == (0, "")
    assert {line[:7] for line in ended.out.splitlines()} == {"OK     "}
    assert "OK     queue words: active, buckets: 1\n" in ended.out


def test_what_is_to_be_done_is_said_and_ends_with_1(here: Here) -> None:
    here("configure", "words", "--export", "counts")
    here("pause", "words")

    ended = here("doctor")

    assert (ended.status, ended.err) == (1, "")
    assert "TO DO  queue words: paused until `cq resume`: by hand. Its updates stay queued." in ended.out
    assert "TO DO  link words export: $CQ_REPORTING_URL is not set" in ended.out
    here("resume", "words")
    here("configure", "words", "--no-export")
    assert "TO DO  workers: no worker is alive. Start a worker" in here("doctor").out
    assert here("worker", "--drain").status == 0
    assert here("doctor").status == 0


def test_with_json_each_check_is_a_line(here: Here) -> None:
    ended = here("doctor", "--store", "fdb:nothing.cluster", "--json")

    checks = {row["name"]: row for row in ended.rows()}
    assert ended.status == 1
    assert list(checks["cluster file"]) == ["name", "ok", "message"]
    assert checks["python"]["ok"]
    assert not checks["cluster file"]["ok"]


def test_the_store_of_the_settings_is_looked_at(cli: Cli) -> None:
    """The command as it is run; a store that is not there is not made."""
    cli.environment["CQ_STORE"] = ""
    (cli.folder / "cq.toml").write_text('store = "embedded:counts.db"')

    ended = cli.run("doctor")

    assert (ended.status, ended.err) == (0, "")
    assert f"{Path(cli.folder) / 'counts.db'} does not exist yet" in ended.out
    assert [path.name for path in cli.folder.iterdir()] == ["cq.toml"]


def test_columns_of_a_table_come_from_the_app(here: Here) -> None:
    assert "--app 'nothing:app' cannot be imported" in here("doctor", "--app", "nothing:app").err
