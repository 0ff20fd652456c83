"""Canaries of links, see `canary`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from cq.keys import after
from cq.keys.link import Position, first_sequence
from cq.observers.links.sender import LinkBatch, Sender
from cq.observers.links.state import LinkState, read_view, wake_keeper
from cq.observers.links.target import Changes, OutdatedBatch
from cq.observers.links.task import Keeper, LinkTask
from cq.store.transact import transact
from tests.simulation.canary import Canaries

links = Canaries("links")


class _GoesOn(Exception):
    """Raised in place of a stop."""


@contextmanager
def _goes_on_after(stop: str) -> Iterator[None]:
    """Senders go on as at the beginning of an epoch, instead of stopping for this cause."""
    progress = Sender._progress

    def going_on(self: Sender, batch: LinkBatch, stored: Position) -> bytes | None:
        try:
            return progress(self, batch, stored)
        except _GoesOn:
            return b""

    with patch.object(Sender, "_progress", going_on), patch.object(Sender, stop, lambda self: _GoesOn()):
        yield


@links.patches(seed=18, only={"store set back"})
def misses_a_store_set_back() -> Any:
    """A sender goes on when the target is at an entry that the store does not know."""
    return _goes_on_after("_store_was_set_back")


@links.patches(seed=3, only={"table set back"})
def misses_a_table_set_back() -> Any:
    """A sender goes on when the store has cleared entries that the target has not reached."""
    return _goes_on_after("_target_was_set_back")


@links.replaces("cq.observers.links.task.LinkTask._clear", seed=176, only={"targets are slow", "come and go"})
def clears_entries_by_their_epoch_only(_: Any, self: LinkTask, tr: Any, read: Any) -> None:
    """A worker clears its batch though another worker has cleared it, and later ones."""
    queued, epoch = read.queued, read.link.control.epoch
    if read_view(tr, self.keys, [self.bucket])().control.epoch == epoch:
        tr.clear_range(self.keys.rows(self.bucket)[0], after(queued.last_key))
        tr.set(self.keys.state(self.bucket), LinkState(epoch, queued.last).to_bytes())
        tr.clear(self.keys.failure(self.bucket))
        if queued.at_end:
            self._clear_notification(tr, read.notification)


@links.replaces("cq.observers.links.sender.Sender._read_position", seed=16, only={"freezes", "come and go"})
def stops_for_batches_that_others_have_cleared(read: Any, self: Sender, batch: LinkBatch, *given: Any) -> Any:
    """A late worker takes the position of a faster one for that of a store that this one was before a restore."""
    return read(self, batch, *given)._replace(epoch=batch.epoch, cleared=batch.cleared)


@links.replaces("cq.observers.links.sender.Sender._progress", seed=11, only={"table set back"})
def takes_earlier_positions_for_the_beginning(
    progress: Any, self: Sender, batch: LinkBatch, stored: Position
) -> Any:
    """A sender goes on from any position of the target that is earlier than the store's."""
    return b"" if stored < (batch.epoch, batch.cleared) else progress(self, batch, stored)


@links.replaces("cq.observers.links.sender.Sender._progress", seed=133, only={"table set back", "send again"})
def takes_earlier_epochs_for_the_beginning(
    progress: Any, self: Sender, batch: LinkBatch, stored: Position
) -> Any:
    """A sender goes on from any position of an earlier epoch, also after it has sent entries of its own."""
    return b"" if stored.epoch < batch.epoch else progress(self, batch, stored)


# Targets


@links.replaces("cq.observers.links.sql.target.SqlTarget._apply", seed=270, also={"freezes", "come and go"})
def applies_whatever_it_gets(apply: Any, self: Any, conn: Any, dialect: Any, changes: Changes) -> Any:
    """A table applies entries whatever position it has."""
    return apply(self, conn, dialect, _at_its_position(apply, self, conn, dialect, changes, bool(changes)))


@links.replaces(
    "cq.observers.links.sql.target.SqlTarget._apply",
    seed=368,
    only={"send again", "targets are slow", "come and go"},
)
def stores_positions_without_comparing(
    apply: Any, self: Any, conn: Any, dialect: Any, changes: Changes
) -> Any:
    """A table stores a position without entries whatever position it has."""
    return apply(self, conn, dialect, _at_its_position(apply, self, conn, dialect, changes, not changes))


@links.replaces(
    "cq.observers.links.sql.target.SqlTarget.compare", seed=3, end_seconds=30.0, only={"table set back"}
)
def compares_no_positions(_: Any, self: Any, changes: Any) -> list[None]:
    """A keeper does not find out that a table was set back, in a bucket without entries."""
    return [None] * len(changes)


def _at_its_position(
    apply: Any, target: Any, conn: Any, dialect: Any, changes: Changes, is_broken: bool
) -> Changes:
    """The changes as if they were to follow the position that the table has, if the target is broken for them."""
    if is_broken:
        elsewhere = replace(changes, previous="nowhere", entries=())
        changes = replace(changes, previous=apply(target, conn, dialect, elsewhere))
    return changes


# The beginning of epochs


@links.replaces(
    "cq.observers.links.sender.Sender.begin", only={"set back once begun"}, seed=13, end_seconds=30.0
)
def begins_no_idle_buckets(*_: Any) -> None:
    """A keeper leaves buckets without entries at a position of an earlier epoch."""


@links.replaces("cq.observers.links.task.Keeper._begin", seed=3, also={"send again", "deaths"})
def begins_in_the_store_first(begin: Any, self: Keeper, batches: Any) -> None:
    """A keeper stores that a bucket has begun before the target has the position."""
    for batch in batches:
        first = first_sequence(self._generation)
        if batch.cleared < first and transact(self.db, partial(self._is_empty, bucket=batch.bucket)):
            transact(self.db, partial(self._note_begun, batch=batch, begin=first))
    begin(self, batches)


@links.replaces("cq.observers.links.sender.Sender.begin", seed=102, only={"freezes"})
def begins_buckets_that_have_begun(_: Any, self: Sender, batch: LinkBatch) -> bytes | None:
    """A keeper has the target begin in a bucket from which another worker has sent entries meanwhile."""
    begin = first_sequence(self.source.generation)
    if self._own(batch.cleared):
        return None
    stored = self._compared([batch])[0] or Position(batch.epoch, b"")
    if self._apply(batch, stored, begin) is not None:
        raise OutdatedBatch
    return begin


@links.replaces("cq.observers.links.operate._store_epoch", seed=145, only={"send again", "table set back"})
def begins_no_epoch(_: Any, tr: Any, link: Any, epoch: int) -> bool:
    """A rebase continues in the epoch that there is."""
    tr.clear(link.stopped)
    wake_keeper(tr, link)
    return True


# Outdated configurations


@links.replaces("cq.observers.links.task.read_entries", seed=134, only={"hook moves", "workers hear late"})
def sends_entries_of_later_generations(read: Any, tr: Any, keys: Any, bucket: int, limits: Any) -> Any:
    """A worker that has not heard of another receiver sends the present one what the other one is to get."""
    return read(tr, keys, bucket, limits._replace(generation=None))


@links.patches(seed=61, only={"hook comes and goes", "workers hear late", "the receiver fails"})
@contextmanager
def writes_for_removed_links() -> Iterator[None]:
    """A worker that has not heard of the removal of a link stores its failures, and clears its entries."""
    with ExitStack() as stack:
        for module in ("state", "failure_note", "task"):
            stack.enter_context(patch(f"cq.observers.links.{module}.is_outdated", lambda *_: False))
        yield


@links.replaces(
    "cq.observers.links.sender.Sender._read_position",
    seed=538,
    only={"hook moves", "workers hear late", "targets are slow"},
)
def compares_positions_of_later_generations(read: Any, self: Sender, *given: Any) -> Any:
    """A worker that repeats a batch takes the position of a later generation for that of a store set back."""
    return read(self, *given)._replace(generation=self.source.generation)


@links.replaces("cq.observers.links.sender.Sender._own", seed=4, only={"hook moves"})
def goes_on_from_a_former_target(_: Any, self: Sender, cleared: bytes) -> bytes:
    """A sender takes the position of the store in an earlier generation for one that the new target has."""
    return cleared


# The other target


@links.replaces("tests.simulation.hooks.Hook._refuses", seed=11, only={"hook", "the receiver fails"})
def receives_whatever_it_gets(refuses: Any, self: Any, stored: str, data: Any) -> bool:
    """A receiver applies entries whatever position it has."""
    return not data["entries"] and bool(refuses(self, stored, data))


@links.replaces("tests.simulation.hooks.Hook._refuses", only={"hook", "hook set back"}, seed=10)
def receives_positions_without_comparing(refuses: Any, self: Any, stored: str, data: Any) -> bool:
    """A receiver stores a position without entries whatever position it has."""
    return bool(data["entries"]) and bool(refuses(self, stored, data))


@links.replaces(
    "cq.observers.links.targets.webhook.WebhookTarget._position", seed=11, only={"hook", "the receiver fails"}
)
def sends_the_rest_whatever_is_applied(*_: Any) -> str:
    """A sender reads no position in the answer of a receiver."""
    return ""


@links.replaces(
    "cq.observers.links.targets.webhook.WebhookTarget.sweep", seed=286, only={"hook", "hook moves"}
)
def sweeps_no_receiver(*_: Any) -> int:
    """A keeper does not send a receiver the sequence below which keys have no value."""
    return 0


_REFUSES: Final = (
    "tests.simulation.hooks.refuse_late_sweep",
    "cq.observers.links.sql.target.refuse_late_sweep",
)


@links.replaces(*_REFUSES, seed=227, only={"set back after a rebuild"})
def compares_epochs_of_sweeps_only(refuse: Any, positions: Any, epoch: int, below: bytes) -> None:
    """A target that was set back with the store takes a late sweep, whose epoch is not over."""
    refuse([str(each._replace(sequence=below)) for each in _parsed(positions)], epoch, below)


@links.replaces(*_REFUSES, seed=161, only={"set back after a rebuild"})
def compares_generations_of_sweeps_only(refuse: Any, positions: Any, epoch: int, below: bytes) -> None:
    """A target that was set back takes a late sweep once a rebase has begun in the generation of the sweep."""
    refuse([str(each._replace(epoch=epoch)) for each in _parsed(positions)], epoch, below)


def _parsed(positions: Iterable[str]) -> list[Position]:
    return [each for each in map(Position.parse, positions) if each is not None]


@links.replaces("cq.observers.links.task.Keeper._is_sent", seed=94, only={"send again"})
def sweeps_before_all_is_sent(*_: Any) -> bool:
    """The keeper of a link deletes old rows while entries of the new generation are queued."""
    return True
