"""What operators do with a link: create what the target lacks, check it, continue or repeat it.

A rebuild sends all values again, in a new generation; a rebase continues with the queued entries, in a new epoch. Both
begin in the store, and with the next batch of each bucket, or by the keeper, at the target. A batch that a worker read
before is then applied in its place in the order, or not at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from cq.admin.configure import rebuild_observer
from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.errors import NotNow
from cq.keys.link import LinkKeys, Position, generation_of
from cq.observers.links.log import BUCKETS
from cq.observers.links.sender import LinkBatch, Sender
from cq.observers.links.spec import find_link, link_name
from cq.observers.links.state import read_control, read_view, wake_keeper
from cq.observers.links.target import LinkFailed, Target
from cq.observers.links.task import empty_batches
from cq.store.api import Database, Transaction
from cq.store.transact import transact

_MAX_GENERATIONS: Final = 1_000


class OpenLink(NamedTuple):
    """A link of a queue: the configuration, and the sender. Errors of its methods are those of `Target.apply`."""

    db: Database
    config: QueueConfig
    observer: ObserverConfig
    sender: Sender

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.config.name

    @property
    def keys(self) -> LinkKeys:
        """The link's keys."""
        return LinkKeys(self.config.name, link_name(self.observer.name))

    @property
    def target(self) -> Target:
        """The link's target."""
        return self.sender.target

    def check(self) -> str:
        """Check the settings, and compare positions with the target; returns a line that says what it takes."""
        accepted = self.target.check_settings()
        self.sender.check(self._batches())
        return accepted

    def rebase(self) -> int:
        """Continue with the queued entries, whatever positions the target has; returns the new epoch."""
        positions = self._positions()
        control = transact(self.db, lambda tr: read_control(tr.snapshot, self.keys))
        epoch = max([control.epoch, *(each.epoch for each in positions)]) + 1
        if not transact(self.db, lambda tr: _store_epoch(tr, self.keys, epoch)):
            raise LinkFailed(f"another rebase of queue {self.queue!r} has overtaken this one")
        return epoch

    def rebuild(self) -> int:
        """Have all values sent again by the passes and workers; returns the new generation.

        Returns at once: workers send them, while the queue is in use.
        """
        if not self.target.repeats:
            raise NotNow(
                f"link {self.keys.link!r} of queue {self.queue!r} sends differences: sending all values again would "
                f"count them twice; {self.sender.advice}"
            )
        positions = self._positions()
        # A store that was set back assigns generations again that the target already has.
        sequences = [self.target.newest(), *(each.sequence for each in positions)]
        highest = max(map(generation_of, sequences))
        generation = self._new_generation()
        if highest - generation > _MAX_GENERATIONS:
            raise LinkFailed(f"{self.target.noun} has sequences that are not cq's: empty it first")
        while generation <= highest:
            generation = self._new_generation()
        transact(self.db, lambda tr: _clear_stop(tr, self.keys, generation))
        return generation

    def _new_generation(self) -> int:
        config = rebuild_observer(self.db, self.queue, self.observer.name)
        return next(each.generation for each in config.observers if each.name == self.observer.name)

    def _positions(self) -> list[Position]:
        """The target's positions that differ from the store's, after this link has taken the target over."""
        self.target.check_settings()
        self.target.take_over()
        return self.sender.positions(self._batches())

    def _batches(self) -> list[LinkBatch]:
        """Batches without entries, for comparing the positions of all buckets."""
        return empty_batches(
            transact(self.db, lambda tr: read_view(tr.snapshot, self.keys, range(BUCKETS))())
        )


def _store_epoch(tr: Transaction, link: LinkKeys, epoch: int) -> bool:
    """Change the store to a new epoch; False if a later one has begun. Raises `NotInStore` if the link was removed.

    The states of buckets are not written: so a bucket has no position in the epoch until the target has its first batch
    of the epoch, or the keeper has begun it. Until then the target may have any position.
    """
    find_link(read_config(tr, link.queue), link.link)  # else a removed link would get a state
    control = read_control(tr, link)
    if control.epoch >= epoch:
        return control.epoch == epoch  # equal: this is a retry after a commit with unknown result
    tr.set(link.control, replace(control, epoch=epoch).to_bytes())
    _clear_stop(tr, link)
    return True


def _clear_stop(tr: Transaction, link: LinkKeys, generation: int = 0) -> None:
    """Let a stopped link continue, and one whose target has asked for a pause; `generation` as for `wake_keeper`."""
    tr.clear(link.stopped)
    tr.clear_range(*link.failures())
    wake_keeper(tr, link, generation)
