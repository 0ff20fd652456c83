"""Page views from a log: `once` prevents a second count of a batch that is delivered twice."""

import tempfile
from collections import Counter

import cq
from cq.observers.worker import Worker

db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
views = cq.configure(db, "views", key=(str, int), value=int, combiner="sum")  # (page, day): views


@cq.transactional
def count_views(tr, batch_id, requests):
    """Count a batch of requests; its id is the same at each delivery."""
    views.add(tr, Counter(requests), once=batch_id)


first = [("/", 1), ("/about", 1), ("/", 1)]
second = [("/", 2)]
count_views(db, "log-7:1", first)
count_views(db, "log-7:1", first)  # the acknowledgement got lost, so the batch is delivered again
count_views(db, "log-7:2", second)

Worker(db).drain()
for (page, day), total in sorted(views.scan(db)):
    print(f"{page} on day {day}: {total}")

# Prints:
# / on day 1: 2
# / on day 2: 1
# /about on day 1: 1
