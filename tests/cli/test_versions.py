"""`cq configure --app` with new versions of an application's code."""

from __future__ import annotations

from typing import Any

import cq
from cq.config.queue import QueueConfig, read_config
from tests.cli.conftest import Cli

SHOP = """
import cq

app = cq.App()
totals = cq.CombineQueue("totals")

def count(tr, changes):
    totals.add(tr, {"all": sum((change.new or 0) - (change.old or 0) for change in changes)})

def clear(tr):
    cq.purge(tr, "totals")

app.queue("orders", observers=[cq.Observer("count", VERSION, count, clear=CLEAR)])
"""


def write_app(cli: Cli, version: int, *, clears: bool) -> None:
    text = SHOP.replace("VERSION", str(version)).replace("CLEAR", "clear" if clears else "None")
    text += "#" * version  # of another length, so that Python compiles it anew
    (cli.folder / "shop.py").write_text(text)


def total(cli: Cli) -> str:
    assert cli.run("worker", "--app", "shop:app", "--drain").status == 0
    return cli.run("get", "totals", "all").out


def made(cli: Cli, *, clears: bool) -> None:
    write_app(cli, 1, clears=clears)
    cli.run("configure", "totals", "--key", "str")
    cli.run("configure", "orders", "--key", "str", "--app", "shop:app")
    cli.run("add", "orders", "ada=1", "bob=2")
    assert total(cli) == "all\t3\n"
    write_app(cli, 2, clears=clears)


def test_a_new_version_of_an_observer_is_confirmed_and_clears_what_the_former_one_wrote(
    cli: Cli, db: Any
) -> None:
    made(cli, clears=True)

    refused = cli.run("configure", "orders", "--key", "str", "--app", "shop:app")

    assert refused.status == 2
    assert "2 keys of queue 'orders' will be reported again, each as new, to count@1 → count@2" in refused.err
    assert "cleared first. Go on? Confirm with --yes: standard input is not a terminal" in refused.err
    assert "observers count@1" in cli.run("configure", "orders").out
    assert cli.run("configure", "orders", "--app", "shop:app", "--yes").status == 0
    assert total(cli) == "all\t3\n"
    assert cli.run("configure", "orders", "--app", "shop:app").status == 0, "nothing is reported again"


def test_an_observer_without_a_clear_says_that_values_will_count_twice(cli: Cli, db: Any) -> None:
    made(cli, clears=False)

    refused = cli.run("configure", "orders", "--key", "str", "--app", "shop:app")

    assert refused.status == 2
    assert "what it has written stays, as it has no function `clear`" in refused.err
    assert cli.run("configure", "orders", "--app", "shop:app", "--yes").status == 0
    assert total(cli) == "all\t6\n"


def test_a_rebuild_of_an_observer_of_the_application_is_confirmed_and_clears(cli: Cli, db: Any) -> None:
    made(cli, clears=True)
    write_app(cli, 1, clears=True)

    refused = cli.run("configure", "orders", "--app", "shop:app", "--rebuild", "count")

    assert refused.status == 2
    assert "to count@1 (rebuilt): what it has written is cleared first" in refused.err
    assert cli.run("configure", "orders", "--app", "shop:app", "--rebuild", "count", "--yes").status == 0
    assert total(cli) == "all\t3\n"


READINGS = """
import cq

def summarise(key, values):
    return [sum(value[0] for value in values), sum(value[1] for value in values)]

def convert(key, value, version):
    return [value[0], value[1] * 100]

seen = cq.Observer("seen", VERSION, lambda tr, changes: None, clear=lambda tr: None)
app = cq.App()
app.queue("readings", combiner=cq.Combiner("summary", VERSION, summarise, convert=convert), observers=[seen])
"""


def test_a_combiner_is_changed_to_a_later_version_in_one_command(cli: Cli, db: Any) -> None:
    for version in (1, 2):
        (cli.folder / f"readings{version}.py").write_text(READINGS.replace("VERSION", str(version)))
    cli.run("configure", "readings", "--key", "str", "--value", "list", "--app", "readings1:app")
    cli.run("add", "readings", "attic=[1, 21]")
    assert cli.run("worker", "--drain", "--app", "readings1:app").status == 0
    cli.run("add", "readings", "attic=[1, 25]")

    refused = cli.run("configure", "readings", "--app", "readings2:app")
    with cli.start("configure", "readings", "--app", "readings2:app", "--yes") as configuring:
        while read(db).conversion is None:
            assert configuring.poll() is None
        cli.run("add", "readings", "attic=[1, 400]")
        former = cli.run("worker", "--drain", "--app", "readings1:app")
        status = configuring.wait(30)
    assert cli.run("worker", "--drain", "--app", "readings2:app").status == 0

    assert refused.status == 2
    assert "changes from summary@1 to summary@2" in refused.err
    assert "convert 1 value, and continue. Go on? Confirm with --yes" in refused.err
    assert status == 0, former.err
    assert cli.run("get", "readings", "attic").out == "attic\t[3, 5000]\n"
    assert read(db).conversion is None
    assert [str(each) for each in (read(db).combiner, *read(db).observers)] == ["summary@2", "seen@2"]


def test_other_settings_are_shown_and_changed_while_the_combiner_changes(cli: Cli, db: Any) -> None:
    for version in (1, 2):
        (cli.folder / f"readings{version}.py").write_text(READINGS.replace("VERSION", str(version)))
    cli.run("configure", "readings", "--key", "str", "--value", "list", "--app", "readings1:app")
    cli.run("add", "readings", "attic=[1, 21]")
    with cli.start("configure", "readings", "--app", "readings2:app", "--yes") as configuring:
        while read(db).conversion is None:
            assert configuring.poll() is None
        configuring.kill()

    shown = cli.run("configure", "readings")
    changed = cli.run("configure", "readings", "--priority", "20")
    again = cli.run("configure", "readings", "--app", "readings2:app")
    status = cli.run("status")

    assert "workers with summary@1 must combine its former updates" in status.out
    assert (shown.status, changed.status) == (0, 0), shown.err + changed.err
    assert again.status == 2
    assert "then those with summary@2 take over. Go on?" in again.err


def read(db: Any) -> QueueConfig:
    return cq.transact(db, lambda tr: read_config(tr.snapshot, "readings"))
