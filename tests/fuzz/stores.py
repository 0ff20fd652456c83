"""A store with something of everything that cq keeps, which can be broken and put back; and all that looks at it."""

from __future__ import annotations

import io
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

import cq
from cq import admin, keys
from cq.admin.backfill import publish_generations
from cq.admin.queue_status import status
from cq.app import App
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import CqError
from cq.failure import KeyFailure
from cq.intake.documents import Documents
from cq.intake.json_lines import add_jsonl
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.keys.link import LinkKeys
from cq.linktesting import MemoryTarget
from cq.observers.builtin import FACTORIES
from cq.observers.links.sender import Sender
from cq.observers.links.spec import table
from cq.observers.links.state import (
    AsideEntry,
    LinkFailure,
    LinkStop,
    entries_aside,
    set_entry_aside,
    stop,
)
from cq.observers.links.target import Source
from cq.observers.links.task import LinkTask
from cq.observers.monitoring.findings import remarks
from cq.observers.monitoring.health_check import health
from cq.observers.monitoring.link_status import link_status
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling.members import ROLES, MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.top.cloud import CloudReader
from cq.observers.top.index import top
from cq.observers.top.publisher import publishers
from cq.observers.top.ranking import Ranking
from cq.observers.worker.workload import Workload
from cq.queue.limits import compare
from cq.queue.operation_ids import Trim
from cq.queue.set_aside import drop_aside, read_aside, retry_aside, set_aside
from cq.store.api import METADATA_VERSION, error_code
from cq.store.embedded import Database
from cq.store.transact import transact
from tests.fuzz.inputs import broken, mutated
from tests.kit.queues import add

LINES: Final = b'{"key": "line", "update": 1}\n' * 3
_ALL: Final = keys.ROOT, keys.prefix_end(keys.ROOT)
QUEUES: Final = "words", "tags", "pairs", "watched"
"""Those that are broken; "other" is not."""


def observe(tr: Any, changes: Any) -> None:
    """An application's observer: passes leave notes of their attempts."""


def app() -> App:
    """The code of the queue "watched"."""
    found = App()
    found.queue("watched", observers=[observe])
    return found


def buckets(db: Any, name: str) -> list[PassRunner]:
    """All buckets of a queue, as a worker would have them."""
    code = app().code(transact(db, lambda tr: read_config(tr, name)), FACTORIES)
    return [PassRunner(db, shape, number) for shape in code.shapes for number in range(shape.config.buckets)]


def combine(db: Any, name: str) -> None:
    """Passes over all buckets, until nothing is left to do."""
    for bucket in buckets(db, name):
        for _ in range(100):
            if not bucket.combine().more:
                break
        else:
            raise AssertionError(f"bucket {bucket.number} is not drained after 100 passes")


def make(db: Database) -> None:
    """Something of everything."""
    cq.configure(db, "words", buckets=2, observers=[top(3, every=0, ranks=True)], links=[table("words")])
    cq.configure(db, "tags", value=set, combiner="union", buckets=2)
    cq.configure(db, "pairs", key=(str, int), value="any", combiner="last", buckets=1)
    cq.configure(db, "other", buckets=2)
    app().configure(db, "watched", buckets=1)
    admin.limit(db, "words", max_age=1000.0, max_bytes=10**9)
    words = cq.CombineQueue("words")
    add(db, "words", {"a": 1, "b": 2}, [("a", 5)], once="op")
    add(db, "tags", {"x": {"red", "green"}})
    add(db, "pairs", {("p", 1): [1, {"deep": 2.5}]})
    add(db, "other", {"safe": 1})
    add(db, "watched", {"w": 1})
    Documents(words).put(db, b"doc", {"a": 1, "c": 2})
    add_jsonl(db, words, io.BytesIO(LINES), name=b"file")
    for name in ("words", "tags", "pairs", "other", "watched"):
        combine(db, name)
    _publish(db)
    _put_under_way(db)


def _put_under_way(db: Database) -> None:
    """What is there only while something is under way."""
    add(db, "words", {"a": 1, "d": 4}, once="second")
    add(db, "words", {"b": 1})
    add(db, "tags", {"x": {"blue"}, "y": {"red"}})
    add(db, "pairs", {("q", 2): "text"})
    add(db, "watched", {"w": 1})
    words, link = QueueKeys("words"), LinkKeys("words", "export")

    def write(tr: Any) -> None:
        tr.set(words.staged(b"aa"), b"\x05")
        tr.set(words.full, codec.encode(["admit", "why"]))
        set_aside(tr, words, b"ab", KeyFailure("an error"), [1, 2])
        set_aside(tr, words, b"", KeyFailure("a row"), [b"raw"])
        tr.set(link.failure(1), LinkFailure("an error", 5.0, 2).to_bytes())
        set_entry_aside(tr, link, AsideEntry(1, bytes(22), "an error", b"aa", 5))

    transact(db, write)
    transact(db, lambda tr: stop(tr, link, LinkStop(0, "stopped"), is_reviewed=True))
    for bucket in buckets(db, "watched"):
        bucket.attempts.begin(0)
        bucket.attempts.cautious = True
        bucket.attempts.note([b"aw"])
    member = Membership(db, identity="another")
    member.beat(
        MemberReport(
            lacking=frozenset({"tags"}),
            facts={"queues": {"words": [1, 2, 3, 4.0, 5.0]}, "totals": {"passes": 1}},
        )
    )


def _publish(db: Database) -> None:
    publish_generations(db, "words")
    config = transact(db, lambda tr: read_config(tr, "words"))
    for task in publishers(db, config, config.observers[0]):
        run_task(task)


def run_task(task: Task) -> None:
    """A few steps of it."""
    for _ in range(5):
        if task.run() != 0.0:
            break


def contents(db: Database) -> dict[bytes, bytes]:
    """All that cq keeps."""
    return transact(db, lambda tr: {row.key: row.value for row in tr.snapshot.get_range(*_ALL)})


def put(db: Database, rows: dict[bytes, bytes]) -> None:
    """Have just this in the store."""

    def write(tr: Any) -> None:
        tr.clear_range(*_ALL)
        for key, value in rows.items():
            tr.set(key, value)
        tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)

    transact(db, write)


def kind_of(key: bytes) -> bytes:
    """What kind of a row it is: the first bytes behind the queue's prefix."""
    parts = key.split(b"/", 3)
    return parts[2] + parts[3][:2] if len(parts) > 3 else parts[1]


def queue_of(key: bytes, rng: random.Random) -> str:
    """The queue that it is of, any when it is of none."""
    name = key.split(b"/")[2].decode() if key.startswith(keys.ROOT + b"q/") else ""
    return name if name in QUEUES else rng.choice(QUEUES)


def break_one(rows: dict[bytes, bytes], rng: random.Random) -> tuple[bytes, dict[bytes, bytes]]:
    """The rows with one that is broken, and its key."""
    kinds = defaultdict(list)
    for key in rows:
        kinds[kind_of(key)].append(key)
    key = rng.choice(kinds[rng.choice(sorted(kinds))])
    match rng.randrange(8):
        case 0 if key.startswith(keys.ROOT + b"q/"):  # another key, of the same kind
            parts = key.split(b"/", 3)
            other = b"/".join([*parts[:3], parts[3][:1] + mutated(parts[3][1:], rng)[:3_000]])
            return key, {**rows, other: rng.choice((rows[key], broken(rows[key], rng)))}
        case 1:  # another key, of any kind
            return key, {
                **rows,
                key[: 3 + rng.randrange(len(key))] + rng.randbytes(rng.randrange(4)): rows[key],
            }
        case _:
            return key, {**rows, key: broken(rows[key], rng)}


def looks(db: Database, name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """All that looks at a queue, or at all of them."""
    handle, code = cq.CombineQueue(name), app()
    words = name == "words"
    key: Any = {"pairs": ("p", 1), "words": "a", "tags": "x", "watched": "w"}[name]
    update: Any = {"pairs": 1, "tags": {"x"}}.get(name, 1)

    def read(what: Callable[[Any], object]) -> Callable[[], object]:
        return lambda: transact(db, what)

    yield "get", read(lambda tr: handle.get(tr, key))
    yield "get pending", read(lambda tr: handle.get(tr, key, pending=True))
    yield "get_many", read(lambda tr: handle.get_many(tr, [key]))
    yield "items", read(handle.items)
    yield "scan", lambda: list(islice(handle.scan(db), 100))
    yield "add", lambda: add(db, name, {key: update}, once="third")
    yield "status", lambda: status(db)
    yield "overview", lambda: remarks(overview(db))
    yield "health", lambda: health(db)
    yield "compare", lambda: compare(db, name)
    yield "links", lambda: link_status(db)
    yield "links aside", lambda: list(islice(entries_aside(db, LinkKeys(name, "export")), 100))
    yield "aside", read(lambda tr: read_aside(tr, name))
    yield "beat", lambda: Membership(db).beat(MemberReport())
    yield "load", lambda: _load(db, code)
    yield "trim", lambda: trim(db, name)
    yield "combine", lambda: combine(db, name)
    yield "retry", lambda: retry_aside(db, name)
    yield "drop", lambda: drop_aside(db, name)
    yield "configure", lambda: cq.configure(db, name, observers=[])
    yield "pause", lambda: admin.pause(db, name)
    yield "resume", lambda: admin.resume(db, name)
    yield "prioritize", lambda: admin.prioritize(db, name, 5)
    yield "limit", lambda: admin.limit(db, name, max_bytes=5)
    if words:
        yield "documents", lambda: _documents(db, handle)
        yield "jsonl", lambda: add_jsonl(db, handle, io.BytesIO(LINES), name=b"file")
        yield "top", read(lambda tr: Ranking(name).page(tr, values=True))
        yield "groups", read(lambda tr: Ranking(name).groups(tr))
        yield "count", read(lambda tr: (Ranking(name).count(tr), Ranking(name).count(tr, lowest=1)))
        yield "rank", read(lambda tr: Ranking(name).rank(tr, key))
        yield "cloud", read(lambda tr: CloudReader(name).read(tr))
        yield "publish", lambda: _publish(db)
        yield "send", lambda: _send(db)
    yield "purge", lambda: admin.purge(db, name)
    yield "combine it away", lambda: combine(db, name)
    yield "rebucket", lambda: admin.rebucket(db, name, 3)
    yield "combine again", lambda: combine(db, name)
    yield "delete", lambda: admin.delete(db, name)


SURE: Final = {"status", "overview", "health", "links", "beat", "load"}
"""Those of them that are about all queues, and so work whatever is broken of one."""


def _load(db: Database, code: App) -> None:
    Workload(db, code, [], {*ROLES, "measure"}, WorkerCounts(), None).load()[1].cancel()


def trim(db: Database, name: str) -> int:
    """Forget all operation ids; returns how many there were."""
    trimmed = Trim(db, name, 0.0)
    for _ in range(10):
        if not trimmed.step():
            return trimmed.removed
    raise AssertionError("trimming comes to no end")


def _documents(db: Database, handle: cq.CombineQueue) -> None:
    documents = Documents(handle)
    list(islice(documents.ids(db), 100))
    transact(db, partial(documents.counts, document=b"doc"))
    documents.put(db, b"doc", {"a": 2})
    documents.remove(db, b"doc")


def _send(db: Database) -> None:
    sender = Sender(db, Source(b"", "words", "export", 1), MemoryTarget(keeps_positions=False))
    for bucket in range(8):
        run_task(LinkTask(db, LinkKeys("words", "export"), bucket, sender))


@contextmanager
def clear_errors(note: str, *, is_sure: bool = False) -> Iterator[None]:
    """Go on after a clear error; any other one gets a note. If it is sure to work, there is no clear error."""
    try:
        yield
    except Exception as error:
        if is_sure or not is_clear(error):
            error.add_note(note)
            raise


def is_clear(error: BaseException) -> bool:
    """Whether it is an error of cq's own, or of the store."""
    return isinstance(error, CqError) or error_code(error) is not None
