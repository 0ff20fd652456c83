"""`cq demo tags`: web servers count, collectors combine and publish, all are killed, and the counts are exact.

Each web server is a process that counts the events of logs, each collector a process with a worker. A follower reads
versions of the published cloud, and the store keeps all of them. At the end the store is compared with a recount of the
events.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import accumulate, chain
from math import fsum, log2
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final, NamedTuple
from zlib import crc32

import cq
from cq.admin.queue_status import is_drained
from cq.cli.demos.command import TagOptions
from cq.cli.demos.harness import (
    DemoRun,
    Figures,
    Steps,
    check,
    compare,
    compare_queue,
    delete_earlier,
    numbered,
    places,
    published,
    shown_steps,
    workers,
)
from cq.cli.shared.options import make_store
from cq.cli.shared.output import as_word, note, print_table, quantity
from cq.encoding import codec
from cq.errors import InvalidData
from cq.observers.distinct import distinct
from cq.observers.top.cloud import Cloud, CloudEntry, CloudReader
from cq.observers.top.decay import HalfLife
from cq.observers.top.follower import CloudFollower
from cq.observers.top.index import top
from cq.observers.top.ranking import Ranking
from cq.observers.worker.worker import Worker
from cq.store.api import Database, Transaction
from cq.store.transact import transact
from cq.type_variables import K

QUEUE: Final = "demo_tags"
ENTITIES: Final = "demo_tags_entities"
"""The queue of the number of different entities that have each tag."""
USES: Final = "demo_tags_uses"
"""The queue of the tags of each entity, by tag and entity."""
HOT: Final = "demo_tags_hot"
"""The queue of scores that decay."""
QUEUES: Final = (QUEUE, USES, ENTITIES, HOT)
HALF_LIFE: Final = HalfLife("5m")
"""Of the scores that decay. The time of an event is its place in its partition, in seconds."""
KEYS: Final = b"demo_tags/"
"""The prefix of the demo's own keys."""
THREADS: Final = 4
"""Number of partitions that a web server counts at the same time."""
SLICE: Final = 50
"""Number of events that are counted in a transaction."""
_PUBLISH_SECONDS: Final = 0.2
_KEEP: Final = "1d"
_HOT_SHOWN: Final = 5
_ROUNDING: Final = 1e-6
_FOLLOW_SECONDS: Final = 30.0
VOCABULARY: Final = 20_000
"""Number of tags in generated events; tag r is drawn with 1/r of the frequency of the first."""
_ENTITIES: Final = 5_000
_LOSSES: Final = 0.3


# The events


class TagEvent(NamedTuple):
    """An entity gets a tag (`by` 1), or loses it (`by` -1).

    A line of a file has one: {"entity": "article 17", "tag": "python", "by": 1}
    """

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
    with suppress(ValueError):
        match json.loads(line):
            # `True` is equal to 1, and an int for `match`.
            case {"entity": str(entity), "tag": str(tag), "by": int(by)} if by in (1, -1) and by is not True:
                return TagEvent(entity, tag, by)
    raise InvalidData(
        f'{where}: expected {{"entity": TEXT, "tag": TEXT, "by": 1 or -1}}, got: {codec.shown(line.strip())}'
    )


def by_entity(events: Iterable[TagEvent], number: int) -> list[list[TagEvent]]:
    """The events in `number` partitions, like a log of events: those of an entity in one, in order."""
    parts: list[list[TagEvent]] = [[] for _ in range(number)]
    for event in events:
        # Not `hash`: runs with one seed must have the same partitions.
        parts[crc32(_bytes_of(event.entity)) % number].append(event)
    return parts


def _bytes_of(entity: str) -> bytes:
    """An entity as a part of a key: text from JSON may have lone surrogates."""
    return entity.encode("utf-8", "surrogatepass")


# The demo


def run(options: TagOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    given = from_file(options.events) if options.events else generated(options.number, demo.rng)
    parts = by_entity(given, options.servers * THREADS)
    db, url = make_store(options.store), options.store
    make_queue(db, options.top)
    steps = Steps.of_parts(demo.folder, KEYS, parts)
    # Each server has a share of the partitions, and so its own entities: the order of an entity's events is kept.
    shares = (steps[place :: options.servers] for place in range(options.servers))
    servers = [partial(run_server, url=url, partitions=share) for share in shares]
    roles = numbered("web server", servers), workers(options.collectors, url, QUEUES, "collector")
    versions: dict[int, Cloud] = {}
    with CloudFollower(db, QUEUE) as follower:

        def look() -> str:
            see(versions, follower.latest)
            return shown_steps(db, steps, "increment")

        figures = demo.complete(*roles, look, lambda: all(is_drained(db, name) for name in QUEUES))
        Worker(db, queues=QUEUES).drain()  # publishes the last cloud, too
        cloud = published(db, QUEUE)
        if cloud is not None:  # short demos end before the follower has read any
            see(versions, follower.wait(cloud.version - 1, timeout=_FOLLOW_SECONDS))
            check(cloud.version in versions, "the follower has not received the last cloud")
    check_versions(db, cloud, versions)
    entries = cloud.entries if cloud else ()
    return figures | {"versions": cloud.version if cloud else 0} | recount(db, steps, entries, options.top)


def recount(db: Database, steps: Sequence[Steps], entries: Sequence[CloudEntry], shown: int) -> Figures:
    """Compare the store and the cloud with the events; returns the figures. Raises `DemoDiffers`."""
    parts = [[TagEvent(*event) for event in part] for part in steps]
    events = list(chain(*parts))
    counts = recounted((event.tag, event.by) for event in events)
    compare("the increments", {"committed": sum(places(db, steps))}, {"committed": len(events)})
    check_result(db, counts, entries, shown)
    uses = recounted(((event.tag, event.entity), event.by) for event in events)
    compare_queue(db, "the entities of tags", ENTITIES, Counter(tag for tag, _ in uses))
    return {
        "increments": len(events),
        "tags": len(counts),
        "cloud": [entry._asdict() for entry in entries],
        "hot": check_hot(db, parts)[:_HOT_SHOWN],
    }


def check_hot(db: Database, parts: Iterable[Sequence[TagEvent]]) -> list[str]:
    """The tags by their scores that decay, as the top has them; raises `DemoDiffers` if a score is not as recounted."""
    logs: dict[str, list[float]] = {}
    for part in parts:
        for tag, update in _updates_of_hot(enumerate(part)):
            logs.setdefault(tag, []).append(update)
    ranking: Ranking[str, float] = Ranking(HOT)
    found = [(entry.key, entry.score) for entry in ranking.scan(db)]
    for tag, score in found:
        # Less than 1,024 half-lives: a float has the sum itself.
        is_right = tag in logs and abs(score - log2(fsum(2.0**each for each in logs[tag]))) <= _ROUNDING
        check(is_right, f"the decayed score of {tag!r} is not that of the recount")
    compare("the tags with a score", {"number": len(found)}, {"number": len(logs)})
    return [tag for tag, _ in found]


def see(versions: dict[int, Cloud], cloud: Cloud | None) -> None:
    """Note the version of the cloud; an earlier one must not have been newer."""
    if cloud is not None:
        last = max(versions, default=0)
        check(
            cloud.version >= last, f"version {cloud.version:,} of the cloud has come after version {last:,}"
        )
        versions[cloud.version] = cloud


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    rows = ([as_word(each["key"]), f"{each['score']:,}", each["weight"]] for each in figures["cloud"])
    print_table(["tag", "count", "weight"], rows, right=["count", "weight"])
    note(f"most used lately, by scores that decay: {', '.join(map(as_word, figures['hot']))}")
    note(
        f"{quantity(figures['increments'], 'increment')} of {quantity(figures['tags'], 'tag')}, "
        f"{quantity(figures['versions'], 'version')} of the cloud"
    )
    note(
        f"an animation of these versions: cq cloud {QUEUE} --since 1h --html tags.html, with the --store of the demo"
    )


def make_queue(db: Database, shown: int) -> None:
    """Create the queue, and delete all data of an earlier demo."""
    delete_earlier(db, KEYS, QUEUES)  # also the positions: servers would skip events
    spec = top(shown, every=_PUBLISH_SECONDS, keep=_KEEP)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum", observers=[spec])
    cq.configure(db, ENTITIES, key=str, value=int, combiner="sum", observers=[top(shown)])
    cq.configure(db, USES, key=(str, bytes), value=int, combiner="sum", observers=[distinct(ENTITIES)])
    cq.configure(db, HOT, key=str, value=float, combiner="decaying", observers=[top(shown)])


def recounted(changes: Iterable[tuple[K, int]]) -> dict[K, int]:
    """{key: sum} of these changes, without zeros."""
    counts: Counter[K] = Counter()
    for key, by in changes:
        counts[key] += by
    return {key: count for key, count in counts.items() if count}


def check_result(db: Database, counts: Mapping[str, int], cloud: Sequence[CloudEntry], shown: int) -> None:
    """Raise `DemoDiffers` if the store differs from the recount."""
    compare_queue(db, "the counts of tags", QUEUE, counts)
    # Tags with equal counts are in order.
    highest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:shown]
    found = [(entry.key, entry.score) for entry in cloud]
    check(found == highest, "the published cloud is not the top of the recount")


def check_versions(db: Database, newest: Cloud | None, had: Mapping[int, Cloud]) -> None:
    """Raise `DemoDiffers` unless all versions are kept, those that the follower has had as it had them."""
    reader, cloud = CloudReader(QUEUE), newest
    while cloud is not None and cloud.version > 1:
        before = (cloud.created - timedelta(milliseconds=1)).timestamp()
        older = transact(db, lambda tr: reader.read(tr.snapshot, before))  # noqa: B023 - runs at once
        is_kept = older.version == cloud.version - 1 and had.get(older.version, older) == older
        check(is_kept, f"version {cloud.version - 1:,} of the cloud is not kept as it was published")
        cloud = older


# The web servers


def run_server(stop: Event, *, url: str, partitions: Sequence[Steps]) -> None:
    """Count the remaining events of some partitions.

    Each partition has a thread, which counts one slice at a time, as it would serve requests.
    """
    db = cq.open(url)
    with ThreadPoolExecutor(len(partitions)) as threads:
        list(threads.map(lambda each: each.work(db, stop, _count, SLICE), partitions))  # raises errors


def _count(tr: Transaction, events: Sequence[tuple[int, Any]]) -> None:
    """Count a slice of events, given with their places."""
    placed = [(place, TagEvent(*event)) for place, event in events]
    cq.CombineQueue(QUEUE).add(tr, [(event.tag, event.by) for _, event in placed])
    cq.CombineQueue(USES).add(tr, [((event.tag, _bytes_of(event.entity)), event.by) for _, event in placed])
    cq.CombineQueue(HOT).add(tr, list(_updates_of_hot(placed)))


def _updates_of_hot(events: Iterable[tuple[int, TagEvent]]) -> Iterator[tuple[str, float]]:
    """The updates of the scores that decay: of tags that entities get, at the places of the events."""
    for place, event in events:
        if event.by > 0:
            yield event.tag, HALF_LIFE.update(at=place)
