"""Counts of data in another database: an outbox row in its transaction, an operation id in the queue's transaction."""

import sqlite3
import tempfile
import uuid

import cq
from cq.observers.worker import Worker

folder = tempfile.mkdtemp()
shop = sqlite3.connect(f"{folder}/shop.db")  # in your application: PostgreSQL, for example
shop.execute("CREATE TABLE orders (article TEXT, number INTEGER)")
shop.execute("CREATE TABLE outbox (id TEXT PRIMARY KEY, article TEXT, number INTEGER)")

db = cq.open(f"embedded:{folder}/counts.db")
cq.configure(db, "sold", key=str, value=int, combiner="sum")
sold = cq.CombineQueue("sold")


def place_order(article, number):
    """Store an order and its outbox row in one transaction of the shop's database."""
    with shop:
        shop.execute("INSERT INTO orders VALUES (?, ?)", (article, number))
        shop.execute("INSERT INTO outbox VALUES (?, ?, ?)", (uuid.uuid4().hex, article, number))


def read_outbox():
    return shop.execute("SELECT id, article, number FROM outbox LIMIT 100").fetchall()


@cq.transactional
def add_rows(tr, rows):
    """Queue the updates, each with the id of its outbox row as operation id."""
    for row_id, article, number in rows:
        sold.add(tr, {article: number}, once=row_id)


def delete_rows(rows):
    with shop:
        shop.executemany("DELETE FROM outbox WHERE id = ?", [(row_id,) for row_id, _, _ in rows])


place_order("nails", 100)
place_order("glue", 1)
add_rows(db, read_outbox())  # suppose that the follower dies here, before it deletes the rows

place_order("nails", 50)
while rows := read_outbox():  # its successor adds the first two rows again
    add_rows(db, rows)
    delete_rows(rows)

Worker(db).drain()
print(sorted(sold.scan(db)))

# Prints:
# [('glue', 1), ('nails', 150)]
