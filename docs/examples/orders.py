"""An order system: totals per customer and product, a top, a table, and the repair of a poison update."""

from decimal import Decimal

import cq
from cq.links import table
from cq.observers.top import Ranking, top

CATEGORIES = {"nails": "hardware", "glue": "chemicals"}

app = cq.App()
spent = app.queue("spent", key=str, value=Decimal)  # by customer
categories = app.queue("categories", key=str, value=int)  # pieces by category


def count_categories(tr, changes):
    for change in changes:
        pieces = (change.new or 0) - (change.old or 0)
        categories.add(tr, {CATEGORIES[change.key]: pieces})


sold = app.queue(  # pieces by product
    "sold",
    key=str,
    value=int,
    rollup="1d:forever",
    observers=[top(10), count_categories],
    links=[table("products_sold")],
)
best = Ranking("sold")


@cq.transactional
def place(tr, number, customer, lines):
    """Store an order of {product: (pieces, price)}, and count it: all of it or nothing."""
    tr.set(b"orders/%d" % number, customer.encode())
    total = sum(pieces * Decimal(price) for pieces, price in lines.values())
    spent.add(tr, {customer: total})
    sold.add(tr, {product: pieces for product, (pieces, _) in lines.items()})


def main():
    import logging
    import tempfile

    from cq.observers.worker import Worker
    from cq.queue import retry_aside

    logging.getLogger("cq.worker").setLevel(logging.ERROR)  # it warns of the key that is set aside
    # The table needs a database, and a worker that only combines needs none.
    db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
    app.configure_all(db)
    place(db, 1, "ada", {"nails": (100, "0.02"), "glue": (1, "4.50")})
    place(db, 2, "bob", {"nails": (50, "0.02"), "tape": (2, "3.25")})

    Worker(db, app, roles=["combine"]).drain()
    print(*sorted(spent.scan(db)))
    print(*[(entry.key, entry.score) for entry in cq.transact(db, lambda tr: best.page(tr, 2).entries)])

    CATEGORIES["tape"] = "hardware"
    print(retry_aside(db, "sold"), "update retried")
    Worker(db, app, roles=["combine"]).drain()
    print(*sorted(categories.scan(db)))


if __name__ == "__main__":
    main()

# Prints:
# ('ada', Decimal('6.50')) ('bob', Decimal('7.50'))
# ('nails', 150) ('glue', 1)
# 1 update retried
# ('chemicals', 1) ('hardware', 152)
