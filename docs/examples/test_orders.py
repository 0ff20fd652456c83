"""Tests of an application with a queue: `pytest test_orders.py`."""

import pytest

import cq
from cq.testing import assert_drained, assert_values, drain

# The application

orders = cq.CombineQueue("orders")  # customer: number of orders
sizes = cq.CombineQueue("sizes")  # number of orders: customers with this number


def count_sizes(tr, changes):
    for change in changes:
        sizes.add(tr, {number: by for number, by in ((change.old, -1), (change.new, 1)) if number})


app = cq.App()
app.queue("orders", observers=[count_sizes])


def configure(db):
    app.configure(db, "orders", key=str, value=int, combiner="sum")
    cq.configure(db, "sizes", key=int, value=int, combiner="sum")


@cq.transactional
def order(tr, customer, article, stock):
    tr.set(b"orders/" + customer.encode() + b"/" + article.encode(), b"")
    orders.add(tr, {customer: 1})
    if article not in stock:
        raise LookupError(f"no article {article}")


# Its tests

pytest_plugins = ["cq.testing"]  # in a project of more than one file: in the topmost conftest.py


@pytest.fixture
def db(cq_db):
    configure(cq_db)
    return cq_db


def test_orders_are_counted(db):
    for customer, article in [("ada", "nails"), ("bob", "glue"), ("ada", "glue")]:
        order(db, customer, article, stock={"nails", "glue"})

    drain(db, app=app)

    assert_values(db, orders, {"ada": 2, "bob": 1})
    assert_values(db, sizes, {1: 1, 2: 1})
    assert_drained(db)


def test_an_order_that_fails_does_not_count(db):
    with pytest.raises(LookupError):
        order(db, "ada", "screws", stock={"nails"})

    drain(db, app=app)

    assert_values(db, orders, {})
