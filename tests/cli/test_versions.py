"""`cq configure --app` with new versions of an application's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cq
from cq.config.queue import QueueConfig, read_config
from tests.cli.conftest import Cli, Here
from tests.kit.processes import wait_for_line, wait_until

SHOP = """
import cq
from cq import admin

app = cq.App()
totals = cq.CombineQueue("totals")

def count(tr, changes):
    totals.add(tr, {"all": sum((change.new or 0) - (change.old or 0) for change in changes)})

def clear(tr):
    admin.purge(tr, "totals")

app.queue("orders", observers=[cq.Observer("count", VERSION, count, clear=CLEAR)])
"""


def write_app(version: int, *, clears: bool) -> None:
    text = SHOP.replace("VERSION", str(version)).replace("CLEAR", "clear" if clears else "None")
    text += "#" * version  # of another length, so that Python compiles it anew
    Path("shop.py").write_text(text)


def total(here: Here) -> str:
    assert here("worker", "--app", "shop:app", "--drain").status == 0
    return here("get", "totals", "all").out


def made(here: Here, *, clears: bool) -> None:
    write_app(1, clears=clears)
    here("configure", "totals", "--key", "str")
    here("configure", "orders", "--key", "str", "--app", "shop:app")
    here("add", "orders", "ada=1", "bob=2")
    assert total(here) == "all\t3\n"
    write_app(2, clears=clears)


def test_a_new_version_of_an_observer_is_confirmed_and_clears_what_the_former_one_wrote(here: Here) -> None:
    made(here, clears=True)

    refused = here("configure", "orders", "--key", "str", "--app", "shop:app")

    assert refused.status == 2
    assert "2 keys of queue 'orders' will be reported again, each as new, to count@1 → count@2" in refused.err
    assert "cleared first. Go on? Confirm with --yes: standard input is not a terminal" in refused.err
    assert "observers count@1" in here("configure", "orders").out
    assert here("configure", "orders", "--app", "shop:app", "--yes").status == 0
    assert total(here) == "all\t3\n"
    assert here("configure", "orders", "--app", "shop:app").status == 0, "nothing is reported again"


def test_an_observer_without_a_clear_says_that_values_will_count_twice(here: Here) -> None:
    made(here, clears=False)

    refused = here("configure", "orders", "--key", "str", "--app", "shop:app")

    assert refused.status == 2
    assert "what it has written stays, as it has no function `clear`" in refused.err
    assert here("configure", "orders", "--app", "shop:app", "--yes").status == 0
    assert total(here) == "all\t6\n"


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


def make_readings(here: Here) -> None:
    """A queue with an update, by the first of two versions of an application."""
    for version in (1, 2):
        Path(f"readings{version}.py").write_text(READINGS.replace("VERSION", str(version)))
    here("configure", "readings", "--key", "str", "--value", "list", "--app", "readings1:app")
    here("add", "readings", "attic=[1, 21]")


def test_a_combiner_is_changed_to_a_later_version_in_one_command(cli: Cli, here: Here, db: Any) -> None:
    make_readings(here)
    assert here("worker", "--drain", "--app", "readings1:app").status == 0
    here("add", "readings", "attic=[1, 25]")

    refused = here("configure", "readings", "--app", "readings2:app")
    with cli.start("configure", "readings", "--app", "readings2:app", "--yes") as configuring:
        wait_until(lambda: read(db).conversion is not None, configuring)
        here("add", "readings", "attic=[1, 400]")
        former = here("worker", "--drain", "--app", "readings1:app")
        status = configuring.wait(30)
    assert here("worker", "--drain", "--app", "readings2:app").status == 0

    assert refused.status == 2
    assert "changes from summary@1 to summary@2" in refused.err
    assert "convert 1 value, and continue. Go on? Confirm with --yes" in refused.err
    assert status == 0, former.err
    assert here("get", "readings", "attic").out == "attic\t[3, 5000]\n"
    assert read(db).conversion is None
    assert [str(each) for each in (read(db).combiner, *read(db).observers)] == ["summary@2", "seen@2"]


def test_other_settings_are_shown_and_changed_while_the_combiner_changes(
    cli: Cli, here: Here, db: Any
) -> None:
    make_readings(here)
    with cli.start("configure", "readings", "--app", "readings2:app", "--yes") as configuring:
        waits = b"waiting for workers to combine, with summary@1, the former updates of queue 'readings'"
        wait_for_line(configuring, waits)
        configuring.kill()

    shown = here("configure", "readings")
    changed = here("configure", "readings", "--priority", "20")
    again = here("configure", "readings", "--app", "readings2:app")
    status = here("status")

    assert read(db).conversion is not None
    assert "workers with summary@1 must combine its former updates" in status.out
    assert (shown.status, changed.status) == (0, 0), shown.err + changed.err
    assert again.status == 2
    assert "then those with summary@2 take over. Go on?" in again.err


def read(db: Any) -> QueueConfig:
    return cq.transact(db, lambda tr: read_config(tr.snapshot, "readings"))
