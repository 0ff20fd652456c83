"""What adds to the log of a link: the observer that the link is, in the transaction of a pass, and the application.

A link to another queue gets the update that a change means for the total: for a sum, the difference between new and
old; for idempotent combiners such as `maximum` and `distinct`, the new value. All others get the new value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cq.combiners import Combiner, updates_between
from cq.config.queue import QueueConfig, read_config
from cq.keys.link import LinkKeys
from cq.observer import Change, ObserverFunction
from cq.observers.links.log import append
from cq.observers.links.spec import find_link, forwarded_combiner, kind_of_link, link_name
from cq.store.api import Transaction


def link_observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """The observer of a link; raises `InvalidConfiguration` for settings that no link has."""
    name = next(each.name for each in config.observers if each.generation == generation)
    kind = kind_of_link(config.name, name, settings)
    keys = LinkKeys(config.name, link_name(name))
    combiner = forwarded_combiner(config) if kind == "queue" else None

    def send(tr: Transaction, changes: list[Change]) -> None:
        if combiner is None:
            append(tr, keys, generation, [(change.key, change.new) for change in changes])
        else:
            pairs = [(change.key, update) for change in changes for update in _updates(combiner, change)]
            append(tr, keys, generation, pairs)

    return send


def _updates(combiner: Combiner, change: Change) -> list[Any]:
    """The updates for a change; None among them is the `DELETE` of a combiner that takes it."""
    return [change.new] if combiner.takes_delete else updates_between(combiner, change.new, change.old)


def add(
    tr: Transaction,
    queue: str,
    entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    link: str | None = None,
) -> None:
    """Add entries of the application to the log of a link, as a part of the transaction.

    The link sends them as it sends the changes of the queue: all entries of a key in commit order. It conflicts with
    changes of the queue's configuration only. A rebuild does not repeat these entries, and sweeps what they have left.

    Args:
        tr: a transaction of either store.
        queue: the queue's name.
        entries: `{key: value}`, or pairs of these, in order. A key is a str, int, bytes, or a tuple of these; a value
            is any that CBOR can encode, up to 100,000 bytes. None for the value is a deletion.
        link: the link's name; None: the queue's only link.

    Raises:
        QueueNotConfigured, NotInStore: there is no such queue, or no such link.
        InvalidData, TooLarge: a key or a value is invalid or too large; the transaction is unchanged.
        OneShotIterable: the entries are in an iterator, which would be empty when the transaction is retried.
    """
    observer = find_link(read_config(tr, queue), link)
    append(tr, LinkKeys(queue, link_name(observer.name)), observer.generation, entries)
