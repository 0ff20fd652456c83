"""The caches of buckets that a worker does not process at present, for example during a pause.

An old cache is safe: passes use it only while the bucket's token is the one of the worker's own last pass. But one
task at a time owns a cache: it puts the cache here when it ends, and the next task removes it.
"""

from __future__ import annotations

from collections.abc import Collection

from cq.passes.bucket_cache import BucketCache

CachesByBucket = dict[tuple[int, int], BucketCache]
"""The caches of a queue's buckets, by generation and number of the bucket."""


class BucketCaches:
    """The caches of all queues of a worker."""

    def __init__(self) -> None:
        self._of: dict[str, CachesByBucket] = {}

    def of(self, name: str, generations: Collection[int]) -> CachesByBucket:
        """The caches of a queue, without those of generations not listed; tasks remove theirs."""
        known = self._of.setdefault(name, {})
        for place in [place for place in known if place[0] not in generations]:
            del known[place]
        return known

    def keep(self, names: Collection[str]) -> None:
        """Discard the caches of all queues except for these."""
        for name in self._of.keys() - names:
            del self._of[name]
