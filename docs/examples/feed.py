"""A feed: messages to users and to groups, which each terminal reads from its own position."""

import tempfile

import cq
from cq.feeds import Feed
from cq.observers.worker import Worker

db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
feed = Feed("chat")
feed.configure(db, numbers=True)


@cq.transactional
def found(tr, group, users):
    for user in users:
        feed.join(tr, group, user)
    feed.append_to_group(tr, group, "welcome")


@cq.transactional
def catch_up(tr, user, terminal):
    page = feed.read(tr.snapshot, user, after=feed.position(tr, user, terminal))
    feed.advance(tr, user, terminal, page.position)
    return [
        message.body if message.group is None else f"{message.group}: {message.body}"
        for message in page.messages
    ]


found(db, "crew", ["ann", "bob"])
Worker(db).drain()  # writes the message to its members; `cq worker` does so all the time
print("phone", catch_up(db, "ann", "phone"))

cq.transact(db, lambda tr: feed.append(tr, "ann", "are you there?"))
cq.transact(db, lambda tr: feed.leave(tr, "crew", "bob"))
cq.transact(db, lambda tr: feed.append_to_group(tr, "crew", "bob has left"))
Worker(db).drain()
print("phone", catch_up(db, "ann", "phone"))
print("tablet", catch_up(db, "ann", "tablet"))
print("bob", catch_up(db, "bob", "phone"))
numbered = cq.transact(db, lambda tr: feed.read_numbered(tr, "ann", after=1))
print([(message.number, message.body) for message in numbered.messages])

# Prints:
# phone ['crew: welcome']
# phone ['are you there?', 'crew: bob has left']
# tablet ['crew: welcome', 'are you there?', 'crew: bob has left']
# bob ['crew: welcome']
# [(2, 'are you there?'), (3, 'bob has left')]
