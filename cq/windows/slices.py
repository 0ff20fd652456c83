"""Reads of a window: from the totals of its keys, or by merging its slices.

The totals of a window are exact for the slices that are stored. A read subtracts slices that have left by its clock and
are not deleted yet, and adds what is queued on the way: in the queue, in the slices, and in the totals. So it is right
even if no worker runs.

Combiners that cannot subtract have no totals: a maximum, a union, sketches. A read of a key merges its slices, each
read by a request of its own. The queue of keys then has the latest update of each key, so that keys can be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from cq.combiners import Combiner, built_in_combiner, updates_between
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import key_without_time, level_key
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.errors import BacklogTooDeep
from cq.keys import QueueKeys, place
from cq.keys.expiry import ExpiryKeys
from cq.queue.combine_queue import CombineQueue, Page
from cq.queue.pending import read_pending_rows, read_pending_updates
from cq.queue.rows import Updates, timed
from cq.queue.slots import combined, combining
from cq.store.api import WANT_ALL, TransactionRead
from cq.store.reads import snapshot_of

MAX_OVERDUE: Final = 20_000
"""Slices that have left and that a read subtracts, at most."""
_READS: Final = 5_000  # of values, in flight at a time
_HASH_BYTES: Final = 4


class WindowRead:
    """One read of a window.

    Args:
        tr: a transaction of either store, or its `.snapshot`.
        config: the configuration of the queue with the window.
        combiner: its combiner.
        now: the end of the window, in milliseconds since 1970.
        pending: whether queued updates count.
    """

    def __init__(
        self, tr: TransactionRead, config: QueueConfig, combiner: Combiner, now: int, *, pending: bool
    ) -> None:
        self._tr = tr
        self._snapshot = snapshot_of(tr)
        self._config, self._combiner, self._now, self._pending = config, combiner, now, pending

    def totals(self, wanted: Collection[Any]) -> dict[Any, Any]:
        """{key: total}, None for a key without updates in the window; raises as `read_pending_updates`."""
        encode = self._config.key.encoder()
        encoded = {key: encode(key) for key in wanted}
        if self._config.merges_window:
            return self._merged(encoded)
        queue = QueueKeys(self._config.totals_name)
        futures = {key: self._tr.get(queue.value(each)) for key, each in encoded.items()}
        changes = self._changes(list(encoded.values()))
        stored = {key: future.value for key, future in futures.items()}
        values = {key: None if data is None else codec.decode(data) for key, data in stored.items()}
        return self._changed(values, changes)

    def page(self, limit: int, after: bytes | None) -> Page[Any, Any]:
        """About `limit` keys with their totals, in hash order, after a place; with `pending`, also new keys."""
        handle: CombineQueue[Any, Any] = CombineQueue(self._config.totals_name)
        page = handle.items(self._tr, limit=limit, after=after)
        changes = self._changes(None)
        keys = dict(page.items)
        begin, end = after or b"", page.continuation
        inside = (each for each in changes if place(each) > begin and (end is None or place(each) <= end))
        keys |= {key: keys.get(key) for key in map(self._config.key.decode, inside)}
        if self._config.merges_window:
            return Page(self._present(self.totals(keys)), end)
        return Page(self._present(self._changed(keys, changes)), end)

    def _changed(self, values: dict[Any, Any], changes: Updates) -> dict[Any, Any]:
        """{key: total} of stored values, None for none, with these changes."""
        encode = self._config.key.encoder()
        return {
            key: combined(self._combiner, key, [value, *changes.get(encode(key), ())])
            for key, value in values.items()
        }

    def _present(self, totals: dict[Any, Any]) -> list[tuple[Any, Any]]:
        encode = self._config.key.encoder()
        found = [(key, total) for key, total in totals.items() if total is not None]
        return sorted(found, key=lambda item: place(encode(item[0])))

    def _changes(self, wanted: Sequence[bytes] | None) -> Updates:
        """The updates that change the stored totals of the wanted keys, or of all keys; often empty."""
        if self._pending:
            return read_changes(self._snapshot, self._config, self._now, wanted)
        if self._config.merges_window:
            return {}
        overdue = read_overdue(self._snapshot, self._config, self._now, wanted)
        return _with_removals(self._snapshot, self._config, overdue, list(overdue)) if overdue else {}

    # Merging

    def _merged(self, encoded: dict[Any, bytes]) -> dict[Any, Any]:
        """{key: combination of its slices in the window}."""
        name, window = self._config.slices_name, _window_of(self._config)
        ends = window.ends(self._now)
        level, queue = read_config(self._snapshot, name), QueueKeys(name)
        encode = level.key.encoder()
        queued: dict[int, Updates] = {}
        if self._pending:
            slices = [encode(level_key(key, end)) for key in encoded for end in ends]
            queued = _queued_slices(self._snapshot, self._config, slices, list(encoded.values()))
        found = {}
        for key, values in _reads(self._tr, queue, encode, list(encoded), ends):
            parts: list[Any] = []
            for end, value in zip(ends, values, strict=True):
                parts += [] if value is None else [codec.decode(value)]
                parts += queued.get(end, {}).get(encoded[key], ())
            found[key] = combined(self._combiner, key, parts) if parts else None
        return found


def _reads(
    tr: TransactionRead, queue: QueueKeys, encode: Callable[[Any], bytes], keys: list[Any], ends: range
) -> Iterator[tuple[Any, list[bytes | None]]]:
    """Each key with the stored bytes of its slices; some thousand reads are in flight at a time."""
    left = iter(keys)
    while some := list(islice(left, max(1, _READS // len(ends)))):
        futures = {key: [tr.get(queue.value(encode(level_key(key, end)))) for end in ends] for key in some}
        for key in some:
            yield key, [future.value for future in futures[key]]


def read_changes(
    snapshot: TransactionRead, config: QueueConfig, now: int, wanted: Sequence[bytes] | None = None
) -> Updates:
    """The updates that change the stored totals of a window into those at a time: all that is queued or overdue.

    Args:
        snapshot: a transaction's snapshot reads.
        config: the configuration of the queue with the window.
        now: in milliseconds since 1970.
        wanted: encoded keys; None for all. There may be others in the result.

    Of a window that reads merge, only the keys are of use. Raises as `read_pending_updates` and `read_overdue`.
    """
    window = _window_of(config)
    overdue = {} if config.merges_window else read_overdue(snapshot, config, now, wanted)
    changes = _with_removals(snapshot, config, overdue, wanted)
    for end, updates in _queued_slices(snapshot, config, None, wanted).items():
        if not window.is_over(end, now):
            for encoded, some in updates.items():
                changes.setdefault(encoded, []).extend(some)
    return changes


def _with_removals(
    snapshot: TransactionRead, config: QueueConfig, overdue: Updates, wanted: Sequence[bytes] | None
) -> Updates:
    """The updates queued for the totals, and the removals of overdue slices."""
    changes = read_pending_updates(snapshot, read_config(snapshot, config.totals_name), wanted)
    for encoded, values in overdue.items():
        combiner = _subtracting(config)
        with combining(config.key.decode(encoded)):
            removals = [update for value in values for update in updates_between(combiner, None, value)]
        changes.setdefault(encoded, []).extend(removals)
    return changes


def read_overdue(
    snapshot: TransactionRead, config: QueueConfig, now: int, wanted: Sequence[bytes] | None = None
) -> Updates:
    """{encoded key: values of its slices} that have left the window by `now`, and are not deleted yet; usually none.

    Raises `BacklogTooDeep` if these are more than 20,000.
    """
    name = config.slices_name
    index, queue = ExpiryKeys(name), QueueKeys(name)
    due = index.entries_until(now - _window_of(config).width)
    rows = snapshot.get_range(*due, limit=MAX_OVERDUE + 1, streaming_mode=WANT_ALL).to_list()
    if not rows:
        return {}
    if len(rows) > MAX_OVERDUE:
        raise BacklogTooDeep(
            f"more than {MAX_OVERDUE:,} slices are overdue in the window of queue {config.name!r}: run workers"
        )
    slices = [index.parse_entry(row.key)[1][_HASH_BYTES:] for row in rows]
    keys = [encoded for encoded, _ in split_level_keys(config, snapshot, slices)]
    some = None if wanted is None else set(wanted)
    futures = [
        (key, snapshot.get(queue.value(each)))
        for key, each in zip(keys, slices, strict=True)
        if some is None or key in some
    ]
    found: Updates = {}
    for key, future in futures:
        if future.value is not None:
            found.setdefault(key, []).append(codec.decode(future.value))
    return found


def split_level_keys(
    config: QueueConfig, snapshot: TransactionRead, encoded: Sequence[bytes]
) -> list[tuple[bytes, int]]:
    """(encoded key of the queue, end) of encoded keys of slices."""
    decoded = read_config(snapshot, config.slices_name).key.decode_all(encoded)
    keys = [key_without_time(config.key, key) for key in decoded]
    ends = [key[-1] for key in decoded]
    return list(zip(config.key.encode_all(keys), ends, strict=True))


def _queued_slices(
    snapshot: TransactionRead,
    config: QueueConfig,
    slices: Sequence[bytes] | None,
    wanted: Sequence[bytes] | None,
) -> dict[int, Updates]:
    """{end of a slice: {encoded key: updates}} of what is queued for the slices, and in the queue itself.

    Of the wanted encoded slices and keys, or of all.
    """
    window = _window_of(config)
    found: dict[int, Updates] = {}
    level = read_pending_updates(snapshot, read_config(snapshot, config.slices_name), slices)
    split = split_level_keys(config, snapshot, list(level)) if level else []
    for (encoded, end), updates in zip(split, level.values(), strict=True):
        found.setdefault(end, {}).setdefault(encoded, []).extend(updates)
    for encoded, update, time in timed(read_pending_rows(snapshot, config, wanted)):
        found.setdefault(window.period_of(time), {}).setdefault(encoded, []).append(update)
    return found


def _window_of(config: QueueConfig) -> WindowSpec:
    if config.window is None:
        raise TypeError(f"queue {config.name!r} has no window")
    return config.window


def _subtracting(config: QueueConfig) -> Combiner:
    combiner = built_in_combiner(config.combiner.name)
    if combiner is None:
        raise TypeError(f"queue {config.name!r} has no combiner that subtracts")
    return combiner
