"""Exact distinct counts: the number of a queue's keys that have a value, by their first parts, in another queue.

For a queue with keys (page, visitor), the other queue has the number of different visitors of each page. A pass that
writes the first value of a key, or removes its value, adds 1 or -1 to the other queue in its own transaction. So the
count is exact even if workers crash. For the keys in a window it is the number of distinct visitors in the window.
The combiner `distinct` (see `cq.sketches`) estimates distinct counts instead, in a few kilobytes for each page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from cq.config.queue import DISTINCT, QueueConfig, read_config
from cq.encoding import codec
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration, QueueNotConfigured
from cq.keys import check_name
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.observers.receiver import check_receiver
from cq.queue.combine_queue import CombineQueue, own_combiner
from cq.queue.pending import read_pending_updates
from cq.queue.slots import combined
from cq.store.api import Transaction, TransactionRead
from cq.windows.slices import read_changes

NAME: Final = DISTINCT
VERSION: Final = 1


def distinct(into: str, *, parts: int = 1) -> ObserverSpec:
    """Return the observer that counts a queue's keys into another queue, by their first parts.

    Configure the other queue with keys of these parts (a single part is not a tuple), int values and the combiner sum.
    Its counts stay when the observer is removed. So a queue with values refuses to rebuild it, or to change
    its settings or version, which would count all keys a second time: first remove it from each queue that counts into
    the other queue (`cq.admin.remove_observer`), purge the other queue (`cq.admin.purge`), and then put it on them
    again (`cq.admin.put_observer`).

    Args:
        into: name of the other queue.
        parts: number of the first parts of a key to count by; fewer than a key has.

    Raises:
        InvalidConfiguration: the name is invalid, or `parts` is not a positive int.
    """
    if type(parts) is not int or parts < 1:
        raise InvalidConfiguration(
            f"expected parts to be the number of a key's parts to count by, at least 1, got: {brief(parts)}"
        )
    settings = {"into": check_name(into), "parts": parts}
    return ObserverSpec(NAME, VERSION, settings, check=lambda tr, config: _check(tr, config, settings))


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """Return the observer's function; raises `InvalidConfiguration` if it does not suit the queue."""
    into, parts = settings["into"], settings["parts"]
    if not config.key.is_tuple or len(config.key.parts) <= parts or into == config.name:
        raise InvalidConfiguration(
            f"expected keys of more than {parts} parts, to be counted into another queue, queue {config.name!r} has "
            f"keys of {config.key}"
        )
    target = CombineQueue(into)

    def count(tr: Transaction, changes: list[Change]) -> None:
        keys = [first_parts(change.key, parts) for change in changes]
        encoded_keys = read_config(tr, into).key.encode_all(keys)
        # By encoded keys: applications' ints have predictable hashes, which an attacker could make collide.
        counts: Counter[bytes] = Counter()
        for encoded, change in zip(encoded_keys, changes, strict=True):
            counts[encoded] += (change.new is not None) - (change.old is not None)
        key_of = dict(zip(encoded_keys, keys, strict=True))
        target.add(tr, [(key_of[encoded], number) for encoded, number in counts.items() if number])

    return count


def _check(tr: TransactionRead, config: QueueConfig, settings: Mapping[str, Any]) -> None:
    """Raise `InvalidConfiguration` unless the observer suits the queue, and the other queue if there is one."""
    observer(config, settings, 0)
    with suppress(QueueNotConfigured):  # it may be configured later: workers wait for it
        check_receiver(read_config(tr, settings["into"]), config.key.parts[: settings["parts"]], "sum", "int")


def first_parts(key: tuple[Any, ...], parts: int) -> Any:
    """Return the first parts of a key; a single part is not a tuple."""
    return key[0] if parts == 1 else key[:parts]


def count_now(tr: TransactionRead, source: str, into: str, parts: int, now: int) -> dict[Any, int]:
    """Return the pending changes of the counts: of all queued updates, and of all slices that have left by `now`.

    At the transaction's read version: added to the values of the other queue, they give the exact counts, even if no
    worker runs. Raises `BacklogTooDeep`.

    Args:
        tr: a transaction's snapshot reads.
        source: the queue with the keys; it may be that of the keys in a window.
        into: the queue with the counts.
        parts: number of the first parts of a key to count by.
        now: in milliseconds since 1970.
    """
    config, target = read_config(tr, source), read_config(tr, into)
    queue = CombineQueue(source).keys
    if config.level_of is not None and config.level_of.is_window:
        changes = read_changes(tr, read_config(tr, config.level_of.queue), now)
    else:
        changes = read_pending_updates(tr, config)
    futures = {encoded: tr.get(queue.value(encoded)) for encoded in changes}
    combiner = own_combiner(CombineQueue(source), config)
    counts: Counter[Any] = Counter()
    for encoded, numbers in read_pending_updates(tr, target).items():
        counts[target.key.decode(encoded)] += sum(numbers)
    for encoded, updates in changes.items():
        current, key = futures[encoded].value, config.key.decode(encoded)
        before = [] if current is None else [codec.decode(current)]
        is_there = combined(combiner, key, [*before, *updates]) is not None
        counts[first_parts(key, parts)] += is_there - bool(before)
    return {key: number for key, number in counts.items() if number}
