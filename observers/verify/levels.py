"""Checks of a roll-up: each period of a derived level is the combination of the shorter periods that it includes.

This holds only while nothing is queued, staged or set aside on the way, and only for periods whose parts are
all kept: a pass that deletes expired periods stores the latest one, whatever the retention was then. So a queue in use
is checked when it is idle; otherwise a note says why the check was skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from cq.admin.purge import read_purging
from cq.combiners import resolve
from cq.config.queue import QueueConfig
from cq.config.rollup import OBSERVER
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import QueueKeys
from cq.keys.expiry import ExpiryKeys, parse_time
from cq.store.api import TransactionRead
from cq.verify.piece import Difference, Piece, stored_config
from cq.verify.verification import Verification
from cq.verify.window import RECOUNT_BYTES, read_up_to


def check_levels(verification: Verification) -> Iterator[Difference]:
    """Compare a level with the next level, which workers derive from it, at one read version."""
    reason, differences = verification.piece(_compare)
    if reason:
        verification.note(f"the next level of the roll-up is not compared: {reason}")
    yield from differences


def _compare(piece: Piece) -> str:
    """Compare all periods of the next level; return why they cannot be compared, empty if they can."""
    settings = next((each.settings for each in piece.config.observers if each.name == OBSERVER), None)
    if piece.config.level_of is None or settings is None:
        return ""
    into = settings["into"]
    target = stored_config(piece.snapshot, QueueKeys(into), into)
    combiner = resolve(piece.config.combiner.name)
    for config in (piece.config, target):
        if busy := _busy(piece.snapshot, config):
            return busy
    limit = piece.share(RECOUNT_BYTES)
    finer, coarser = (_values(piece, config, limit) for config in (piece.config, target))
    if finer is None or coarser is None:
        return f"it holds more than {RECOUNT_BYTES:,} bytes, or some data of it cannot be read"
    period = settings["period"]
    parts: defaultdict[Any, list[Any]] = defaultdict(list)
    for (*parts_of_key, start), value in finer.items():
        parts[(*parts_of_key, start // period * period)].append(value)
    expired = max(_latest_expired(piece.snapshot, config) for config in (piece.config, target))
    for key in {*parts, *coarser}:
        if key[-1] <= expired:  # it, or some of its parts, can have expired
            continue
        combined = combiner.combine(key, parts[key]) if parts[key] else None
        wanted = None if combined is None or combiner.is_empty(combined) else combined
        found = coarser.get(key)
        if not _is_same(found, wanted):
            what = (
                f"{codec.brief(found)} in queue {into!r}, but {codec.brief(wanted)} in queue {piece.name!r}"
            )
            where = QueueKeys(into).value(target.key.encoder()(key))
            piece.report("level-value", where, what, key=key)
    return ""


def _busy(snapshot: TransactionRead, config: QueueConfig) -> str:
    """Why the values of a queue do not include all updates; empty if they do."""
    queue = QueueKeys(config.name)
    ranges = {
        "updates are queued": queue.all_rows(),
        "updates are staged": queue.staged_of_bucket(1, 0),
        "updates are set aside": queue.aside(),
    }
    for what, bounds in ranges.items():
        if snapshot.get_range(*bounds, limit=1).to_list():
            return f"{what} in queue {config.name!r}"
    return f"queue {config.name!r} is being purged" if read_purging(snapshot, config) else ""


def _values(piece: Piece, config: QueueConfig, limit: int) -> dict[tuple[Any, ...], Any] | None:
    """{key: value} of a queue; None if it holds more than `limit` bytes, or unreadable data."""
    queue = QueueKeys(config.name)
    rows = read_up_to(piece, queue.values(), limit)
    if rows is None:
        return None
    try:
        return {config.key.decode(queue.encoded_key(row.key)): codec.decode(row.value) for row in rows}
    except CorruptData:
        return None


def _latest_expired(snapshot: TransactionRead, config: QueueConfig) -> int:
    """The start of the latest period that has expired, in seconds since 1970; lower than all starts for none."""
    stored = snapshot.get(ExpiryKeys(config.name).latest_expired).value
    return -1 << 63 if stored is None else parse_time(stored)


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):  # sums of floats depend on their grouping
        return abs(left - right) <= 1e-6 * max(1.0, abs(left), abs(right))
    return bool(left == right)
