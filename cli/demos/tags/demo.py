"""The demo of tags: web servers count, collectors combine and publish, all are killed, and the counts are exact.

Each web server is a process with an emitter, each collector a process with a worker. A follower reads each version of
the published cloud. At the end a recount of the events is compared with the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import cq
from cq.admin.queue_status import is_drained
from cq.cli.demos.harness.counted_database import Meter, WriteCounts
from cq.cli.demos.harness.crew import DemoDiffers
from cq.cli.demos.harness.demo import Demo, compare, delete_earlier, killed, shown_progress
from cq.cli.demos.harness.worker import run_worker
from cq.cli.demos.tags.events import TagEvent, TagRecount, generated, merged_writes, of_partition, part
from cq.cli.demos.tags.roles import INCREMENTS, KEYS, QUEUE, run_server
from cq.cli.shared.options import make_store
from cq.cli.shared.output import as_word, note, print_table, quantity
from cq.errors import NotReady
from cq.observers.top.cloud import Cloud, CloudEntry, CloudReader
from cq.observers.top.follower import CloudFollower
from cq.observers.top.index import top
from cq.observers.worker.worker import Worker
from cq.store.api import Database
from cq.store.transact import transact

THREADS: Final = 4
"""Number of partitions that a web server counts at the same time."""
MERGED: Final = 5_000
"""Number of tags that the merging server gathers before it writes them."""
_PUBLISH_MILLISECONDS: Final = 200
_FOLLOW_SECONDS: Final = 30.0


@dataclass
class TagDemo(Demo):
    """The demo; its fields are the options of the command."""

    url: str
    events: Iterable[TagEvent] | None
    number: int
    servers: int
    collectors: int
    top: int

    def start(self, stack: ExitStack, rng: Random) -> None:
        self._db = make_store(self.url)
        folder = stack.enter_context(TemporaryDirectory(prefix="cq-demo-"))
        self._paths = [Path(folder, f"partition-{number}") for number in range(self.servers * THREADS)]
        self._recount = part(self.events or generated(self.number, rng), self._paths)
        make_queue(self._db, self.top)
        self._meters = {
            "web servers": [Meter() for _ in range(self.servers)],
            "collectors": [Meter() for _ in range(self.collectors)],
        }
        # Each server has a share of the partitions, and so its own entities: the order of an entity's events is kept.
        partitions = [*enumerate(self._paths)]
        self.work = {
            f"web server {number + 1}": partial(
                run_server, url=self.url, partitions=partitions[number :: self.servers], meter=meter
            )
            for number, meter in enumerate(self._meters["web servers"])
        }
        self.services = {
            f"collector {number + 1}": partial(run_worker, url=self.url, queues=[QUEUE], meter=meter)
            for number, meter in enumerate(self._meters["collectors"])
        }
        self._versions: list[int] = []
        self._follower = stack.enter_context(CloudFollower(self._db, QUEUE))
        self._show_progress = stack.enter_context(shown_progress("increments committed"))

    def look(self) -> None:
        self._show_progress(committed(self._db), self._recount.events)
        self._see(self._follower.latest)

    def is_settled(self) -> bool:
        self._see(self._follower.latest)
        return is_drained(self._db, QUEUE)

    def recount(self) -> dict[str, Any]:
        Worker(self._db, queues=[QUEUE]).drain()  # publishes the last cloud, too
        cloud = published(self._db)
        entries = cloud.entries if cloud else ()
        self._follow_to(cloud)
        check_result(self._db, self._recount, entries, self.top)
        changes = [change for path in self._paths for change in of_partition(path)]
        one_by_one, _ = merged_writes(changes, 1)
        by_one_server, at_risk = merged_writes(changes, MERGED)
        writes = {
            **{
                who: WriteCounts.total(meter.read() for meter in meters)
                for who, meters in self._meters.items()
            },
            "one UPDATE per change": one_by_one,
            f"one server, merging {MERGED:,} tags": by_one_server,
        }
        return {
            "increments": self._recount.events,
            "tags": len(self._recount.counts),
            "versions": len(self._versions),
            "cloud": [entry._asdict() for entry in entries],
            "writes": {who: counts._asdict() for who, counts in writes.items()},
            "at_risk": at_risk,
        }

    def show(self, figures: Mapping[str, Any]) -> None:
        rows = ([as_word(each["key"]), f"{each['score']:,}", each["weight"]] for each in figures["cloud"])
        print_table(["tag", "count", "weight"], rows, right=["count", "weight"])
        increments = figures["increments"]
        shares = (
            [who, *(f"{number / increments:.4f}" for number in writes.values())]
            for who, writes in figures["writes"].items()
        )
        columns = ["for an increment", "transactions", "writes"]
        print_table(columns, shares, right=columns[1:])
        note(
            f"{quantity(increments, 'increment')} of {quantity(figures['tags'], 'tag')} in {figures['seconds']:.1f} s, "
            f"{killed(figures)}, {quantity(figures['versions'], 'version')} of the cloud: all as recounted; "
            f"merging by one server risks {quantity(figures['at_risk'], 'increment')}"
        )

    def _follow_to(self, cloud: Cloud | None) -> None:
        """Wait until the follower has the last cloud: short demos end before it has read any."""
        while cloud is not None and (not self._versions or self._versions[-1] < cloud.version):
            newer = self._follower.wait(self._versions[-1] if self._versions else 0, timeout=_FOLLOW_SECONDS)
            if newer is None:
                raise DemoDiffers(f"the follower has not received version {cloud.version:,} of the cloud")
            self._see(newer)

    def _see(self, cloud: Cloud | None) -> None:
        """Note the version of the cloud; raises `DemoDiffers` if an earlier one was newer."""
        last = self._versions[-1] if self._versions else 0
        if cloud is not None and cloud.version != last:
            if cloud.version < last:
                raise DemoDiffers(f"version {cloud.version:,} of the cloud has come after version {last:,}")
            self._versions.append(cloud.version)


def committed(db: Database) -> int:
    """The number of committed increments."""
    return int.from_bytes(transact(db, lambda tr: tr.get(INCREMENTS).value) or b"", "little")


def make_queue(db: Database, shown: int) -> None:
    """Create the queue, and delete all data of an earlier demo."""
    delete_earlier(db, KEYS, [QUEUE])  # also the positions: servers would skip events
    spec = top(shown, every=_PUBLISH_MILLISECONDS)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum", observers=[spec])


def published(db: Database) -> Cloud | None:
    """The last cloud; None if none was published, because no tag had a count."""
    try:
        return transact(db, lambda tr: CloudReader(QUEUE).read(tr.snapshot))
    except NotReady:
        return None


def check_result(db: Database, recount: TagRecount, cloud: Sequence[CloudEntry], shown: int) -> None:
    """Raise `DemoDiffers` if the store differs from the recount."""
    compare("the counts of tags", dict(cq.CombineQueue(QUEUE).scan(db)), recount.counts)
    if (number := committed(db)) != recount.events:
        raise DemoDiffers(f"{number:,} increments were committed, and there are {recount.events:,} events")
    if [(entry.key, entry.score) for entry in cloud] != recount.top(shown):
        raise DemoDiffers("the published cloud is not the top of the recount")
