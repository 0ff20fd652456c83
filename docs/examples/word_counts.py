"""Word counts in an application: each text is stored, and its words are counted, in one transaction."""

import tempfile
from collections import Counter

import cq
from cq.observers.worker import Worker

db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
words = cq.configure(db, "words", key=str, value=int, combiner="sum")


@cq.transactional
def save(tr, name, text):
    """Replace a text, and adjust the counts by the difference."""
    key = b"texts/" + name.encode()
    before = tr.get(key).value
    tr.set(key, text.encode())
    words.add(tr, cq.changes(count(before.decode()) if before else {}, count(text)))


@cq.transactional
def occurrences(tr, *wanted):
    return words.get_many(tr, wanted)


def count(text):
    return Counter(text.lower().split())


save(db, "haiku", "an old silent pond")
save(db, "proverb", "an old friend is the best mirror")
print(occurrences(db, "old", "silent"))

Worker(db).drain()  # in production: `cq worker`, in a process of its own
print(occurrences(db, "old", "silent"))

save(db, "haiku", "a frog jumps into the pond")
Worker(db).drain()
print(occurrences(db, "old", "silent", "pond"))

# Prints:
# {'old': None, 'silent': None}
# {'old': 2, 'silent': 1}
# {'old': 1, 'silent': None, 'pond': 1}
