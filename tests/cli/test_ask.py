"""`cq ask`: requests on the command line."""

from __future__ import annotations

import json
from typing import Any

import cq
from cq import deciders
from cq.observers.worker.worker import Worker
from tests.cli.conftest import Here
from tests.kit.workers import running


def test_ask_prints_the_answer(here: Here, db: Any) -> None:
    cq.configure(db, "stock", key=str, value=int, decider=deciders.bounded(0, 10, start=10))
    cq.configure(db, "names", key=str, value=str, decider=deciders.unique())
    with running(Worker(db)):
        assert here("ask", "--timeout", "60", "stock", "nails", "--", "-6").out == "-6\n"
        repeated = [
            here("ask", "--once", "order 1", "--json", "stock", "nails", "--", "-4") for _ in range(2)
        ]
        assert [json.loads(each.out) for each in repeated] == 2 * [{"key": "nails", "answer": -4}]
        assert here("ask", "stock", "nails", "--", "-1").out == "0\n"
        assert here("ask", "names", "cyd", '{"claim": "ada"}').out == "true\n"
    assert here("get", "stock", "nails").out == "nails\t0\n"


def test_a_failed_request_is_shown_with_its_ticket_as_answer_takes_it(here: Here, db: Any) -> None:
    def decide(key: str, state: int | None, request: int) -> Any:
        raise ValueError("no")

    app = cq.App()
    stock = app.queue("stock", key=str, value=int, decider=cq.Decider("fails", 1, decide))
    app.configure(db, "stock")
    ticket = db.transact(lambda tr: stock.ask(tr, "nails", 3))
    assert here("aside", "show", "stock").out == "nothing is set aside in queue 'stock'\n"
    Worker(db, app).drain()

    (piece,) = here("aside", "show", "stock", "--json").rows()
    assert piece["updates"] == [[str(ticket), 3]]
    assert f'["{ticket}", 3]' in here("aside", "show", "stock").out


def test_ask_without_an_answer_says_why(here: Here, db: Any) -> None:
    cq.configure(db, "stock", key=str, value=int, decider=deciders.bounded(0, 10))
    cq.configure(db, "words", key=str, value=int)
    refused = here("ask", "stock", "nails", "1", "--timeout", "0", "--withdraw")
    assert refused.status == 1
    assert "it is withdrawn and will not be decided" in refused.err
    assert "has no decider" in here("ask", "words", "a", "1").err


def test_a_queue_with_a_built_in_decider_is_made_on_the_command_line(here: Here, db: Any) -> None:
    made = here("configure", "stock", "--decider", "bounded:0:10:start=10:keep=60")
    assert made.out.endswith(
        "value int, combiner last@1, buckets 1, decider bounded@1(clamp=False, hi=10, keep=60, lo=0, start=10)\n"
    )
    for name, decider, value in (
        ("names", "unique", "any"),
        ("rate", "bucket:5:0.5", "list"),
        ("team", "budget:9", "dict"),
    ):
        assert json.loads(here("configure", name, "--decider", decider, "--json").out)["value"] == value
    requests = [("stock", "-4"), ("names", '{"claim": "ada"}'), ("rate", '{"take": 5, "at": 0}')]
    with running(Worker(db)):
        asked = [here("ask", "--timeout", "60", name, "a", "--", request).out for name, request in requests]
        hold = here("ask", "team", "a", '{"reserve": 8, "hold": "h", "ttl": 60}')
        settled = here("ask", "team", "a", '{"settle": "h", "actual": 3}')
    assert asked == ["-4\n", "true\n", "0\n"]
    assert json.loads(hold.out) == {"ok": True, "free": 1}
    assert json.loads(settled.out) == {"ok": True, "charged": 3, "free": 6}
    assert {"refused", "answered", "in"} <= {*here("status", "--wide").out.splitlines()[0].split()}
    # A queue of requests keeps its states: another decider of the same states can take over, others cannot.
    assert here("configure", "stock", "--decider", "bounded:0:20").status == 0
    assert (
        "expected a value type of dict, any for the decider 'budget', got: int"
        in here("configure", "stock", "--decider", "budget:5").err
    )
    refused = here("configure", "other", "--decider", "bounded:a:b")
    assert (refused.status, "expected a decider such as bounded:0:100" in refused.err) == (2, True)
