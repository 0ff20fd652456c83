"""`cq demo stock`: nothing is oversold or overspent, and all of the budget can be spent, whoever is killed."""

from __future__ import annotations

from collections import Counter
from threading import Event
from typing import Any, Final

import pytest

from cq import deciders
from cq.cli.demos import stock
from cq.cli.demos.harness import DemoDiffers
from cq.cli.demos.stock import Purchase, check_bounds, counted, make_queues, recount, run_buyer
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.cli.conftest import Cli
from tests.kit.workers import running

CAP: Final = 8


def test_all_is_as_recounted_whoever_is_killed(cli: Cli) -> None:
    """It takes the time of a hold: at its end all holds have expired."""
    sizes = ("--processes", "2", "--workers", "1", "--cap", "43", "--for", "1s", "--kill-every", "0.4")

    ended = cli.run("demo", "stock", *sizes, "--seed", "7", "--json")

    assert (ended.status, ended.err) == (0, "seed 7\n")
    (found,) = ended.rows()
    assert found["kills"] > 0
    assert found["decisions"] > 0
    assert found["cap"] == 40 * found["days"]
    assert found["spent"] == sum(each["price"] * each["sold"] for each in found["shops"].values())
    assert found["usable"] == 1
    assert not (cli.folder / "cli.db").exists()


@pytest.fixture
def shops(cli: Cli, db: Any) -> Any:
    """The store of the command line with the queues, and a worker."""
    make_queues(db, CAP)
    with running(Worker(db)):
        yield db


def go_on(cli: Cli, db: Any, purchase: Purchase) -> Counter[tuple[str, int]]:
    """What a buyer counts that was killed after it had asked for a step of a purchase, when the shops have closed."""
    transact(db, lambda tr: tr.set(stock._CLOSED, b""))
    transact(db, purchase.asked)
    run_buyer(Event(), url=cli.url, buyer=purchase.buyer, seed=1)
    (stored,) = transact(db, stock.stored_purchases)
    assert (stored.step, stored.ticket) == ("", "")
    return counted(db)


def test_a_purchase_goes_on_after_a_kill(cli: Cli, shops: Any) -> None:
    stock._budget.ask_now(shops, 1, deciders.reserve(1, "0-5", ttl=60))
    counts = go_on(cli, shops, Purchase(0, 5, 1, "north", "buy", ""))
    assert counts == {("north", 1): -1, ("charged", 1): 1, ("decisions", 1): 2}
    found = recount(shops, CAP)
    assert (found["spent"], found["usable"]) == (1, 1)


def test_a_piece_is_put_back_if_its_hold_has_expired(cli: Cli, shops: Any) -> None:
    counts = go_on(cli, shops, Purchase(0, 5, 1, "north", "buy", ""))
    assert +counts == {("put back", 1): 1, ("decisions", 1): 3}
    assert recount(shops, CAP)["put_back"] == 1


def test_the_hold_of_a_killed_buyer_is_abandoned(cli: Cli, shops: Any) -> None:
    counts = go_on(cli, shops, Purchase(0, 5, 1, "south", "reserve", ""))
    assert counts == {("abandoned", 1): 1, ("decisions", 1): 1}
    with pytest.raises(DemoDiffers, match=r"only 0\.0% of the budgets were usable"):
        recount(shops, CAP)  # as it has not expired yet


def test_differences_are_told(cli: Cli, shops: Any) -> None:
    go_on(cli, shops, Purchase(0, 5, 1, "north", "buy", ""))
    check_bounds(shops, CAP)
    with pytest.raises(DemoDiffers, match="the shop north has 4 of 2 pieces"):
        check_bounds(shops, CAP // 2)
    stock._stock.ask_now(shops, ("south", 1), -1)
    with pytest.raises(DemoDiffers, match=r"the pieces that are left: .*'south', 1.: 3 instead of None"):
        recount(shops, CAP)
