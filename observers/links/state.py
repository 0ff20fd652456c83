"""The stored state of a link: positions of its buckets, failures, the reason of a stop, and entries set aside.

The epoch counts the rebases of the link. A bucket's position is valid within one epoch only; a worker
discards a batch that it read in an earlier epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cq import keys, runtime
from cq.config.queue import read_config
from cq.encoding import codec
from cq.encoding.stored import StoredRecord
from cq.errors import CorruptData, QueueNotConfigured
from cq.keys.link import (
    LinkKeys,
    NoteKeys,
    OutboxKeys,
    Position,
    generation_of,
)
from cq.observers.links.log import holds
from cq.observers.links.spec import links_in
from cq.plain_text import printable
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.bounded_reads import scan_rows

_PIECE_BYTES: Final = 90_000
_PAGE: Final = 100
PAUSED: Final = "it is paused by an operator"


@dataclass(frozen=True, slots=True)
class Control(StoredRecord):
    """The state of a link as a whole; with its defaults at first.

    Attributes:
        epoch: number of rebases.
        swept: the newest generation whose predecessors' rows were swept from the target, or must stay; 0 at first.
        paused: whether an operator has paused the link.
    """

    NOUN = "the state of a link"

    epoch: int = 0
    swept: int = 0
    paused: bool = False


def read_control(tr: TransactionRead, queue: NoteKeys) -> Control:
    """Read the link's control; outside of a snapshot, this adds a read conflict with rebuilds and rebases."""
    return Control.from_bytes(tr.get(queue.control).value)


@dataclass(frozen=True, slots=True)
class LinkState(StoredRecord):
    """A bucket's state, written whenever a batch is cleared. Workers that send the same batch conflict on it.

    Attributes:
        epoch: the link's epoch when the batch was sent.
        cleared: a sequence; entries up to and including it are sent and cleared. Empty at first.
        holder: the id of the worker with the lease of the bucket, see `Lease`; empty if there is none.
    """

    NOUN = "the state of a link's bucket"

    epoch: int = 0
    cleared: bytes = b""
    holder: bytes = b""


@dataclass(frozen=True, slots=True)
class LinkStop(StoredRecord):
    """Why a link is stopped, in one epoch; by default in none.

    Attributes:
        epoch: the epoch.
        message: the reason.
        generation: the generation of the observer whose target it concerns; 0: unknown, or no observer.
        since: the time of the stop, in seconds since 1970 by the worker's clock; it tells two stops apart.
        resumes: whether the link continues by itself once a check of the target passes.
    """

    NOUN = "the reason why a link is stopped"

    epoch: int = -1
    message: str = ""
    generation: int = 0
    since: float = 0.0
    resumes: bool = True


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link at one version: its control, the states of buckets, and the latest stop, of any epoch."""

    control: Control
    states: dict[int, LinkState]
    stop: LinkStop

    @property
    def stopped(self) -> str | None:
        """Why it is stopped in this epoch; None: it is not."""
        return self.stop.message if self.stop.epoch == self.control.epoch else None

    @property
    def waiting(self) -> str | None:
        """Why workers do not send its entries: it is stopped or paused; None: they do."""
        return self.stopped or (PAUSED if self.control.paused else None)

    def cleared(self, bucket: int) -> bytes:
        """The bucket's `cleared` in this epoch; empty at first."""
        state = self.states[bucket]
        return state.cleared if state.epoch == self.control.epoch else b""


def read_view(tr: TransactionRead, queue: LinkKeys, buckets: Iterable[int]) -> Callable[[], LinkView]:
    """Start all reads of a link at once; returns a function that waits for them and returns the view.

    Outside of a snapshot, the reads conflict with rebuilds, rebases, and other workers that send these buckets.
    """
    control, stopped = tr.get(queue.control), tr.get(queue.stopped)
    states = {bucket: tr.get(queue.state(bucket)) for bucket in buckets}

    def wait() -> LinkView:
        return LinkView(
            Control.from_bytes(control.value),
            {bucket: LinkState.from_bytes(state.value) for bucket, state in states.items()},
            LinkStop.from_bytes(stopped.value),
        )

    return wait


def wake_keeper(tr: Transaction, queue: NoteKeys, generation: int = 0) -> None:
    """Notify the keeper of a link, so that it checks all buckets again, or the task of an outbox.

    Unless the link has another generation than this one, or either was removed; 0 stands for any.
    """
    if not is_outdated(tr, queue, generation):
        tr.set_versionstamped_value(queue.keeper, keys.INCOMPLETE_VERSIONSTAMP)


# Stopping, until the epoch changes


def stop(tr: Transaction, queue: NoteKeys, wanted: LinkStop, *, is_reviewed: bool) -> bool:
    """Stop all buckets of a link, unless the epoch has changed; returns whether this stop is in effect.

    All workers that send entries of a bucket find the same cause: the first stop stays. It is replaced by one with
    another message only if `is_reviewed`, which means that the caller has checked the whole link after the stop. A stop
    by an observer of a later generation always stays. Notifies the keeper, which checks regularly whether the link may
    continue.
    """
    wanted = replace(wanted, message=printable(wanted.message))
    found = LinkStop.from_bytes(tr.get(queue.stopped).value)
    if read_control(tr, queue).epoch != wanted.epoch or is_outdated(tr, queue, wanted.generation):
        return False
    if found == wanted:
        return True  # a retry after a commit with unknown result
    is_same_link = (found.epoch, found.generation) == (wanted.epoch, wanted.generation)
    if is_same_link and (not is_reviewed or found.message == wanted.message):
        return False
    tr.set(queue.stopped, wanted.to_bytes())
    wake_keeper(tr, queue)
    return True


def read_stopped(tr: TransactionRead, queue: NoteKeys, epoch: int = 0) -> str | None:
    """Read why a link or an outbox is stopped in this epoch; None: it is not."""
    found = LinkStop.from_bytes(tr.get(queue.stopped).value)
    return found.message if found.epoch == epoch else None


# Failures


@dataclass(frozen=True, slots=True)
class LinkFailure(StoredRecord):
    """Why the sending of a bucket fails, or the keeper, which checks and sweeps for all buckets.

    Attributes:
        error: the latest error, printable.
        since: the time of the first failure in a row, in seconds since 1970 by the worker's clock.
        tries: number of failures in a row.
    """

    NOUN = "the failure of a link"

    error: str = ""
    since: float = 0.0
    tries: int = 0

    def again(self, error: str) -> LinkFailure:
        """The failure that follows this one in a row; the default record stands for no failure."""
        return LinkFailure(printable(error), self.since or runtime.time(), self.tries + 1)


def read_failures(tr: TransactionRead, queue: NoteKeys) -> dict[int | None, LinkFailure]:
    """Read the failures by the number of the bucket; that of the keeper, or of an outbox, is under None."""
    begin, end = queue.failures()
    found: dict[int | None, LinkFailure] = {}
    for row in tr.get_range(begin, end):
        rest = row.key[len(begin) :]
        found[int.from_bytes(rest, "big") if rest else None] = LinkFailure.from_bytes(row.value)
    return found


# Entries set aside


class AsideEntry(NamedTuple):
    """An entry that was set aside, with its error. The key is None for a row that cq did not write."""

    bucket: int
    sequence: bytes
    error: str
    encoded_key: bytes | None
    value: Any


def set_entry_aside(tr: Transaction, queue: LinkKeys, entry: AsideEntry) -> None:
    """Store an entry with its error; storing the same entry again replaces it."""
    data = codec.encode([printable(entry.error), entry.encoded_key, entry.value])
    for piece, start in enumerate(range(0, len(data), _PIECE_BYTES)):
        tr.set(queue.aside_piece(entry.bucket, entry.sequence, piece), data[start : start + _PIECE_BYTES])


def entries_aside(db: Database, queue: LinkKeys) -> Iterator[AsideEntry]:
    """Read the entries set aside, by bucket and sequence, in several transactions."""
    rows = ((queue.parse_aside(key), value) for key, value in scan_rows(db, *queue.aside(), limit=_PAGE))
    pieces = ((found[:2], value) for found, value in rows if found is not None)
    for place, some in groupby(pieces, key=itemgetter(0)):
        yield _aside_entry(place, b"".join(value for _, value in some))


def count_aside(tr: TransactionRead, queue: LinkKeys, most: int) -> int:
    """Count the entries set aside, up to `most`."""
    places = (queue.parse_aside(row.key) for row in tr.get_range(*queue.aside()))
    firsts = (place for place in places if place is not None and place[2] == 0)
    return sum(1 for _ in islice(firsts, most))


def _aside_entry(place: tuple[int, bytes], data: bytes) -> AsideEntry:
    """Decode an entry; one that cannot be decoded has its bytes as the value."""
    try:
        error, key, value = codec.decode(data)
    except (CorruptData, TypeError, ValueError):
        error = key = None
    if type(error) is not str or type(key) not in (bytes, type(None)):
        return AsideEntry(*place, "this entry is not one that cq wrote", None, data)
    return AsideEntry(*place, error, key, value)


class StorePosition(NamedTuple):
    """The position of a bucket in the store, at one version.

    Attributes:
        epoch: the link's epoch.
        cleared: a sequence; entries up to and including it are sent and cleared.
        holds: whether the bucket holds the entry with the sequence in question.
        generation: the configured generation of the link's observer; 0 without one.
    """

    epoch: int
    cleared: bytes
    holds: bool
    generation: int = 0


def read_position(snapshot: TransactionRead, queue: LinkKeys, bucket: int, sequence: bytes) -> StorePosition:
    """Read a bucket's position, and whether the bucket holds the entry with this sequence, at one version."""
    view = read_view(snapshot, queue, [bucket])
    held = holds(snapshot, queue, bucket, sequence)
    found = view()
    return StorePosition(found.control.epoch, found.cleared(bucket), held, _generation(snapshot, queue))


def leave_former_rows(
    tr: Transaction, queue: LinkKeys, bucket: int, stored: Position, begun: tuple[int, int]
) -> None:
    """Have a generation sweep nothing if the target lacks entries of it that this bucket has cleared.

    So a target was set back before, or just after, a rebase. These entries are not sent again: the only rows that the
    target has of their keys can be those of an earlier generation.

    Args:
        tr: the transaction; conflicts with other senders of the bucket, and with rebases.
        queue: the link's keys.
        bucket: the bucket.
        stored: the position that the target had, read in this epoch, from which the bucket begins the epoch.
        begun: the epoch and the generation.
    """
    epoch, generation = begun
    found = read_view(tr, queue, [bucket])()
    state, control = found.states[bucket], found.control
    if control.epoch != epoch or state.epoch == epoch or generation_of(state.cleared) != generation:
        return  # nothing of this generation was cleared before this epoch, or another worker has begun
    # A position without entries, which the keeper has a bucket begin, is of a later epoch than what was cleared.
    is_behind = stored.epoch <= state.epoch and stored.sequence < state.cleared
    is_lacking = is_behind or generation_of(stored.sequence) < generation
    if is_lacking and control.swept < generation and not is_outdated(tr, queue, generation):
        tr.set(queue.control, replace(control, swept=generation).to_bytes())


def is_outdated(tr: TransactionRead, queue: NoteKeys, generation: int) -> bool:
    """Whether the link of an observer of this generation was changed or removed since, or the outbox was removed.

    Never for generation 0 of a link. A worker with an outdated configuration writes nothing below the keys of a link or
    an outbox: it would stay there for ever.
    """
    if isinstance(queue, OutboxKeys):
        return not tr.get(queue.settings).present()
    return generation != 0 and _generation(tr, queue) != generation


def _generation(snapshot: TransactionRead, queue: NoteKeys) -> int:
    try:
        observer = links_in(read_config(snapshot, queue.queue)).get(queue.link)
    except QueueNotConfigured:
        return 0
    return 0 if observer is None else observer.generation
