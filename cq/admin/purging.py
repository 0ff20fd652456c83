"""Deletion of a queue's content by its passes (`purge`), and of the queue itself (`delete`).

A purge writes a mark into the configuration, and its commit's versionstamp into a key; it also drops updates set aside.
The first pass over a bucket that finds the mark drops queued updates before that versionstamp, and staged updates.
These cannot include updates of the same transaction or a later one: a pass that could have folded those would have
found the mark, too. Then passes delete the values in hash order, a piece at a time, and report each deletion to the
observers. Only after that do they combine updates of the purge's transaction, which it has added later, and of later
ones.
"""

from __future__ import annotations

from dataclasses import replace

from cq import keys
from cq.admin.backfill import read_states
from cq.admin.levels import with_levels
from cq.config.parts import Purges
from cq.config.queue import QueueConfig, notify_all, read_config, refuse_while_rebucketing, write_config
from cq.errors import InvalidConfiguration, NotNow, QueueNotConfigured
from cq.keys import QueueKeys
from cq.keys.expiry import ExpiryKeys
from cq.keys.top import CloudKeys
from cq.queue.bucket_state import needs_purge
from cq.queue.ledger import with_audit, without_audit
from cq.queue.pending import has_added
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact_removal, transactional


def purge(db: Database | Transaction, name: str) -> QueueConfig:
    """Have workers delete all values and queued updates; updates added later count. Returns at once.

    Its levels are purged in the same transaction. Passes report every deletion to observers, so a top and an exported
    table follow. Raises `QueueNotConfigured`, `NotNow` while the queue is being rebucketed, and `InvalidConfiguration`
    for a level. With a transaction in place of the database, the purge is part of it, and drops what is committed
    before it: updates that the transaction adds afterwards count. It raises `InvalidConfiguration` if the transaction
    has added to the queue before.
    """
    return _purge(db, name)


@transactional
def _purge(tr: Transaction, name: str) -> QueueConfig:
    config = read_config(tr, name)
    config.refuse_level("purge")
    marked, *_ = [_mark(tr, each) for each in with_levels(tr, config)]
    return marked


def _mark(tr: Transaction, current: QueueConfig) -> QueueConfig:
    """Mark one queue; returns its new configuration."""
    refuse_while_rebucketing(current)
    if has_added(tr.snapshot, current.name):
        raise InvalidConfiguration(
            f"the transaction has added to queue {current.name!r} before the purge: purge first, and then add"
        )
    changed = replace(current, purges=Purges(current.purges.latest + 1, current.generation))
    if current.audit is not None:
        # A new audit is whole: all that remains after the purge was added under it.
        changed = with_audit(without_audit(tr, changed), whole=True)
    queue = QueueKeys(current.name)
    tr.set_versionstamped_value(queue.purge, keys.INCOMPLETE_VERSIONSTAMP)
    for bounds in queue.sources():  # documents and file positions: sources stored again must count again
        tr.clear_range(*bounds)
    tr.clear_range(*ExpiryKeys(current.name).prefix())  # the values that remain for a while need no times
    tr.clear_range(*keys.below(CloudKeys(queue).all_kept))  # they name keys that the purge deletes
    tr.clear_range(*queue.aside())  # now: an update added again after this commit would survive the purge
    notify_all(tr, current)
    write_config(tr, changed)
    return changed


@transactional
def purging_buckets(tr: Transaction, name: str) -> int:
    """The number of buckets, with those of levels, in which a purge is unfinished. Raises `QueueNotConfigured`."""
    return sum(count_purging(tr.snapshot, each) for each in with_levels(tr, read_config(tr, name)))


def refuse_while_purging(tr: TransactionRead, config: QueueConfig) -> None:
    """Raises `NotNow` while a purge of any bucket is pending or in progress."""
    if count_purging(tr, config):
        raise NotNow(f"queue {config.name!r} is still being purged: run workers, and try again later")


def count_purging(tr: TransactionRead, config: QueueConfig) -> int:
    """The number of buckets of this queue in which a purge is pending or in progress."""
    if config.purges.generation != config.generation:
        return 0
    return sum(needs_purge(config, state) for state in read_states(tr, config))


def delete(db: Database, name: str) -> None:
    """Delete a queue with all its data, its levels and the data of its observers, in one transaction.

    Exported tables stay. Concurrent adds, passes and exports fail, or find no queue. Raises `QueueNotConfigured`, and
    `InvalidConfiguration` for a level.
    """

    def clear(tr: Transaction) -> None:
        config = read_config(tr, name)
        config.refuse_level("delete")
        for each in with_levels(tr, config):
            clear_queue(tr, each)

    transact_removal(db, clear, QueueNotConfigured)


def clear_queue(tr: Transaction, config: QueueConfig) -> None:
    """Clear all keys of one queue, without its levels."""
    write_config(tr, config)  # invalidates cached configurations, and wakes workers
    tr.clear_range(*keys.below(QueueKeys(config.name).prefix))
    tr.clear(keys.queue_entry(config.name))
