"""A union of sets: all tags that users have given to a picture, added without a read."""

import tempfile

import cq
from cq.observers.worker import Worker

db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
tags = cq.configure(db, "tags", key=int, value=set, combiner="union")


@cq.transactional
def tag(tr, picture, *names):
    tags.add(tr, {picture: set(names)})


@cq.transactional
def tags_of(tr, picture):
    return tags.get(tr, picture)


tag(db, 17, "harbour", "evening")
tag(db, 17, "boats", "harbour")
tag(db, 18, "forest")

Worker(db).drain()
print(sorted(tags_of(db, 17)))
print(sorted(tags_of(db, 18)))

# Prints:
# ['boats', 'evening', 'harbour']
# ['forest']
