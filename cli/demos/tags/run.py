"""The demo of tags: web servers count, collectors combine and publish, all are killed, and the counts are exact.

Each web server is a process with an emitter, each collector a process with a worker. A follower reads each version of
the published cloud. At the end a recount of the events is compared with the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import cq
from cq import keys, runtime
from cq.admin.queue_status import is_drained
from cq.cli.demos.crew.counted_database import Meter, WriteCounts
from cq.cli.demos.crew.crew import DemoCrew, DemoRole
from cq.cli.demos.crew.errors import DemoFailed
from cq.cli.demos.crew.worker import WorkerRole
from cq.cli.demos.tags import alternatives
from cq.cli.demos.tags.events import TagEvent, TagRecount, of_partition, part
from cq.cli.demos.tags.roles import INCREMENTS, KEYS, QUEUE, TagServer
from cq.errors import NotReady
from cq.observers.top.cloud import Cloud, CloudEntry, CloudReader
from cq.observers.top.follower import CloudFollower
from cq.observers.top.index import top
from cq.observers.worker.worker import Worker
from cq.store.api import Database
from cq.store.transact import transact

THREADS: Final = 4
"""Number of partitions that a web server counts at the same time."""
_PUBLISH_MILLISECONDS: Final = 200
_SECONDS: Final = 600.0


@dataclass(frozen=True)
class TagSettings:
    """The settings of the demo.

    Attributes:
        servers: number of web server processes.
        collectors: number of processes that combine.
        kill_every: average seconds between two kills of a process.
        shown: number of tags in the cloud.
    """

    servers: int = 3
    collectors: int = 2
    kill_every: float = 1.0
    shown: int = 50


@dataclass(frozen=True)
class TagOutcome:
    """The figures of a successful run.

    Attributes:
        increments: number of increments, each counted once.
        tags: number of tags with a count.
        kills: number of killed processes.
        versions: number of versions of the cloud that the follower has seen.
        seconds: from the first start of a process until all increments were combined.
        cloud: entries of the last cloud.
        writes: {writer: its writes}.
        at_risk: largest number of changes that a crash of the merging server loses.
    """

    increments: int
    tags: int
    kills: int
    versions: int
    seconds: float
    cloud: tuple[CloudEntry, ...]
    writes: dict[str, WriteCounts]
    at_risk: int


def run(
    db: Database,
    url: str | None,
    events: Iterable[TagEvent],
    settings: TagSettings,
    rng: Random,
    notify: Callable[[int, int], object] = lambda done, total: None,
) -> TagOutcome:
    """Run the demo on a store, with a new queue.

    Args:
        db: the database of the store.
        url: URL of the store, for the processes.
        events: the events to count.
        settings: the settings of the demo.
        rng: random source of the kills.
        notify: called repeatedly with the number of committed increments, and the number of all.

    Raises `DemoFailed` for a difference from the recount, and `InvalidData` for unreadable events.
    """
    with TemporaryDirectory(prefix="cq-demo-") as folder:
        paths = [Path(folder, f"partition-{number}") for number in range(settings.servers * THREADS)]
        recount = part(events, paths)
        _make_queue(db, settings.shown)
        demo = _TagDemo(db, url, settings, paths)
        demo.run(rng, lambda: notify(committed(db), recount.events))
        changes = [change for path in paths for change in of_partition(path)]
    cloud = _published(db)
    _compare(db, recount, cloud, settings.shown)
    one_by_one = alternatives.one_by_one(changes, recount.counts)
    merged, at_risk = alternatives.merged(changes, recount.counts)
    return TagOutcome(
        increments=recount.events,
        tags=len(recount.counts),
        kills=demo.kills,
        versions=len(demo.versions),
        seconds=demo.seconds,
        cloud=cloud,
        writes={
            "web servers": _sum(demo.servers),
            "collectors": _sum(demo.collectors),
            "one UPDATE per change": one_by_one,
            f"one server, merging {alternatives.MERGED:,} tags": merged,
        },
        at_risk=at_risk,
    )


class _TagDemo:
    """The processes of the demo, and the observations during the run.

    Attributes:
        servers: counters of the writes of web servers.
        collectors: counters of the writes of collectors.
        kills: number of killed processes.
        versions: versions of the cloud, in the order in which the follower saw them.
        seconds: duration of the run.
    """

    def __init__(self, db: Database, url: str | None, settings: TagSettings, paths: Sequence[Path]) -> None:
        self.servers, self.collectors = (
            [Meter() for _ in range(number)] for number in (settings.servers, settings.collectors)
        )
        self.kills = 0
        self.versions: list[int] = []
        self.seconds = 0.0
        self._db = db
        self._kill_every = settings.kill_every
        self._servers = {
            f"web server {number + 1}": TagServer(url, [*enumerate(paths)][number :: settings.servers], meter)
            for number, meter in enumerate(self.servers)
        }
        self._collectors = {
            f"collector {number + 1}": WorkerRole(url, [QUEUE], meter)
            for number, meter in enumerate(self.collectors)
        }

    def run(self, rng: Random, notify: Callable[[], object]) -> None:
        """Run the processes until all events are counted, and all increments combined and published."""
        roles: dict[str, DemoRole] = {**self._servers, **self._collectors}
        begun = runtime.monotonic()
        with CloudFollower(self._db, QUEUE) as follower, DemoCrew(roles, rng, self._kill_every) as crew:

            def counted() -> bool:
                notify()
                self._look(follower.latest)
                return crew.ended >= self._servers.keys()

            def combined() -> bool:
                self._look(follower.latest)
                return is_drained(self._db, QUEUE)

            crew.run(counted, _SECONDS)
            crew.run(combined, _SECONDS)
        self.seconds = runtime.monotonic() - begun
        self.kills = crew.kills
        Worker(self._db, queues=[QUEUE]).drain()  # publishes the last cloud, too

    def _look(self, cloud: Cloud | None) -> None:
        """Note the version of the cloud; raises `DemoFailed` if an earlier one was newer."""
        last = self.versions[-1] if self.versions else 0
        if cloud is not None and cloud.version != last:
            if cloud.version < last:
                raise DemoFailed(f"version {cloud.version:,} of the cloud has come after version {last:,}")
            self.versions.append(cloud.version)


def committed(db: Database) -> int:
    """The number of committed increments."""
    return int.from_bytes(transact(db, lambda tr: tr.get(INCREMENTS).value) or b"", "little")


def _make_queue(db: Database, shown: int) -> None:
    """Create the queue, and delete all data of an earlier demo."""
    with suppress(cq.QueueNotConfigured):
        cq.delete(db, QUEUE)
    transact(db, lambda tr: tr.clear_range(KEYS, keys.prefix_end(KEYS)))
    spec = top(shown, every=_PUBLISH_MILLISECONDS)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum", observers=[spec])


def _published(db: Database) -> tuple[CloudEntry, ...]:
    try:
        return transact(db, lambda tr: CloudReader(QUEUE).read(tr.snapshot)).entries
    except NotReady:  # no cloud was published, because no tag had a count
        return ()


def _sum(meters: Iterable[Meter]) -> WriteCounts:
    return sum((meter.read() for meter in meters), WriteCounts(0, 0))


def _compare(db: Database, recount: TagRecount, cloud: Sequence[CloudEntry], shown: int) -> None:
    """Raise `DemoFailed` if the store differs from the recount."""
    found: dict[str, int] = dict(cq.CombineQueue(QUEUE).scan(db))
    for tag in sorted(found.keys() | recount.counts.keys()):
        count, expected = found.get(tag, 0), recount.counts.get(tag, 0)
        if count != expected:
            raise DemoFailed(f"tag {tag!r} has the count {count:,}, and in the recount {expected:,}")
    if (number := committed(db)) != recount.events:
        raise DemoFailed(f"{number:,} increments were committed, and there are {recount.events:,} events")
    if [(entry.key, entry.score) for entry in cloud] != recount.top(shown):
        raise DemoFailed("the published cloud is not the top of the recount")
