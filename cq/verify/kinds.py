"""The kinds of differences that a verification finds, and what a repair does about each."""

from __future__ import annotations

from typing import Final

NOTHING: Final = ""
ANEW: Final = "has it published anew"
REBUILD: Final = "builds the top anew"
ASIDE: Final = "sets them aside, unless only the bucket is wrong"

KINDS: Final[dict[str, tuple[str, str]]] = {
    "config": ("the queue's configuration cannot be read, and so nothing else of it can be told", NOTHING),
    "listing": ("a queue is configured and not listed, or listed and not configured", "lists it, or no more"),
    "unknown-key": ("a key in cq's own space that cq has not written", NOTHING),
    "unknown-queue": ("keys of a queue that is not configured", NOTHING),
    "store-key": ("a key of the store as a whole that cannot be read", NOTHING),
    "flags": ("the flags cannot be read", "pauses the queue, for somebody to set them anew"),
    "full": ("the mark of a full queue cannot be read", "clears it; a worker looks again"),
    "purge": ("the mark of the latest purge cannot be read", "clears it, unless it is still needed"),
    "row-unreadable": ("a queued row is none that cq wrote", "sets its bytes aside"),
    "row-future": (
        "a queued row is stamped later than anything committed: no pass goes beyond it",
        "sets its updates aside",
    ),
    "row-lost": ("a queued row is in a bucket or generation that there is not", "sets its updates aside"),
    "row-astray": (
        "updates wait in a bucket to which their keys do not belong",
        "moves them, in their order",
    ),
    "row-update": ("a queued row has keys or updates of another type than the queue", "sets these aside"),
    "notification-missing": ("there is work in a bucket, and no notification", "notifies"),
    "notification": (
        "a notification cannot be read, or is of a bucket that there is not",
        "clears or renews it",
    ),
    "marker": ("the marker of an operation id is malformed, or from the future", "clears it"),
    "emitter": ("the latest flush of an emitter is malformed, or from the future", "clears it"),
    "value-unreadable": ("a current value cannot be read, or is of another type than the queue's", NOTHING),
    "value-empty": ("a current value stands for no value, by the combiner", "clears it"),
    "value-astray": ("a value does not stand under the hash of its key", "sets it aside under its key"),
    "value-key": ("a value of a key that is none of the queue's type", "sets its bytes aside"),
    "staged-unreadable": ("staged updates cannot be read, or are of another type", "sets them aside"),
    "staged-astray": (
        "staged updates do not stand under the hash of their key",
        "sets them aside under their key",
    ),
    "staged-key": ("staged updates of a key that is none of the queue's type", "sets their bytes aside"),
    "staged-unseen": ("updates are staged, and the bucket's state says that none are", "corrects the state"),
    "state-unreadable": (
        "a bucket's state cannot be read: nobody can pass",
        "derives it; observers that were still being told of all values are told anew",
    ),
    "state-lost": ("the state of a bucket that there is not", "clears it"),
    "attempt": ("the note of a worker's attempt cannot be read", "clears it"),
    "aside-unreadable": ("what was set aside cannot be read", "sets its bytes aside"),
    "aside-astray": ("what was set aside does not stand under the hash of its key", "moves it"),
    "missed-key": (
        "a report that an observer missed, under a key that cq has not written, or of an observer that there is not",
        "clears it",
    ),
    "missed-unreadable": (
        "what an observer last received of a key, before it missed a report, cannot be read",
        "rebuilds the observer",
    ),
    "missed-unseen": (
        "an observer missed a report, and the bucket's state says that none was missed",
        "corrects the state",
    ),
    "document": ("a document or its counts cannot be read, or do not belong together", NOTHING),
    "load": ("the position in a file that is being added cannot be read", NOTHING),
    "received": ("how far a queue was forwarded into this one cannot be read", NOTHING),
    "audit": (
        "of all that was added since the audit began, some is missing, or there more than once",
        NOTHING,
    ),
    "window-key": ("a key of a window that cq has not written, or cannot take out", "sets its bytes aside"),
    "window-operation": (
        "updates with an operation id are to leave the window, and nothing keeps the id remembered",
        "has it remembered",
    ),
    "window-total": ("a total is not the sum of what is in the window", NOTHING),
    "observer-data": ("data of a generation of an observer that there is not", "clears it"),
    "observer-current": (
        "which data of an observer to read cannot be told",
        "has workers switch to what is configured",
    ),
    "observer-published": ("published by an observer that the queue has not", "clears it"),
    "top-missing": ("a value has no entry in the top", REBUILD),
    "top-extra": ("the top has an entry that no value has", REBUILD),
    "top-unreadable": ("an entry of the top cannot be read, or does not stand where its score does", REBUILD),
    "top-count": ("the top counts other entries of a group than there are", REBUILD),
    "top-rank": ("the counts for ranks do not add up to the entries of the top", REBUILD),
    "cloud-notification": ("a cloud is to be published, and no worker is told", "notifies"),
    "cloud-unreadable": ("a published cloud cannot be read", ANEW),
    "cloud-different": (
        "a published cloud is not what the top makes, and not to be published",
        ANEW,
    ),
    "cloud-piece": ("a piece of a cloud that is not published", "clears it"),
    "export-row": ("entries to be exported cannot be read, are from the future, or in a wrong bucket", ASIDE),
    "export-notification": (
        "entries wait to be exported, and no worker is told; or there is no such bucket",
        "notifies, or clears it",
    ),
    "export-state": (
        "how far an export is, why it fails or is stopped cannot be read",
        "clears it; an export that cannot tell how far it is stops, and says what to do",
    ),
    "export-aside": ("an entry that was set aside cannot be read", NOTHING),
    "export-table": ("the exported table has something else than the queue", "exports all values again"),
}
"""{kind: (what is wrong, what a repair does; `NOTHING` where it does nothing)}."""
