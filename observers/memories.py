"""What a worker remembers of buckets, also while it does not work on them, as in a pause.

That does no harm: a memory is used only while the bucket's token is that of the worker's own last pass.
"""

from __future__ import annotations

from collections.abc import Collection

from cq.app import QueueCode
from cq.state import Memory

Memories = dict[tuple[int, int], Memory]
"""The memories of a queue's buckets, by generation and number."""


class AllMemories:
    """The memories of all queues that a worker works on.

    Args:
        max_bytes: of all of them together, about.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._of: dict[str, Memories] = {}

    def of(self, code: QueueCode, queues: int) -> Memories:
        """Those of the buckets that a queue has now, which is one of so many that share the room equally."""
        name = code.config.name
        before, now = self._of.get(name, {}), {}
        for shape in code.shapes:
            for number in range(shape.config.buckets):
                place = shape.config.generation, number
                memory = now[place] = before.get(place) or Memory()
                memory.max_bytes = self._max_bytes // queues // shape.config.buckets
        self._of[name] = now
        return now

    def keep(self, names: Collection[str]) -> None:
        """Forget all queues but these."""
        for name in self._of.keys() - names:
            del self._of[name]
