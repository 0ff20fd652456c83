"""Chooses the keys that a pass reports: the next ones in hash order, as far as all keys before them are known.

If the rows were not read to their end, the pass reports no key, unless this has lasted too long (overload), or no
observer hears the changes (`QueueCode.is_heard`) and folding would not shrink the backlog much.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

from cq import keys
from cq.keys import place
from cq.passes.batch import Batch, Step
from cq.passes.hash_order import count_up_to, rank_from_cursor, sort_from_cursor
from cq.store.api import WANT_ALL
from cq.store.sizes import CLEAR_COPIES, SET_COPIES
from cq.store.version_clock import clock_of


@dataclass(slots=True)
class Chosen:
    """The encoded keys to report, and whether all staged updates of the bucket were read."""

    all_staged_known: bool
    report: list[bytes] = field(default_factory=list)


def choose(batch: Batch) -> Chosen:
    """Choose the keys to report, at most as many as planned; read their staged updates into the batch.

    A suspect is reported only if no other key has work, or if it is planned, and then alone.
    """
    plan = batch.bucket.plan
    chosen = Chosen(not batch.state.staged)
    may_report = batch.at_end or not batch.folds_first or _is_overloaded(batch)
    if not plan.most_reported or not may_report:
        return chosen
    last_staged = None
    if batch.state.staged:
        last_staged = _read_staged(batch, plan.most_reported + len(plan.suspects) + 1)
        chosen.all_staged_known = last_staged is None
    waiting = _keys_in_hash_order(batch, last_staged)
    others, suspected = waiting, []
    # A suspect is reported alone: if it fails again, no other key is delayed.
    if plan.suspects:
        others = [encoded for encoded in waiting if encoded not in plan.suspects]
        suspected = [encoded for encoded in waiting if encoded in plan.suspects]
    is_next = bool(suspected) and (plan.try_suspect or not others)
    most = _most_written(batch)
    cost = batch.bucket.value_cost
    chosen.report = suspected[:1] if is_next else affordable(others[: plan.most_reported], cost, most)
    return chosen


def _most_written(batch: Batch) -> int:
    """Return the bytes for writing reported values, in addition to those for staged updates and rows.

    In a bucket without staged updates only keys of the taken updates are reported, which then need not be staged. In
    others the pass reports more keys, and clearing their staged updates costs more than writing their values.
    """
    limits, is_observed = batch.bucket.plan.limits, batch.bucket.is_observed
    most = limits.to_write(is_observed=is_observed)
    if batch.decision.step is Step.FOLD:
        most -= batch.decision.size
    elif batch.state.staged:
        most = (most - batch.decision.size) * SET_COPIES // (SET_COPIES + CLEAR_COPIES)
    return min(most, limits.reported_bytes) if is_observed else most


def affordable(report: list[bytes], value_cost: tuple[int, int], most: int) -> list[bytes]:
    """Return the first of these keys that a pass can write in about `most` bytes, at least one.

    Each key counts with its value, its conflict range, and its entry in the index of an expiry. `most` can be negative:
    the updates that a pass writes as rows exceed its budget if a single update does.
    """
    sizes = [0, *accumulate(map(len, report))]
    copies, each = value_cost

    def cost(number: int) -> int:
        return copies * sizes[number] + each * number

    if cost(len(report)) <= most:
        return report
    return report[: max(1, bisect_right(range(len(sizes)), most, key=cost) - 1)]


def _is_overloaded(batch: Batch) -> bool:
    since, now = batch.state.unfinished_since, batch.bucket.read_version
    if not since:
        return False
    clock = clock_of(batch.bucket.tr.db)
    clock.observe(now)
    return clock.age(since, now) >= batch.bucket.plan.limits.overload_seconds


def _keys_in_hash_order(batch: Batch, last_staged: bytes | None) -> list[bytes]:
    """Return the keys with work in hash order from the cursor, as far as all of them are known."""
    candidates = dict.fromkeys(batch.updates)
    candidates.update((encoded, None) for encoded, staged in batch.staged.items() if staged is not None)
    cursor = batch.state.cursor
    order = sort_from_cursor(list(candidates), cursor)
    if last_staged is not None:  # keys after it may have unread staged updates
        order = order[: max(1, count_up_to(order, rank_from_cursor(last_staged, cursor), cursor))]
    return order


def _read_staged(batch: Batch, room: int) -> bytes | None:
    """Read staged updates of `room` keys from the cursor; return the position of the last, None: all read."""
    bucket = batch.bucket
    begin, end = bucket.keys.staged_of_bucket(bucket.config.buckets, bucket.number)
    middle = min(max(begin, keys.after(bucket.keys.staged_at(batch.state.cursor))), end)
    size = 0
    for bounds in ((middle, end), (begin, middle)):
        for row in bucket.tr.snapshot.get_range(*bounds, limit=room, streaming_mode=WANT_ALL):
            encoded = bucket.keys.encoded_key(row.key)
            batch.staged[encoded] = row.value
            size += len(row.key) + len(row.value)
            room -= 1
            if size > bucket.plan.limits.load_bytes or room == 0:
                return place(encoded)
    return None
