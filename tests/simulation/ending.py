"""What must be true when nothing goes wrong any more: everything gets done, and is as the model says."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import cq
from cq import admin
from cq.admin.audit import audit_findings
from cq.admin.backfill import is_settled
from cq.admin.purging import purging_buckets
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import NotReady
from cq.keys import QueueKeys, prefix_end
from cq.keys.link import LinkKeys
from cq.keys.missed import MissedKeys
from cq.observers.tasks.timed import FinishTask
from cq.observers.telemetry.history import MINUTES_KEPT, read_history
from cq.observers.telemetry.totals import Counts
from cq.observers.top.cloud import CloudReader
from cq.observers.top.ranking import Ranking
from cq.observers.verify.queue import verification
from cq.queue.set_aside import read_aside, retry_missed
from cq.store.transact import transact
from tests.simulation.administrator import restore
from tests.simulation.application import FEED, LENGTHS, SUMS, TABLE, TEXTS, TOP, app
from tests.simulation.drill import Drill
from tests.simulation.model import Violation
from tests.simulation.plan import MAY_SET_ASIDE
from tests.simulation.scenario import check_verified, first_row
from tests.simulation.sql import LINK

if TYPE_CHECKING:
    from tests.simulation.world import World


def settle(world: World) -> None:
    """Let everything be done by two workers."""
    process = world.process("ending")
    world.administrator.make_texts()
    for name in sorted(world.damaged):  # the operator has died before the repair
        for _ in verification(world.inner, name, app=app(world, world.extra), repair=True, wait=0).run():
            pass
    for key in list(world.spoiled):  # here, too
        restore(world, key)
    for name in world.models:
        admin.resume(world.db(process), name)
        admin.limit(world.db(process), name)
    world.workers.replace(least=2)
    drill = world.drill = Drill(world, process)
    world.hub.start(process, "finish", lambda: _finish(world, process, drill))


def _finish(world: World, process: Any, drill: Drill) -> None:
    """Close the emitters, try again all that was begun with an operation id, and have the drill."""
    world.emitters.close()
    world.loaders.finish(process)
    while world.adders.operations:
        world.adders.add(process, next(iter(world.adders.operations.values())))
    drill.run()


def left(world: World) -> str:
    """What is not done yet."""
    if open_yet := [*map(str, world.emitters.running.values()), *sorted(world.adders.operations)]:
        return f"emitters and operations {open_yet}"
    if world.drill is None or not world.drill.is_done:
        return "the drill"
    if "table" in world.plan:
        world.table_copy.rebuild_if_stopped()
    if queued := _queued(world):
        return queued
    if any(purging_buckets(world.inner, name) for name in world.models):
        return "a purge"
    return _behind(world)


def _queued(world: World) -> str:
    """What is queued or staged of the queues and links."""
    tr = world.inner.create_transaction().snapshot
    for name in world.models:
        queue = QueueKeys(name)
        ranges = {
            "rows": queue.all_rows(),
            "notifications": queue.notifications(),
            "staged": (queue.staged_at(b""), queue.staged_at(b"\xff" * 5)),
        }
        if found := first_row(tr, ranges):
            return f"{name}: {found}"
        if not is_settled(tr, name):
            return f"{name} is not settled"
    for keys in (LINK, LinkKeys(FEED, FEED)):
        if found := first_row(tr, {"entries": keys.all_rows(), "failures": keys.failures()}):
            return f"the link {keys.link} of {keys.queue}: {found}"
    return ""


def _missed(world: World, name: str) -> list[Any]:
    """The first report that observers missed; each is retried: none refuses anything any more."""
    prefix = MissedKeys(name).prefix
    found = world.inner.get_range(prefix, prefix_end(prefix), limit=1)
    if found:
        retry_missed(world.inner, name)
    return list(found)


def _behind(world: World) -> str:
    """Whether the cloud or the table is behind: those are told of changes later; or an observer has missed a report."""
    if found := [row for name in world.models for row in _missed(world, name)]:
        return f"missed reports: {found}"
    stored = dict(cq.CombineQueue(SUMS).scan(world.inner))
    if "top" in world.plan:
        try:
            cloud = transact(world.inner, lambda tr: CloudReader(SUMS).read(tr))
        except NotReady as error:
            return str(error) if stored else ""
        shown = [(entry.key, entry.score) for entry in cloud.entries]
        if shown != _ordered(stored)[:TOP]:
            return f"the cloud shows {shown} of {stored}"
    if "table" in world.plan:
        with closing(sqlite3.connect(world.report_path)) as connection:
            found = connection.execute(f'SELECT "key", "value" FROM "{TABLE}"').fetchall()  # noqa: S608
        if (table := dict(found)) != stored:
            return f"the table has {table}, not {stored}"
    return ""


def _ordered(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))


def not_shared(world: World) -> str:
    """Whether each task is one worker's, and all workers know of each other."""
    owners: dict[Any, list[str]] = defaultdict(list)
    ids = {worker._membership.id for worker in world.workers.running.values()}
    for process, worker in world.workers.running.items():
        known = {worker._membership.id, *(member.id for member in worker._membership.others)}
        if known != ids:
            return f"{process} knows {len(known)} workers of {len(ids)}"
        for job in worker._work.jobs:
            if not isinstance(
                job.task, FinishTask
            ):  # all is settled: who has opened the queue since has none
                owners[job.task_id] += [str(process)] if job.owned else []
    wrong = {str(share): processes for share, processes in owners.items() if len(processes) != 1}
    return f"tasks are of other than one worker: {wrong}" if wrong else ""


def check(world: World) -> None:
    """Compare what is stored with the model. Raises `Violation`."""
    world.emitters.check()
    world.callers.check()
    world.loaders.check()
    may_set_aside = bool(MAY_SET_ASIDE & world.plan.on)
    for name, model in world.models.items():
        stored = dict(cq.CombineQueue(name).scan(world.inner))
        aside: dict[str, list[Any]] = defaultdict(list)
        for each in transact(world.inner, lambda tr: read_aside(tr, name)):  # noqa: B023
            aside[str(codec.decode(each.encoded_key))] += each.updates
        model.check_values(stored, aside, may_set_aside)
        if model.observers:
            model.check_observers(stored, model.observers[-1][1])
    _check_lengths(world)
    if "feed" in world.plan:
        world.feed.check(world.feed.added)
    if transact(world.inner, lambda tr: read_config(tr.snapshot, SUMS)).audit is not None:
        cq.configure(world.inner, SUMS, audit=True)  # whoever began may have died before all was included
        if lines := list(audit_findings(world.inner, SUMS)):
            raise Violation(f"the audit of {SUMS}: {lines}")
    if "top" in world.plan:
        _check_top(world)
    _check_memory(world)
    _check_history(world)
    for name in world.models:
        check_verified(world.inner, name, app=app(world, world.extra), wait=0)


def _check_lengths(world: World) -> None:
    """What the second observer has derived is of the reports of its present version alone."""
    model = world.models[TEXTS]
    if world.extra:
        told = model.told["extra", world.extra]
        expected = sum(len(text) for text in told.values() if text is not None)
        found = int.from_bytes(world.inner.get(LENGTHS) or b"", "little")
        if found != expected:
            raise Violation(f"the second observer has derived a length of {found}, expected {expected}")


def _check_top(world: World) -> None:
    stored = dict(cq.CombineQueue(SUMS).scan(world.inner))
    ranking = Ranking(SUMS)
    tr = world.inner.create_transaction().snapshot
    found = {entry.key: entry.score for entry in ranking.page(tr, 1000).entries}
    if list(found.items()) != _ordered(stored):
        raise Violation(f"the top is {found}, expected {_ordered(stored)}")
    if (count := ranking.count(tr)) != len(stored):
        raise Violation(f"the top counts {count} keys of {len(stored)}")
    for key, value in stored.items():
        rank = 1 + sum(other > value for other in stored.values())
        if ranking.rank(tr, key) != rank:
            raise Violation(f"the rank of {key!r} is {ranking.rank(tr, key)}, expected {rank}")


def _check_history(world: World) -> None:
    """The history shows no work that no worker has done."""
    workers = [*world.workers.made, *world.drains.made]
    for name, minutes in read_history(world.inner, world.models, MINUTES_KEPT).items():
        for number in Counts().as_dict():
            shown = sum(getattr(minute, number) for minute in minutes)
            done = sum(getattr(each.counts.queues.get(name, Counts()), number) for each in workers)
            if shown > done:
                raise Violation(f"the history of {name} shows {shown} {number}, workers have counted {done}")


def _check_memory(world: World) -> None:
    for worker in world.workers.running.values():
        for job in worker._work.jobs:
            memory = getattr(getattr(job.task, "bucket", None), "memory", None)
            if memory is not None and sum(len(v or b"") for v in memory.values.values()) > memory.max_bytes:
                raise Violation(f"{job} remembers more than {memory.max_bytes:,} bytes")
