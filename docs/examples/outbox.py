"""Counts of data in another database: rows of its outbox, inserted in its transactions, become updates of a queue."""

import os
import sqlite3
import tempfile

import cq
from cq.observers.links.outbox.operate import init
from cq.observers.links.outbox.state import OutboxSettings
from cq.observers.worker import Worker

folder = tempfile.mkdtemp()
os.environ["CQ_OUTBOX_URL"] = f"sqlite:///{folder}/shop.db"  # in your application: PostgreSQL, for example
shop = sqlite3.connect(f"{folder}/shop.db")
shop.execute("CREATE TABLE orders (article TEXT, number INTEGER)")

db = cq.open(f"embedded:{folder}/counts.db")
sold = cq.configure(db, "sold", key=str, value=int, combiner="sum")
init(db, "sold", OutboxSettings("CQ_OUTBOX_URL", None))  # the same as `cq outbox init sold`


def place_order(article, number):
    """Store an order and its update of the queue in one transaction of the shop's database."""
    with shop:
        shop.execute("INSERT INTO orders VALUES (?, ?)", (article, number))
        cq.outbox.add(shop, "sold", {article: number})


place_order("nails", 100)
place_order("glue", 1)
place_order("nails", 50)

Worker(db).drain()  # or `cq worker`, in another process, for as long as the shop is open
print(sorted(sold.scan(db)))
print("rows left:", shop.execute("SELECT count(*) FROM cq_outbox").fetchone()[0])

# Prints:
# [('glue', 1), ('nails', 150)]
# rows left: 0
