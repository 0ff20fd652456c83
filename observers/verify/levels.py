"""Checks of the levels of a queue against each other: each has the same updates, by other periods.

A period of a roll-up is the combination of the periods of the next finer level that it includes, and a total of a
window is that of its slices. This holds only while nothing is queued, staged or set aside in either queue, and for
periods whose parts are all kept: a pass that deletes expired periods stores the latest one, whatever the retention was
then. So a queue in use is checked when it is idle; otherwise a note says why the check was skipped. Sketches of
quantiles and frequent items, `first`, `last` and an application's combiner can have other values by other steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isclose, isnan
from typing import Any, Final, NamedTuple

from cq.admin.purging import count_purging
from cq.combiners import Combiner, built_in_combiner
from cq.config.queue import QueueConfig
from cq.config.rollup import LevelOf, key_without_time
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import QueueKeys
from cq.keys.expiry import ExpiryKeys, parse_time
from cq.plain_text import describe
from cq.store.api import WANT_ALL, KeyValue, TransactionRead
from cq.verify.piece import Difference, Piece, stored_config
from cq.verify.queued import check_type
from cq.verify.verification import Verification

RECOUNT_BYTES: Final = 4_000_000
"""Bytes of a queue to recount, at most."""
_SKEW_SECONDS: Final = 60
"""How far an update that was added before a level was made may be ahead, about."""


class _CoarserQueue(NamedTuple):
    """A queue whose values are combinations of another queue's.

    Attributes:
        name: its name.
        key_of: its key for a key of the other queue.
        is_complete: whether it has all parts of a key.
    """

    name: str
    key_of: Callable[[tuple[Any, ...]], Any]
    is_complete: Callable[[Any], bool]


def check_levels(verification: Verification) -> Iterator[Difference]:
    """Compare a level with the next one, or the slices of a window with its totals, at one read version."""
    _, differences = verification.piece(_compare)
    yield from differences


def _compare(piece: Piece) -> None:
    """Compare all values of the target; note why they cannot be compared."""
    combiner = built_in_combiner(piece.config.combiner.name)
    level = piece.config.level_of
    if level is None or combiner is None or combiner.difference is None:
        return
    target = _target(piece, level)
    if target is None:
        return
    into = stored_config(piece.snapshot, QueueKeys(target.name), target.name)
    for config in (piece.config, into):
        if busy := _busy(piece.snapshot, config):
            _note(piece, busy)
            return
    limit = piece.share(RECOUNT_BYTES)
    finer, coarser = (_values(piece, config, limit) for config in (piece.config, into))
    if finer is None or coarser is None:
        _note(piece, f"it holds more than {RECOUNT_BYTES:,} bytes, or some data of it cannot be read")
        return
    parts: defaultdict[Any, list[Any]] = defaultdict(list)
    for key, value in finer.items():
        parts[target.key_of(key)].append(value)
    encode = into.key.encoder()
    for key in filter(target.is_complete, {*parts, *coarser}):
        try:
            wanted = _combined(combiner, key, parts[key])
        except Exception as error:  # noqa: BLE001 - for example of floats and Decimals, set aside in the target
            _note(piece, f"the values of key {codec.brief(key)} cannot be combined: {describe(error)}")
            continue
        found = coarser.get(key)
        if not _is_same(_present(combiner, found), _present(combiner, wanted), parts[key]):
            what = f"{codec.brief(found)} in queue {target.name!r}, but {codec.brief(wanted)} in queue {piece.name!r}"
            where = QueueKeys(target.name).value(encode(key))
            piece.report("level-value", where, what, key=key)


def _combined(combiner: Combiner, key: Any, parts: Sequence[Any]) -> Any:
    combined = combiner.combine(key, parts) if parts else None
    return None if combined is None or combiner.is_empty(combined) else combined


def _present(combiner: Combiner, value: Any) -> Any:
    """The value, or 0 for none if the combiner deletes a value of 0."""
    return 0.0 if value is None and combiner.is_empty(0.0) else value


def _note(piece: Piece, reason: str) -> None:
    piece.notes.append(f"it is not compared with the values that include it: {reason}")


def _target(piece: Piece, level: LevelOf) -> _CoarserQueue | None:
    """The queue to compare a level with; None if there is none."""
    source = stored_config(piece.snapshot, QueueKeys(level.queue), level.queue)
    if not level.is_period:
        if level.is_window or source.merges_window:
            return None
        return _CoarserQueue(source.totals_name, partial(key_without_time, source.key), lambda _: True)
    levels = source.rollup.levels if source.rollup else ()
    coarser = next((each for each in levels if each.period > level.period), None)
    if coarser is None:
        return None
    name, period = coarser.queue_of(source.name), coarser.period
    into = stored_config(piece.snapshot, QueueKeys(name), name)
    expired = max(_latest_expired(piece.snapshot, config) for config in (piece.config, into))
    since = max(each.since for each in (level, into.level_of or level)) + period + _SKEW_SECONDS
    return _CoarserQueue(
        name,
        lambda key: (*key[:-1], key[-1] // period * period),
        lambda key: key[-1] > expired and key[-1] >= since,
    )


def _busy(snapshot: TransactionRead, config: QueueConfig) -> str:
    """Why the values of a queue do not include all updates; empty if they do."""
    queue = QueueKeys(config.name)
    ranges = {
        "updates are queued": queue.all_rows(),
        "updates are staged": queue.all_staged(),
        "updates are set aside": queue.aside(),
    }
    for what, bounds in ranges.items():
        if snapshot.get_range(*bounds, limit=1).to_list():
            return f"{what} in queue {config.name!r}"
    return f"queue {config.name!r} is being purged" if count_purging(snapshot, config) else ""


def _values(piece: Piece, config: QueueConfig, limit: int) -> dict[Any, Any] | None:
    """{key: value} of a queue; None if it holds more than `limit` bytes, or unreadable data."""
    queue = QueueKeys(config.name)
    rows = _read_up_to(piece, queue.values(), limit)
    if rows is None:
        return None
    try:
        values = {config.key.decode(queue.encoded_key(row.key)): codec.decode(row.value) for row in rows}
        for value in values.values():
            check_type(config, value)
    except CorruptData:
        return None
    return values


def _read_up_to(piece: Piece, bounds: tuple[bytes, bytes], limit: int) -> list[KeyValue] | None:
    """Read a range; None if it has more than `limit` bytes."""
    rows, size = [], 0
    for row in piece.snapshot.get_range(*bounds, streaming_mode=WANT_ALL):
        rows.append(row)
        size += len(row.key) + len(row.value)
        if size > limit:
            return None
    return rows


def _latest_expired(snapshot: TransactionRead, config: QueueConfig) -> int:
    """The start of the latest period that has expired, in seconds since 1970; lower than all starts for none."""
    stored = snapshot.get(ExpiryKeys(config.name).latest_expired).value
    return -1 << 63 if stored is None else parse_time(stored)


def _is_same(left: Any, right: Any, parts: Sequence[Any]) -> bool:
    """Whether both are the combination of the parts. The last digits of a sum of floats depend on their grouping."""
    if isinstance(left, dict) or isinstance(right, dict):
        left, right = left or {}, right or {}
        return all(
            _is_same(
                left.get(item, 0.0), right.get(item, 0.0), [each[item] for each in parts if item in each]
            )
            for item in {*left, *right}
        )
    if isinstance(left, float) and isinstance(right, float):
        largest = max([0.0, *(abs(each) for each in parts if isinstance(each, float))])
        is_close = isclose(left, right, rel_tol=1e-6, abs_tol=max(1e-6, 1e-12 * largest))
        return is_close or (isnan(left) and isnan(right))
    return bool(left == right)
