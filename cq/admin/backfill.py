"""Switching readers to what observers keep, once they have been told of all values; and clearing what was before."""

from __future__ import annotations

from cq import keys
from cq.config.queue import MAX_GENERATIONS, ObserverConfig, QueueConfig, read_config
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import QueueKeys
from cq.queue.bucket_state import BucketState
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact


def current_generation(tr: TransactionRead, queue: str, observer: str) -> int | None:
    """The generation of an observer's data that is to be read; None when there is none yet."""
    stored = tr.get(QueueKeys(queue).observer_current(observer)).value
    return None if stored is None else parse_generation(stored)


def parse_generation(stored: bytes) -> int:
    """The generation that is to be read, from what is stored; raises `CorruptData`."""
    generation = codec.decode(stored)
    if type(generation) is not int or not 0 <= generation <= MAX_GENERATIONS:
        raise CorruptData(f"the generation of an observer is not one that cq wrote: {stored[:40]!r}")
    return generation


def backfill_progress(tr: TransactionRead, config: QueueConfig) -> dict[str, int]:
    """For each observer that is still being told of the values: how many buckets it has been told of whole."""
    waiting = _not_current(tr, config)
    if not waiting:
        return {}
    states = read_states(tr, config)
    return {each.name: sum(_is_complete(state, each) for state in states) for each in waiting}


def is_settled(tr: TransactionRead, name: str) -> bool:
    """Whether no change of shape is under way, and all observers have been told of all values."""
    config = read_config(tr, name)
    return config.former is None and not _not_current(tr, config)


def publish_generations(db: Database, name: str) -> bool:
    """Have readers use the data of observers that have been told of all values; whether any was switched.

    May be called at any time and by any number of workers.
    """
    return transact(db, lambda tr: _switch(tr, name))


def _switch(tr: Transaction, name: str) -> bool:
    config = read_config(tr, name)
    waiting = _not_current(tr, config)
    # By snapshot reads: passes write states all the time, but "told of all" is never taken back.
    states = read_states(tr.snapshot, config) if waiting else []
    ready = [each for each in waiting if all(_is_complete(state, each) for state in states)]
    queue = QueueKeys(name)
    for each in ready:
        tr.set(queue.observer_current(each.name), codec.encode(each.generation))
    if ready:
        clear_abandoned(tr, config)
    return bool(ready)


def _not_current(tr: TransactionRead, config: QueueConfig) -> list[ObserverConfig]:
    queue = QueueKeys(config.name)
    current = [(each, tr.get(queue.observer_current(each.name))) for each in config.observers]
    return [each for each, stored in current if stored.value != codec.encode(each.generation)]


def read_states(tr: TransactionRead, config: QueueConfig) -> list[BucketState]:
    """The states of all buckets of a queue, read all at once."""
    queue = QueueKeys(config.name)
    futures = [tr.get(queue.state(config.generation, bucket)) for bucket in range(config.buckets)]
    return [BucketState.from_bytes(future.value) for future in futures]


def _is_complete(state: BucketState, observer: ObserverConfig) -> bool:
    return state.observers.get(observer.generation, b"") is None


def clear_abandoned(tr: Transaction, config: QueueConfig) -> None:
    """Clear the data of all generations that are neither configured nor being read."""
    queue = QueueKeys(config.name)
    read = [current_generation(tr, config.name, each.name) for each in config.observers]
    generations = {each.generation for each in config.observers} | {each for each in read if each is not None}
    begin = queue.observer_data(0)
    for generation in sorted(generations):
        data = queue.observer_data(generation)
        tr.clear_range(begin, data)
        begin = keys.prefix_end(data)
    tr.clear_range(begin, queue.all_observer_data()[1])
