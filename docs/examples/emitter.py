"""Many small increments: threads whose calls share commits, and an emitter that commits many together."""

import asyncio
import tempfile
import threading

import cq
from cq.observers.worker import Worker

db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
visits = cq.configure(db, "visits", key=(str, str), value=int, combiner="sum", buckets=2)


def serve():
    for page in ("/", "/about", "/"):
        visits.add_now(db, {("example.org", page): 1})  # returns when the visit is committed


async def serve_all(emitter):
    await asyncio.gather(*(emitter.emit_async(("example.org", "/")) for _ in range(100)))


threads = [threading.Thread(target=serve) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

with cq.Emitter(visits, db, every=0.5, at_most=1_000) as emitter:
    for _ in range(500):
        emitter.emit(("example.org", "/search"))  # returns at once; closing the emitter flushes
    asyncio.run(serve_all(emitter))
done = emitter.statistics()

Worker(db).drain()
for key, count in sorted(visits.scan(db)):
    print(*key, count)
print(done.committed, "visits in fewer transactions:", done.flushes < done.committed)

# Prints:
# example.org / 116
# example.org /about 8
# example.org /search 500
# 600 visits in fewer transactions: True
