"""The system of a tag cloud: servers that count the events of logs, workers, and pages that follow it.

Several servers may read one log at a time, as when one was thought dead: each event counts once all the same. A page
goes from one server to another and never sees an older cloud. At the end the store has every version of the cloud, each
with at least the events that it says it includes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from math import isclose
from pathlib import Path
from random import Random
from typing import Any, Final

import cq
from cq.durations import seconds_of
from cq.errors import NotReady
from cq.keys import below
from cq.keys.top import CloudKeys
from cq.observers.top.cloud import CloudHead, CloudReader, decode_entries
from cq.observers.top.decay import HalfLife
from cq.observers.top.follower import CloudFollower
from cq.observers.top.index import top
from cq.observers.top.ranking import Ranking
from cq.queue.set_aside import retry_aside
from cq.store.api import error_code
from cq.store.transact import transact
from tests.simulation.actors import WorkerPool
from tests.simulation.hub import Process
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.scenario import Scenario, first_row, ranges_of
from tests.simulation.store import CommitRequest

TAGS: Final = "tags"
HOT: Final = "hot"
"""The queue of scores that decay."""
HALF_LIFE: Final = HalfLife("10s")
SHOWN: Final = 3
_KINDS: Final = 6
_SERVERS: Final = 2


@dataclass(frozen=True)
class Counted:
    """Events of a log are counted, from one number on."""

    log: int
    begin: int
    changes: tuple[tuple[str, int], ...]
    also: Set[str] = frozenset()

    @property
    def end(self) -> int:
        """The number of the event after them."""
        return self.begin + len(self.changes)


class TagCloud(Scenario):
    """One run.

    Attributes:
        counts: of each tag, by what is committed.
        history: of each tag, the version of each commit that changed it, and its count from then on.
        read: how far each log is read, by what is committed.
        gained: of each tag, the places in their logs of the events that added it, by what is committed.
        published: of each version of the cloud, when it was created, in milliseconds.
        followers: those of servers that live.
    """

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.faults.too_large = 0.0  # else keys are set aside of which the top cannot be told
        self.counts: Counter[str] = Counter()
        self.history: dict[str, list[tuple[int, int]]] = {}
        self.gained: dict[str, list[int]] = {}
        self.published: dict[int, int] = {}
        self.read: Counter[int] = Counter()
        self.followers: dict[Process, CloudFollower] = {}
        self.pages = [Page(self) for _ in range(self.rng.randint(1, 3) if "pages" in plan else 0)]
        self.logs = self.rng.randint(1, 3)
        self._pause = self.rng.choice((0.01, 0.1, 0.5))
        self.workers = WorkerPool(self, partial(self.worker, beat=self.rng.choice((0.5, 2.0))))

    def begin(self) -> None:
        """Make the queue, and start everybody."""
        every, buckets = self.rng.choice((0, 0.3)), self.rng.randint(1, 4)
        spec = top(SHOWN, every=every, keep=self.keep)
        cq.configure(self.inner, TAGS, buckets=buckets, observers=[spec])
        if HOT in self.names:
            cq.configure(
                self.inner, HOT, value=float, combiner="decaying", buckets=buckets, observers=[top(SHOWN)]
            )
        for number in range(_SERVERS):
            self.start_process("server", "count", partial(self._serve, number))
        for _ in range(self.rng.randint(1, 2)):
            self.workers.start()
        for page in self.pages:
            self.hub.start(self.sky, "look", page.run)

    @property
    def names(self) -> list[str]:
        """All queues."""
        return [TAGS, HOT] if "half-life" in self.plan else [TAGS]

    @property
    def keep(self) -> str:
        """For how long replaced versions of the cloud are kept."""
        return "2s" if "short keep" in self.plan else "10d"

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Events are counted: they must be the next ones of their log."""
        for note in tr.notes:
            if note.begin != self.read[note.log]:
                raise Violation(f"{note} is committed, where the log was read to {self.read[note.log]}")
            self.read[note.log] += len(note.changes)
            for place, (tag, by) in enumerate(note.changes, note.begin):
                self.counts[tag] += by
                self.history.setdefault(tag, [(0, 0)]).append((version, self.counts[tag]))
                if by > 0:
                    self.gained.setdefault(tag, []).append(place)
        inner = self.inner.create_transaction()
        head = inner.snapshot.get(CloudKeys(cq.CombineQueue(TAGS).keys).head(None)).value
        if head is not None:
            found = CloudHead.from_bytes(head)
            self.published.setdefault(found.version, found.created)

    def settle(self) -> None:
        while not self.workers.running:
            self.workers.start()

    def left(self) -> str:
        for name in self.names:
            if retry_aside(self.inner, name):  # which a worker that dies at a key again and again does
                return "what was set aside"
            if found := first_row(self.inner.create_transaction().snapshot, ranges_of(name)):
                return found
        version, shown = self._published()
        if shown != self.expected()[:SHOWN]:
            return f"the cloud shows {shown} of {self.expected()}"
        for process, follower in self.followers.items():
            if (follower.latest.version if follower.latest else 0) != version:
                return f"{process} has {follower.latest}, not version {version}"
        return ""

    def expected(self) -> list[tuple[str, int]]:
        """All tags with their counts, as the top has them."""
        found = [(tag, count) for tag, count in self.counts.items() if count]
        return sorted(found, key=lambda item: (-item[1], item[0]))

    def check(self) -> None:
        stored = dict(cq.CombineQueue(TAGS).scan(self.inner))
        if stored != dict(self.expected()):
            raise Violation(f"{stored} is stored, where {dict(self.expected())} was counted")
        for log in range(self.logs):
            if (place := transact(self.inner, lambda tr: position(tr, log))) != self.read[log]:  # noqa: B023
                raise Violation(f"log {log} is read to {self.read[log]}, and the store says {place}")

        self._check_versions()
        if HOT in self.names:
            self._check_scores()

    def _check_scores(self) -> None:
        """The scores are those of the events, and the top has them in their order, at any time."""
        found = [(entry.key, entry.score) for entry in Ranking[str, float](HOT).scan(self.inner)]
        if {tag for tag, _ in found} != self.gained.keys() or found != sorted(
            found, key=lambda each: -each[1]
        ):
            raise Violation(f"the top of the scores is {found}, of {self.gained}")
        at = max((place for places in self.gained.values() for place in places), default=0)
        for tag, value in found:
            expected = sum(0.5 ** ((at - place) / HALF_LIFE.seconds) for place in self.gained[tag])
            if not isclose(HALF_LIFE.score(value, at), expected, rel_tol=1e-6):
                raise Violation(f"{tag} has the score {HALF_LIFE.score(value, at)}, expected {expected}")

    def _kept(self, newest: int) -> list[int]:
        """The versions that must be kept: those since the time before the newest one, and one before them."""
        begin = self.published.get(newest, 0) - 1000 * seconds_of(self.keep)
        since = [version for version, created in self.published.items() if created >= begin]
        before = [version for version, created in self.published.items() if created < begin]
        return sorted([*since, *before[-1:]])

    def _check_versions(self) -> None:
        """All versions are kept, and each can have come from events among which are those that it includes."""
        keys, newest = CloudKeys(cq.CombineQueue(TAGS).keys), self._published()[0]
        rows = transact(self.inner, lambda tr: tr.get_range(*below(keys.all_kept)).to_list())
        heads = {head.version: head for head in (CloudHead.from_bytes(row.value) for row in rows)}
        if list(self.published) != list(range(1, newest + 1)):
            raise Violation(f"versions {list(self.published)} of the cloud were published, of {newest}")
        # Publishers of other clocks keep other versions.
        if "clocks differ" not in self.plan and sorted(heads) != self._kept(newest):
            raise Violation(f"versions {sorted(heads)} of the cloud are kept, of {self.published}")
        for version, head in heads.items():
            shown = {entry.key: entry.score for entry in decode_entries(head.data)}
            if not shown.keys() <= self.history.keys():
                raise Violation(f"version {version} of the cloud has tags that were not counted: {shown}")
            for tag in self.history:
                possible = self._possible(tag, head.through)
                if tag in shown and shown[tag] not in possible:
                    raise Violation(
                        f"version {version} of the cloud has {tag} {shown[tag]} times, which was {possible} since "
                        f"{head.through}"
                    )
                last = min(shown.values()) if len(shown) == SHOWN else None
                if tag not in shown and not any(
                    count == 0 or (last is not None and count <= last) for count in possible
                ):
                    raise Violation(f"version {version} of the cloud lacks {tag}, which was {possible} times")

    def _possible(self, tag: str, through: int) -> list[int]:
        """The counts of a tag with all changes up to a version, and with any number of later ones."""
        before = [count for version, count in self.history[tag] if version <= through]
        return [before[-1], *(count for version, count in self.history[tag] if version > through)]

    def _published(self) -> tuple[int, list[tuple[str, int]]]:
        try:
            cloud = transact(self.inner, lambda tr: CloudReader(TAGS).read(tr))
        except NotReady:
            return 0, []
        return cloud.version, [(entry.key, entry.score) for entry in cloud.entries]

    # The servers

    def _serve(self, number: int, process: Process) -> None:
        process.on_death.append(lambda: self.followers.pop(process, None))
        self.followers[process] = CloudFollower(self.db(process), TAGS)
        for log in range(self.logs):
            if "overlapping servers" in self.plan or log % _SERVERS == number:
                self.hub.start(process, "count", partial(self._count, process, log))

    def _count(self, process: Process, log: int) -> None:
        """Count the events of a log, a few at once."""
        while not self.is_calm:
            place = self._patiently(lambda: transact(self.db(process), lambda tr: position(tr, log)))
            for _ in range(self.hub.rng.randint(1, 5)):
                self.hub.wait(self.hub.rng.expovariate(1 / self._pause))
                size = self.hub.rng.randint(1, 5)
                events = tuple(event(log, number) for number in range(place, place + size))
                counted = Counted(log, place, events, self.plan.on)
                try:
                    transact(self.db(process), partial(count, counted))
                except LookupError:
                    break
                except Exception as error:
                    if error_code(error) is None:
                        raise
                    break  # whether they count, the position says
                place += size

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Call it until the store does not fail."""
        while True:
            try:
                return call()
            except Exception as error:
                if error_code(error) is None:
                    raise


def count(note: Counted, tr: Any) -> None:
    """Count events of a log, and store the position in the same transaction."""
    if advance(tr, note):
        cq.CombineQueue(TAGS).add(tr, note.changes)
        if "half-life" in note.also:
            places = enumerate(note.changes, note.begin)
            cq.CombineQueue(HOT).add(
                tr, [(tag, HALF_LIFE.update(at=at)) for at, (tag, by) in places if by > 0]
            )


def advance(tr: Any, note: Counted) -> bool:
    """Move the position of a log; returns False if it is moved already. Raises `LookupError` if it is elsewhere."""
    place = position(tr, note.log)
    if place == note.end:
        return False
    if place != note.begin:
        raise LookupError("another server reads this log")
    tr.set(_key(note.log), b"%d" % note.end)
    tr.notes.append(note)
    return True


class Page:
    """An open page: it asks one server after the other for a cloud that is newer than the one it shows."""

    def __init__(self, world: TagCloud) -> None:
        self._world = world
        self._version = 0

    def run(self) -> None:
        """Look on, to the end of the run."""
        world, rng = self._world, self._world.hub.rng
        while not world.is_calm:
            world.hub.wait(rng.expovariate(1.0))
            if not world.followers:
                continue
            process = rng.choice(sorted(world.followers, key=str))
            cloud = world.followers[process].wait(self._version, rng.choice((0.1, 5.0)))
            if cloud is not None and process.is_alive:
                if cloud.version < self._version:
                    world.violations.append(
                        f"{process} shows version {cloud.version} after version {self._version}"
                    )
                self._version = cloud.version


def event(log: int, number: int) -> tuple[str, int]:
    """An event of a log: the same whoever reads it."""
    rng = Random(f"{log} {number}")
    return f"t{rng.randrange(_KINDS)}", rng.choice((1, 1, -1))


def position(tr: Any, log: int) -> int:
    """How far a log is read."""
    return int(tr.get(_key(log)).value or 0)


def _key(log: int) -> bytes:
    return b"application/log/%d" % log
