"""Backfills of observers: their progress, publishing complete generations, and clearing former ones.

Passes report all stored values to a new observer, bucket by bucket. Its readers use the former generation of its data
until all buckets are done.
"""

from __future__ import annotations

from cq import keys
from cq.config.parts import MAX_GENERATIONS
from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import QueueKeys
from cq.queue.bucket_state import BucketState
from cq.store.api import Transaction, TransactionRead
from cq.store.transact import transactional


def current_generation(tr: TransactionRead, queue: str, observer: str) -> int | None:
    """The published generation of an observer's data, which readers use; None before the first."""
    stored = tr.get(QueueKeys(queue).observer_current(observer)).value
    return None if stored is None else parse_generation(stored)


def parse_generation(stored: bytes) -> int:
    """The published generation, from its stored bytes; raises `CorruptData`."""
    generation = codec.decode(stored)
    if type(generation) is not int or not 0 <= generation <= MAX_GENERATIONS:
        raise CorruptData(f"the generation of an observer is not one that cq wrote: {stored[:40]!r}")
    return generation


def backfill_progress(tr: TransactionRead, config: QueueConfig) -> dict[str, int]:
    """{observer with a backfill in progress: number of finished buckets}."""
    unpublished = _unpublished(tr, config)
    if not unpublished:
        return {}
    states = read_states(tr, config)
    return {each.name: sum(_is_complete(state, each) for state in states) for each in unpublished}


def is_settled(tr: TransactionRead, name: str) -> bool:
    """Whether no rebucketing, no change of the combiner and no backfill is in progress."""
    config = read_config(tr, name)
    return config.former is None and config.conversion is None and not _unpublished(tr, config)


@transactional
def publish_generations(tr: Transaction, name: str) -> bool:
    """Publish the generations whose backfill is complete, for readers; returns whether there was any.

    Any number of workers may call this at any time.
    """
    config = read_config(tr, name)
    unpublished = _unpublished(tr, config)
    # Snapshot reads avoid conflicts with passes, which write states all the time. They are safe: a complete
    # backfill stays complete.
    states = read_states(tr.snapshot, config) if unpublished else []
    ready = [each for each in unpublished if all(_is_complete(state, each) for state in states)]
    queue = QueueKeys(name)
    for each in ready:
        tr.set(queue.observer_current(each.name), codec.encode(each.generation))
    if ready:
        clear_abandoned(tr, config)
    return bool(ready)


def _unpublished(tr: TransactionRead, config: QueueConfig) -> list[ObserverConfig]:
    """The observers whose configured generation is not published yet."""
    queue = QueueKeys(config.name)
    current = [(each, tr.get(queue.observer_current(each.name))) for each in config.observers]
    return [each for each, stored in current if stored.value != codec.encode(each.generation)]


def read_states(tr: TransactionRead, config: QueueConfig) -> list[BucketState]:
    """The states of all buckets of a queue, read concurrently."""
    queue = QueueKeys(config.name)
    futures = [tr.get(queue.state(config.generation, bucket)) for bucket in range(config.buckets)]
    return [BucketState.from_bytes(future.value) for future in futures]


def _is_complete(state: BucketState, observer: ObserverConfig) -> bool:
    # None means that the backfill is complete. A generation without an entry has not started: b"", the first place.
    return state.observers.get(observer.generation, b"") is None


def clear_abandoned(tr: Transaction, config: QueueConfig) -> None:
    """Clear the data of generations neither configured nor published."""
    queue = QueueKeys(config.name)
    read = [current_generation(tr, config.name, each.name) for each in config.observers]
    generations = {each.generation for each in config.observers} | {each for each in read if each is not None}
    begin = queue.observer_data(0)
    for generation in sorted(generations):
        data = queue.observer_data(generation)
        tr.clear_range(begin, data)
        begin = keys.prefix_end(data)
    tr.clear_range(begin, queue.all_observer_data()[1])
