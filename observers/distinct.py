"""Exact distinct counts: how many keys of a queue have a value, by the first parts of the keys, in another queue.

Of a queue with keys (page, visitor), say, the other one has how many different visitors each page has. When the value
of a key rises from or falls to nothing, the pass that writes it adds or takes one in the other queue, in its
own transaction: so the count is exact, whatever becomes of workers. Over a queue with a window it is the number of
distinct visitors within the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.keys import check_name
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Transaction, TransactionRead
from cq.windows.pending import read_changes, read_pending_sums

NAME: Final = "distinct"
VERSION: Final = 1


def distinct(into: str, *, parts: int = 1) -> ObserverSpec:
    """The observer that counts a queue's keys into another queue, by their first parts.

    Put it on a queue before anything is added to that, and do not rebuild it or change its settings later: what it has
    added to the other queue stays there. That queue is configured by you: with keys of these parts (one part alone
    is no tuple), values of int, the combiner sum, and no window.

    Args:
        into: the other queue.
        parts: how many of the first parts of a key to count by; fewer than a key has.

    Raises `InvalidConfiguration`.
    """
    if type(parts) is not int or parts < 1:
        raise InvalidConfiguration(
            f"expected the parts to count by to be 1 or more of a key's, got: {brief(parts)}"
        )
    return ObserverSpec(NAME, VERSION, {"into": check_name(into), "parts": parts})


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """The function of this kind of observer; raises `InvalidConfiguration` when it does not suit the queue."""
    into, parts = settings["into"], settings["parts"]
    if not config.key.is_tuple or len(config.key.parts) <= parts or into == config.name:
        raise InvalidConfiguration(
            f"expected keys of more than {parts} parts, to be counted into another queue, queue {config.name!r} has "
            f"keys of {config.key}"
        )
    target = CombineQueue(into)

    def count(tr: Transaction, changes: list[Change]) -> None:
        wanted = read_config(tr, into)
        if wanted.window is not None:
            raise InvalidConfiguration(
                f"expected queue {into!r} to have no window, as keys are counted into it"
            )
        keys = [leading(change.key, parts) for change in changes]
        encoded_keys = wanted.key.encode_all(keys)
        counts: Counter[bytes] = (
            Counter()
        )  # by bytes: hashes of ints can be predicted, and so made to collide
        for encoded, change in zip(encoded_keys, changes, strict=True):
            counts[encoded] += (change.new is not None) - (change.old is not None)
        key_of = dict(zip(encoded_keys, keys, strict=True))
        target.add(tr, [(key_of[encoded], number) for encoded, number in counts.items() if number])

    return count


def leading(key: tuple[Any, ...], parts: int) -> Any:
    """The first parts of a key; the part itself if it is one."""
    return key[0] if parts == 1 else key[:parts]


def count_now(tr: TransactionRead, source: str, into: str, parts: int, now: int) -> dict[Any, int]:
    """By how much the counts in the other queue are to change once all is combined, and taken out that is due by now.

    At the transaction's read version: with the values of the other queue it makes the exact counts, also when no worker
    has run for long. Raises `BacklogTooDeep`.

    Args:
        tr: a transaction's snapshot reads.
        source: the queue whose keys are counted; it may have a window.
        into: the queue that they are counted into.
        parts: by how many of their first parts.
        now: in milliseconds since 1970.
    """
    config, target = read_config(tr, source), read_config(tr, into)
    queue = CombineQueue(source).keys
    changes = read_changes(tr, config, now)
    futures = {encoded: tr.get(queue.value(encoded)) for encoded in changes}
    counts: Counter[Any] = Counter()
    for encoded, number in read_pending_sums(tr, target).items():
        counts[target.key.decode(encoded)] += number
    for encoded, change in changes.items():
        current = futures[encoded].value
        before = 0 if current is None else codec.decode(current)
        key = leading(config.key.decode(encoded), parts)
        counts[key] += (before + change != 0) - (before != 0)
    return {key: number for key, number in counts.items() if number}
