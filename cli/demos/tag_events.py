"""The events of the demo of tags: generated from a seed or read from a file, and partitioned by entity.

An event says that an entity gets a tag (`by` 1) or loses one (`by` -1), and is one line of a file:

    {"entity": "article 17", "tag": "python", "by": 1}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from cq.cli.demos.harness.roles import WriteCounts
from cq.encoding import codec
from cq.errors import InvalidData

VOCABULARY: Final = 20_000
"""Number of tags in generated events; tag r is drawn with 1/r of the frequency of the first."""
_ENTITIES: Final = 5_000
_LOSSES: Final = 0.3


class TagEvent(NamedTuple):
    """An entity gets a tag (`by` 1), or loses it (`by` -1)."""

    entity: str
    tag: str
    by: int


def generated(number: int, rng: Random) -> Iterator[TagEvent]:
    """Generate `number` events of 5,000 entities; an entity loses only tags that it has."""
    tags = [f"tag{rank}" for rank in range(1, VOCABULARY + 1)]
    weights = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    of_entity: list[list[str]] = [[] for _ in range(_ENTITIES)]
    for _ in range(number):
        entity = rng.randrange(_ENTITIES)
        has = of_entity[entity]
        if has and rng.random() < _LOSSES:
            yield TagEvent(f"entity {entity}", has.pop(rng.randrange(len(has))), -1)
            continue
        tag = rng.choices(tags, cum_weights=weights)[0]
        while tag in has:
            # Without weights: an entity with all frequent tags would take long to get another.
            tag = rng.choice(tags)
        has.append(tag)
        yield TagEvent(f"entity {entity}", tag, 1)


def from_file(path: Path) -> Iterator[TagEvent]:
    """The events of a file, one JSON object per line; skips blank lines; raises `InvalidData` with the line."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _event(line, f"{path}, line {number}")
    except UnicodeDecodeError:
        raise InvalidData(f"{path} is not UTF-8") from None


def _event(line: str, where: str) -> TagEvent:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict):
        entity, tag, by = found.get("entity"), found.get("tag"), found.get("by")
        # The exact type: `True` is equal to 1.
        if isinstance(entity, str) and isinstance(tag, str) and type(by) is int and by in (1, -1):
            return TagEvent(entity, tag, by)
    raise InvalidData(
        f'{where}: expected {{"entity": TEXT, "tag": TEXT, "by": 1 or -1}}, got: {codec.shown(line.strip())}'
    )


def by_entity(events: Iterable[TagEvent], number: int) -> list[list[tuple[str, int]]]:
    """The (tag, change) pairs in `number` partitions, like a log of events: those of an entity in one, in order."""
    parts: list[list[tuple[str, int]]] = [[] for _ in range(number)]
    for entity, tag, by in events:
        # Not `hash`: runs with one seed must have the same partitions. Text from JSON may have lone surrogates.
        parts[crc32(entity.encode("utf-8", "surrogatepass")) % number].append((tag, by))
    return parts


def merged_writes(changes: Iterable[tuple[str, int]], tags: int) -> tuple[WriteCounts, int]:
    """The writes of a server that merges changes in its memory, and writes them for each `tags` tags; 1: no merging.

    In addition returns the largest number of changes in memory: a crash loses that many.
    """
    transactions = operations = waiting = most = 0
    gathered: set[str] = set()
    for tag, _ in changes:
        gathered.add(tag)
        waiting += 1
        most = max(most, waiting)
        if len(gathered) == tags:
            transactions, operations = transactions + 1, operations + tags
            gathered, waiting = set(), 0
    # With the last, partial one.
    return WriteCounts(transactions + bool(gathered), operations + len(gathered)), most
