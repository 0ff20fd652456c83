"""Cells: users in two stores, a move of one user, and the total of both stores in a third one."""

import os
import tempfile

import cq
from cq import links
from cq.cells import Cells
from cq.observers.worker import Worker

folder = tempfile.mkdtemp()
central = cq.open(f"embedded:{folder}/central.db")  # the directory, and the totals
notes = cq.configure(central, "notes")  # the cells have queues of the same name and types
os.environ["CQ_TOTALS_URL"] = f"embedded:{folder}/central.db"

cells = Cells(central)
for name in ("north", "south"):
    cells.add_cell(name, f"embedded:{folder}/{name}.db")
    cq.configure(cells.store(name), "notes", links=[links.queue(url_env="CQ_TOTALS_URL")])


def save(data):
    number = data.next_id()
    data.tr.set(data.prefix + number.to_bytes(8, "big"), b"a note")
    notes.add(data.tr, {"saved": 1})
    return data.cell, number


for user in ("ada", "grace"):
    cells.place(user)
    print(user, *cells.transact(user, save))

cells.move("ada", "south")
print("ada", *cells.transact("ada", save))

for db in (cells.store("north"), cells.store("south"), central):
    Worker(db).drain()
print([(cell.name, cell.users) for cell in cells.cells()])
print(cq.transact(central, lambda tr: notes.get(tr, "saved")), "notes in all")

# Prints:
# ada north 1
# grace south 1
# ada south 2
# [('north', 0), ('south', 2)]
# 3 notes in all
