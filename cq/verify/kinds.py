"""The kinds of differences that a verification finds, and what a repair does about each."""

from __future__ import annotations

from typing import Final

NO_REPAIR: Final = ""
REPUBLISH: Final = "publishes it again"
REBUILD: Final = "rebuilds the top"
SET_ASIDE: Final = "sets them aside"

KINDS: Final[dict[str, tuple[str, str]]] = {
    "config": ("the queue's configuration is unreadable, so no other data of it can be checked", NO_REPAIR),
    "listing": (
        "a queue is configured but not listed, or listed but not configured",
        "lists it, or removes it from the list",
    ),
    "unknown-key": ("a key in cq's own space that cq has not written", NO_REPAIR),
    "unknown-queue": ("keys of a queue that is not configured", NO_REPAIR),
    "store-key": ("a key of the store as a whole is malformed", NO_REPAIR),
    "flags": ("the flags are unreadable", "pauses the queue; an operator must set the flags again"),
    "full": ("the mark of a full queue is unreadable", "clears it; a worker checks the limits again"),
    "purge": (
        "the mark of the latest purge is unreadable; if that has not ended, run `cq purge` again",
        NO_REPAIR,
    ),
    "row-unreadable": ("cq did not write a queued row", "sets its bytes aside"),
    "row-future": (
        "a queued row is stamped later than any commit: no pass goes beyond it",
        "sets its updates aside",
    ),
    "row-lost": ("a queued row is in a missing bucket or generation", "sets its updates aside"),
    "row-update": (
        "a queued row has keys or updates of another type than the queue, or of other buckets",
        "sets these aside",
    ),
    "notification-missing": ("a bucket has work, but no notification", "notifies"),
    "notification": ("a notification is malformed, or of a missing bucket", "clears or renews it"),
    "marker": ("the marker of an operation id is malformed, or from the future", "clears it"),
    "emitter": ("the latest flush of an emitter is malformed, or from the future", "clears it"),
    "value-unreadable": ("a current value is unreadable, or of another type than the queue's", NO_REPAIR),
    "value-empty": ("a current value means no value to the combiner", "clears it"),
    "value-key": (
        "a value is not stored under a key of the queue's type and its hash",
        "sets it aside under its key, or its bytes",
    ),
    "staged-unreadable": ("staged updates are unreadable, or of another type", "sets them aside"),
    "staged-key": (
        "staged updates are not stored under a key of the queue's type and its hash",
        "sets them aside under their key, or their bytes",
    ),
    "staged-unseen": (
        "updates are staged, but the bucket's state says that no updates are",
        "corrects the state",
    ),
    "state-unreadable": (
        "a bucket's state is unreadable: no pass can run",
        "derives it; backfills of observers begin again",
    ),
    "state-missing": (
        "a bucket with values has no state: the next pass would report or purge its values again",
        "derives it; backfills of observers begin again",
    ),
    "state-lost": ("the state of a missing bucket", "clears it"),
    "attempt": ("the note of a worker's attempt is unreadable", "clears it"),
    "aside-unreadable": ("a piece set aside is unreadable, or not under its hash", "sets its bytes aside"),
    "missed-key": (
        "a report that an observer missed has a key that cq has not written, or a missing observer",
        "clears it",
    ),
    "missed-unreadable": (
        "the value of a key that an observer received before it missed a report is unreadable",
        "rebuilds the observer",
    ),
    "missed-unseen": (
        "an observer missed a report, but the bucket's state says that no report was missed",
        "corrects the state",
    ),
    "expiry-key": ("cq has not written a key of an expiry, or the queue has none", "clears or renews it"),
    "expiry-extra": (
        "the index of an expiry has an entry for no value, or at another time than its key's",
        "clears it",
    ),
    "expiry-missing": (
        "a value has no entry in the index of the expiry, so it would never expire",
        "writes it",
    ),
    "answer": (
        "an answer to a request is malformed, or from the future, or the queue has no decider",
        "clears it",
    ),
    "document": ("a document or its counts are unreadable, or do not belong together", NO_REPAIR),
    "load": ("the position in a file that is being added is unreadable", NO_REPAIR),
    "received": (
        "the position up to which another queue was forwarded into this one is malformed",
        NO_REPAIR,
    ),
    "outbox": ("cq has not written a key of the outbox, or its value is unreadable", NO_REPAIR),
    "history": ("cq has not written a key of the history, or its value", "clears it"),
    "audit": ("updates added since the audit began are missing, or counted more than once", NO_REPAIR),
    "refused": ("the number of updates that a queue refused for their time is unreadable", "clears it"),
    "level-value": (
        "a value of a level of a roll-up is not the combination of the shorter periods",
        NO_REPAIR,
    ),
    "observer-data": ("data of a generation that no observer has", "clears it"),
    "observer-current": (
        "the generation of an observer's data that readers use is unknown",
        "makes workers switch to the configured one",
    ),
    "observer-published": ("published by an observer that the queue does not have", "clears it"),
    "top-missing": ("a value has no entry in the top", REBUILD),
    "top-extra": ("the top has an entry that no value has", REBUILD),
    "top-unreadable": ("an entry of the top is unreadable, or not stored under its score", REBUILD),
    "top-count": ("the top's count of a group differs from its entries", REBUILD),
    "top-rank": ("the counts for ranks do not add up to the entries of the top", REBUILD),
    "cloud-notification": ("a cloud must be published, but has no notification", "notifies"),
    "cloud-unreadable": ("a published cloud is unreadable", REPUBLISH),
    "cloud-different": (
        "a published cloud differs from the top, and no publication is pending",
        REPUBLISH,
    ),
    "cloud-piece": ("a piece of a cloud that is not published", "clears it"),
    "cloud-version": ("a kept version of a cloud is unreadable", "clears it"),
    "link-row": (
        "queued entries of a link are unreadable, or from the future",
        SET_ASIDE,
    ),
    "link-notification": (
        "a bucket of a link has entries, but no notification; or the bucket is missing",
        "notifies, or clears it",
    ),
    "link-state": (
        "the position of a link, or the reason why it fails or has stopped, is unreadable",
        "clears it; a link without its position stops, and says what to do",
    ),
    "link-aside": ("an entry set aside is unreadable", NO_REPAIR),
    "link-table": ("the table of a link differs from the queue", "sends all values again"),
}
"""{kind: (what is wrong, what a repair does; `NO_REPAIR`: the difference stays)}."""
