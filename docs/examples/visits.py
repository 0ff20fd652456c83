"""Visits of the last ten minutes: views and unique visitors of each page, and the views of all time."""

import tempfile
import time

import cq
from cq.observers.visits import Visits
from cq.observers.worker import Worker

db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
visits = Visits("site")
visits.configure(db, window="10m/10s")


@cq.transactional
def show(tr, page, visitor, author, at):
    """Count a visit in the transaction that makes the page; the lifetime's views exclude the author's own."""
    return visits.count(tr, page, visitor, author=author, at=at)


now = time.time()
show(db, "/news", "ann", "eve", now - 300)
show(db, "/news", "ann", "eve", now - 200)
show(db, "/news", "bob", "eve", now)
show(db, "/news", "eve", "eve", now)
print("an hour ago:", show(db, "/news", "dan", "eve", now - 3600))

Worker(db, queues=visits.queues).drain()  # `cq worker` does so all the time
print("last combined:", cq.transact(db, lambda tr: visits.get(tr, "/news")))
for minutes in (0, 8, 20):
    seen = cq.transact(db, lambda tr: visits.within(tr, now=now + 60 * minutes))  # noqa: B023
    print(f"views and visitors in {minutes} minutes, whether or not any worker runs: {seen}")

# Prints:
# an hour ago: late
# last combined: PageVisits(views=4, visitors=3, lifetime=4, readers=None)
# views and visitors in 0 minutes, whether or not any worker runs: {'/news': (4, 3)}
# views and visitors in 8 minutes, whether or not any worker runs: {'/news': (2, 2)}
# views and visitors in 20 minutes, whether or not any worker runs: {}
