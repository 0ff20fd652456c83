"""The keys of the rows of a store's workers."""

from __future__ import annotations

from typing import Final

from cq.keys.queue import ROOT, Prefix

WORKERS_CHANGED: Final = ROOT + b"workers"
"""Changes when a worker starts or ends. The other workers watch it."""
WORKER_ID_BYTES: Final = 8
ALIVE_BEATS: Final = 4
"""A worker whose last beat is older than this many beats, by the store's versions, counts as dead to a single read."""
BEAT_SECONDS: Final = 4.0
"""Seconds between the beats of an idle worker; a beat is three requests to the store."""
workers: Final = Prefix(ROOT + b"w/")
"""The prefix of the rows of all workers."""


def worker(worker_id: bytes) -> bytes:
    """The key of a worker's row."""
    return workers + worker_id


def alive_seconds(every: float) -> float:
    """The age up to which the last beat says that a worker is alive, of one that beats about every `every` seconds."""
    return ALIVE_BEATS * max(BEAT_SECONDS, every)
