"""A change observer that feeds a second queue: orders per customer, and customers per number of orders."""

import tempfile

import cq
from cq.observers.worker import Worker

orders = cq.CombineQueue("orders")
histogram = cq.CombineQueue("histogram")


def count_customers(tr, changes):
    """Move each customer from the old number of orders to the new one, in the pass's own transaction."""
    for change in changes:
        moved = {}
        if change.old is not None:
            moved[change.old] = -1
        if change.new is not None:
            moved[change.new] = 1
        histogram.add(tr, moved)


app = cq.App()  # in production: `cq worker --app this_module:app`
app.queue("orders", observers=[cq.Observer("count_customers", 1, count_customers)])


def main():
    db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
    app.configure(db, "orders", key=str, value=int, combiner="sum")
    cq.configure(db, "histogram", key=int, value=int, combiner="sum")

    for customer in ["ada", "bob", "ada", "cyd"]:
        cq.transact(db, lambda tr, customer=customer: orders.add(tr, {customer: 1}))
        Worker(db, app).drain()

    for number, customers in sorted(histogram.scan(db)):
        print(f"{customers} with {number}")


if __name__ == "__main__":
    main()

# Prints:
# 2 with 1
# 1 with 2
