"""The demo of tags: web servers count, collectors combine and publish, all are killed, and the counts are exact.

Each web server is a process with an emitter, each collector one with a worker. The cloud that is published is followed
all the time. In the end all is compared with a recount of the events.
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
from cq import keys, machine
from cq.errors import NotReady
from cq.observers.cloud import Cloud, CloudEntry, CloudReader
from cq.observers.demos import tagalternatives
from cq.observers.demos.counted import Meter, Writes
from cq.observers.demos.crew import DemoCrew, DemoRole
from cq.observers.demos.errors import DemoFailed
from cq.observers.demos.tagevents import TagEvent, TagRecount, of_partition, part
from cq.observers.demos.tagroles import INCREMENTS, KEYS, QUEUE, TagServer
from cq.observers.demos.working import WorkerRole
from cq.observers.following import CloudFollower
from cq.observers.top import top
from cq.observers.worker import Worker
from cq.status import is_drained
from cq.store.api import Database
from cq.store.transact import transact

THREADS: Final = 4
"""How many partitions a web server counts at a time."""
_PUBLISH_MILLISECONDS: Final = 200
_SECONDS: Final = 600.0


@dataclass(frozen=True)
class TagSettings:
    """How the demo is run.

    Attributes:
        servers: web servers, each with a process of its own.
        collectors: processes that combine.
        kill_every: after how many seconds on average one of them is killed.
        shown: how many tags the cloud has.
    """

    servers: int = 3
    collectors: int = 2
    kill_every: float = 1.0
    shown: int = 50


@dataclass(frozen=True)
class TagOutcome:
    """What the demo has done, once all of it is as it must be.

    Attributes:
        increments: how many were counted, each once.
        tags: how many have a count.
        kills: how many processes were killed.
        versions: how many versions of the cloud the follower has seen.
        seconds: from the first start of a process until all was combined.
        cloud: its entries at the end.
        writes: what was written, by who wrote it.
        at_risk: how many changes the server that merges them loses in a crash, at most.
    """

    increments: int
    tags: int
    kills: int
    versions: int
    seconds: float
    cloud: tuple[CloudEntry, ...]
    writes: dict[str, Writes]
    at_risk: int


def run(
    db: Database,
    url: str | None,
    events: Iterable[TagEvent],
    settings: TagSettings,
    rng: Random,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> TagOutcome:
    """Run the demo on a store, with a queue that is made anew.

    Args:
        db: a database.
        url: the store's, for the processes.
        events: what is counted.
        settings: how.
        rng: draws who is killed, and when.
        tell: called now and then with the number of increments that are committed, and that of all.

    Raises `DemoFailed` when anything differs from the recount, and `InvalidData` for events that cannot be read.
    """
    with TemporaryDirectory(prefix="cq-demo-") as folder:
        paths = [Path(folder, f"partition-{number}") for number in range(settings.servers * THREADS)]
        recount = part(events, paths)
        _make_queue(db, settings.shown)
        demo = _TagDemo(db, url, settings, paths)
        demo.run(rng, lambda: tell(committed(db), recount.events))
        changes = [change for path in paths for change in of_partition(path)]
    cloud = _published(db)
    _compare(db, recount, cloud, settings.shown)
    one_by_one = tagalternatives.one_by_one(changes, recount.counts)
    merged, at_risk = tagalternatives.merged(changes, recount.counts)
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
            f"one server, merging {tagalternatives.MERGED:,} tags": merged,
        },
        at_risk=at_risk,
    )


class _TagDemo:
    """The processes, and what is noted while they run.

    Attributes:
        servers: what the web servers write.
        collectors: what the collectors write.
        kills: how many of them were killed.
        versions: those of the cloud that were seen, in the order in which they were.
        seconds: how long it took.
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

    def run(self, rng: Random, tell: Callable[[], object]) -> None:
        """Run them until all events are counted, and all increments combined and published."""
        roles: dict[str, DemoRole] = {**self._servers, **self._collectors}
        begun = machine.monotonic()
        with CloudFollower(self._db, QUEUE) as follower, DemoCrew(roles, rng, self._kill_every) as crew:

            def counted() -> bool:
                tell()
                self._look(follower.latest)
                return crew.ended >= self._servers.keys()

            def combined() -> bool:
                self._look(follower.latest)
                return is_drained(self._db, QUEUE)

            crew.run(counted, _SECONDS)
            crew.run(combined, _SECONDS)
        self.seconds = machine.monotonic() - begun
        self.kills = crew.kills
        Worker(self._db, queues=[QUEUE]).drain()  # publishes the last cloud, too

    def _look(self, cloud: Cloud | None) -> None:
        """Note the cloud's version; raises `DemoFailed` when that is older than one before."""
        last = self.versions[-1] if self.versions else 0
        if cloud is not None and cloud.version != last:
            if cloud.version < last:
                raise DemoFailed(f"version {cloud.version:,} of the cloud has come after version {last:,}")
            self.versions.append(cloud.version)


def committed(db: Database) -> int:
    """How many increments have been committed."""
    return int.from_bytes(transact(db, lambda tr: tr.get(INCREMENTS).value) or b"", "little")


def _make_queue(db: Database, shown: int) -> None:
    """The queue without anything in it, nor of an earlier demo."""
    with suppress(cq.QueueNotConfigured):
        cq.delete(db, QUEUE)
    transact(db, lambda tr: tr.clear_range(KEYS, keys.prefix_end(KEYS)))
    spec = top(shown, every=_PUBLISH_MILLISECONDS)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum", observers=[spec])


def _published(db: Database) -> tuple[CloudEntry, ...]:
    try:
        return transact(db, lambda tr: CloudReader(QUEUE).read(tr.snapshot)).entries
    except NotReady:  # no tag has ever had a count when one was to be published
        return ()


def _sum(meters: Iterable[Meter]) -> Writes:
    return sum((meter.read() for meter in meters), Writes(0, 0))


def _compare(db: Database, recount: TagRecount, cloud: Sequence[CloudEntry], shown: int) -> None:
    """Raises `DemoFailed` when anything in the store is not what the recount says."""
    found: dict[str, int] = dict(cq.CombineQueue(QUEUE).scan(db))
    for tag in sorted(found.keys() | recount.counts.keys()):
        has, should = found.get(tag, 0), recount.counts.get(tag, 0)
        if has != should:
            raise DemoFailed(f"tag {tag!r} has the count {has:,}, and in the recount {should:,}")
    if (number := committed(db)) != recount.events:
        raise DemoFailed(f"{number:,} increments were committed, and there are {recount.events:,} events")
    if [(entry.key, entry.score) for entry in cloud] != recount.top(shown):
        raise DemoFailed("the published cloud is not the top of the recount")
