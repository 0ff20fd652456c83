"""Pending reads: the last combined value, and the value with all queued updates."""

import tempfile

import cq
from cq.observers.worker import Worker

db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
balance = cq.configure(db, "balance", key=str, value=int, combiner="sum")


@cq.transactional
def both(tr, account):
    return balance.get(tr, account), balance.get(tr, account, pending=True)


@cq.transactional
def book(tr, account, amount):
    balance.add(tr, {account: amount})


book(db, "rent", 900)
Worker(db).drain()
book(db, "rent", -150)
book(db, "rent", -50)
print(both(db, "rent"))

Worker(db).drain()
print(both(db, "rent"))


@cq.transactional
def read_after_adding(tr):
    balance.add(tr, {"rent": 1})
    return balance.get(tr, "rent", pending=True)


try:
    read_after_adding(db)
except cq.errors.PendingUnreadable as error:
    print(type(error).__name__)

# Prints:
# (900, 700)
# (700, 700)
# PendingUnreadable
