"""Deleting all that a queue holds, through its passes: `purge`; and the queue itself: `delete`.

A purge is a mark in the configuration and the versionstamp of its commit, which also drops what was set aside. The
first pass over a bucket that finds the mark drops what was queued up to that versionstamp, and what is staged: nothing
of a later transaction can be among it, as a pass that could have folded such updates would have found the mark, too.
Then passes delete the values in hash order, a piece at a time, and tell the observers of each deletion; only then are
updates of later transactions combined.
"""

from __future__ import annotations

from dataclasses import replace

from cq import keys
from cq.admin.backfill import read_states
from cq.config.queue import QueueConfig, notify_all, read_config, refuse_while_rebucketing, write_config
from cq.keys import QueueKeys
from cq.keys.window import WindowKeys
from cq.queue.bucket_state import BucketState
from cq.queue.ledger import with_audit, without_audit
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact


def purge(db: Database, name: str) -> QueueConfig:
    """Have workers delete all values of a queue and all that waits; what is added later counts. Returns at once.

    Observers are told of every deletion, so that a top and an exported table follow. Raises `QueueNotConfigured`, and
    `NotNow` while the queue is being rebucketed.
    """

    def mark(tr: Transaction) -> QueueConfig:
        current = read_config(tr, name)
        refuse_while_rebucketing(current)
        changed = replace(current, purges=current.purges + 1, purge_generation=current.generation)
        if current.audit is not None:  # what is left of it once the purge is done was added later
            changed = with_audit(without_audit(tr, changed), whole=True)
        queue = QueueKeys(name)
        tr.set_versionstamped_value(queue.purge, keys.INCOMPLETE_VERSIONSTAMP)
        for bounds in queue.sources():  # whose counts are gone: what is stored again is to count again
            tr.clear_range(*bounds)
        tr.clear_range(*WindowKeys(name).rows())  # what is dropped must not be taken out, too
        tr.clear_range(*WindowKeys(name).operations())
        tr.clear_range(*queue.aside())  # at once: added again, it would count as later than the purge
        notify_all(tr, current)
        write_config(tr, changed)
        return changed

    return transact(db, mark)


def needs_purge(config: QueueConfig, state: BucketState) -> bool:
    """Whether a bucket has a purge before it, or under way."""
    return has_new_purge(config, state) or state.purging is not None


def has_new_purge(config: QueueConfig, state: BucketState) -> bool:
    """Whether no pass over a bucket has begun with the latest purge."""
    return config.purge_generation == config.generation and state.purged < config.purges


def is_purging(db: Database, name: str) -> bool:
    """Whether a purge of a queue is not done in all buckets yet. Raises `QueueNotConfigured`."""
    return transact(db, lambda tr: read_purging(tr.snapshot, read_config(tr.snapshot, name)))


def read_purging(tr: TransactionRead, config: QueueConfig) -> bool:
    """Whether any bucket has a purge before it, or under way."""
    if config.purge_generation != config.generation:
        return False
    return any(needs_purge(config, state) for state in read_states(tr, config))


def delete(db: Database, name: str) -> None:
    """Delete a queue with all that belongs to it, also what observers keep; a table it was exported to stays.

    Adds, passes and exports under way fail or find it gone. One transaction. Raises `QueueNotConfigured`.
    """

    def forget(tr: Transaction) -> None:
        config = read_config(tr, name)
        write_config(tr, config)  # so that adds and workers learn of it
        prefix = QueueKeys(name).prefix
        tr.clear_range(prefix, keys.prefix_end(prefix))
        tr.clear(keys.queue_entry(name))

    transact(db, forget)
