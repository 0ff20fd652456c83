"""Updates that were set aside: list them, and add them again after the cause is fixed."""

import logging
import tempfile

import cq
from cq.observers.worker import Worker
from cq.queue import read_aside, retry_aside

logging.getLogger("cq.worker").setLevel(logging.ERROR)  # a worker warns for each key that it sets aside
stock = cq.CombineQueue("stock")
refused = {"screws"}


def check_stock(tr, changes):
    for change in changes:
        if change.key in refused:
            raise ValueError(f"no article is called {change.key}")


app = cq.App()
app.queue("stock", observers=[check_stock])


def main():
    db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
    app.configure(db, "stock", key=str, value=int, combiner="sum")
    cq.transact(db, lambda tr: stock.add(tr, {"nails": 100, "screws": 40, "glue": 3}))

    Worker(db, app).drain()
    print(sorted(stock.scan(db)))

    for entry in cq.transact(db, lambda tr: read_aside(tr, "stock")):
        print(entry.error, entry.updates)

    refused.clear()
    print(retry_aside(db, "stock"))  # or `cq aside retry stock`
    Worker(db, app).drain()
    print(sorted(stock.scan(db)))


if __name__ == "__main__":
    main()

# Prints:
# [('glue', 3), ('nails', 100)]
# observer 'check_stock': ValueError: no article is called screws [40]
# 1
# [('glue', 3), ('nails', 100), ('screws', 40)]
