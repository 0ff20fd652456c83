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


def test_ask_without_an_answer_says_why(here: Here, db: Any) -> None:
    cq.configure(db, "stock", key=str, value=int, decider=deciders.bounded(0, 10))
    cq.configure(db, "words", key=str, value=int)
    refused = here("ask", "stock", "nails", "1", "--timeout", "0", "--withdraw")
    assert refused.status == 1
    assert "it is withdrawn and will not be decided" in refused.err
    assert "has no decider" in here("ask", "words", "a", "1").err
    assert here("ask", "stock", "nails", "nothing").status == 2
