"""What a worker remembers of buckets that it does not work on for a while, as in a pause.

That does no harm: a memory is used only while the bucket's token is that of the worker's own last pass. But a memory
belongs to one task at a time: it is left here when a task has ended, and taken away by the next one.
"""

from __future__ import annotations

from collections.abc import Collection

from cq.passes.bucket_cache import BucketCache

CachesByBucket = dict[tuple[int, int], BucketCache]
"""Of a queue's buckets, by generation and number."""


class BucketCaches:
    """Those of all queues that a worker works on."""

    def __init__(self) -> None:
        self._of: dict[str, CachesByBucket] = {}

    def of(self, name: str, generations: Collection[int]) -> CachesByBucket:
        """Those of a queue, which are there to be taken; what is of other generations is forgotten."""
        known = self._of.setdefault(name, {})
        for place in [place for place in known if place[0] not in generations]:
            del known[place]
        return known

    def keep(self, names: Collection[str]) -> None:
        """Forget all queues but these."""
        for name in self._of.keys() - names:
            del self._of[name]
