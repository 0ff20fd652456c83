"""A target: the other system of a link, what a link sends to it, and the errors that it raises.

A target applies the changes of a bucket and stores their position in one transaction, if the position that it has is
the one before. So it applies each change once, in order, whichever batches are repeated, late or concurrent. A target
that cannot store positions may get changes again; it can compare their sequences with those that it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cq.durations import Span, span_of
from cq.encoding.json_values import to_json
from cq.errors import CqError
from cq.keys.link import Position, generation_of
from cq.observers.links.log import LinkEntry

BATCH_BYTES: Final = 500_000
BATCH_ENTRIES: Final = 5_000


class CannotSend(CqError):
    """Entries that a target can never apply as they are: the worker sets them aside, and sends the others.

    A target that knows the faulty entries names them in `entries`, as {sequence: error}. Otherwise the worker finds
    them by sending ever smaller halves of the batch.
    """

    def __init__(self, message: str, entries: Mapping[bytes, object] | None = None) -> None:
        super().__init__(message)
        self.entries: dict[bytes, str] = {each: str(error) for each, error in dict(entries or {}).items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.entries)


class LinkFailed(CqError):
    """A batch could not be sent, for reasons that may pass; the worker sends it again after a pause.

    Args:
        message: one line.
        pause: the least time until the next try, if the target has asked for a pause.
    """

    def __init__(self, message: str, pause: Span = 0.0) -> None:
        super().__init__(message)
        self.pause = span_of(pause)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.pause)


class NotDeclared(LinkFailed):
    """This process lacks the target or the columns, which an application declares."""


class LinkStopped(CqError):
    """Continuing the link would lose or mix up data: the operator must decide what to do, as the message says."""

    resumes = True
    """Whether the link continues by itself once a check of the target passes; else after a rebase or rebuild only."""


class TargetRefuses(LinkStopped):
    """The target refuses changes, until an operator has repaired the cause; a check cannot find out whether one has."""

    resumes = False


class OutdatedBatch(CqError):
    """The batch was read before another worker sent it, or before a rebuild or rebase; the worker reads again."""


class Source(NamedTuple):
    """The source of a link: the id of the store, the queue, the link's name, and the generation of its observer."""

    store: bytes
    queue: str
    link: str
    generation: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one bucket of a queue. Iterating yields all entries of a key together, in ascending order.

    Without entries a target only compares its position with `previous`, and stores `position`.

    Attributes:
        queue, bucket: the queue, and the number of the bucket, from 0 to 7.
        previous: the position before these changes: apply them only if it is the position that the target has.
        position: the position after them. Positions are texts of up to 70 characters; "" is the beginning.
        entries: in the order of their sequences.
    """

    queue: str
    bucket: int
    previous: str
    position: str
    entries: Sequence[LinkEntry]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[LinkEntry]:
        by_key: dict[bytes, list[LinkEntry]] = {}
        for entry in self.entries:
            by_key.setdefault(entry.encoded_key, []).append(entry)
        for entries in by_key.values():
            yield from entries


class Target(ABC):
    """The base of targets. One object serves all buckets of a link: several threads call it at once.

    Attributes:
        noun: how messages name the target.
        batch_bytes, batch_entries: the maximum bytes of stored entries in a batch, about, and their maximum number.
        keeps_positions: whether it always keeps positions, and so applies each change once, in order. To another target
            only one worker at a time sends a bucket, see `cq.observers.links.lease`.
        repeats: whether all values may be sent again; False if the link sends differences, which would count twice.
        signal: called with the name of each completed step, for tests.
    """

    noun: str = "the target"
    batch_bytes = BATCH_BYTES
    batch_entries = BATCH_ENTRIES
    keeps_positions = False
    repeats = True
    signal: Callable[[str], object] = staticmethod(lambda point: None)

    def __init__(self, source: Source) -> None:  # noqa: B027 - a target need not keep it
        """`App.target` declares a class; workers make an object of it for each link, with the link's source."""

    @abstractmethod
    def apply(self, changes: Changes) -> str | None:
        """Apply changes and store their position, in one transaction, if the target's position is `changes.previous`.

        Returns None if they are applied, or if the target keeps no positions; else the position that the target has,
        without a change.

        Raises `CannotSend` for entries that can never be applied, `LinkStopped` or `TargetRefuses` if an operator must
        do something. After any other exception the worker sends the batch again.
        """

    def compare(self, changes: Sequence[Changes]) -> list[str | None]:
        """The results of `apply` for changes of different buckets without entries, after which positions stay."""
        return list(map(self.apply, changes))

    @property
    def width(self) -> int | None:
        """How many of the link's buckets are sent at once; None: all."""
        return None

    def check_settings(self) -> str:
        """Return a line for operators that says what the target takes; does not connect to it.

        Raises `LinkFailed` or `InvalidConfiguration` if an address, a secret or a package is missing or malformed.
        """
        return f"{self.noun} takes the changes"

    def check(self) -> None:  # noqa: B027 - a target need not be able to
        """Check that the target can be reached and is as expected, without a change; raises as `apply` does."""

    def create(self) -> list[str]:
        """Create what the target lacks, such as tables; returns the names of what this call has created."""
        return []

    def take_over(self) -> None:  # noqa: B027 - most targets have no owner
        """Make this link the only one that changes the target, in place of another one."""

    def newest(self) -> bytes:
        """The highest sequence of an entry in the target, as far as it keeps sequences; empty if it has none."""
        return b""

    def sweep(self, epoch: int, below: bytes) -> int:
        """Delete what entries with a sequence lower than `below` have left; returns the number of rows.

        All values were sent again since: these keys have none. `epoch` is the link's: a target with positions calls
        `refuse_late_sweep` in the transaction that deletes.
        """
        return 0

    def close(self) -> None:  # noqa: B027 - a target need not hold any
        """Close the connections that no thread uses."""


class UnmadeTarget(Target):
    """A target of an application before its first use, which makes it: its constructor may fail or hang as a call may.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], Target]) -> None:
        self.make = make

    def apply(self, changes: Changes) -> str | None:
        """Raise an error: `Sender.open` makes the target first."""
        raise NotImplementedError


def refuse_late_sweep(positions: Iterable[str], epoch: int, below: bytes) -> None:
    """Raise an error if a sweep is late, by the positions that the target has in the link's buckets.

    `epoch` and `below` are those of the sweep. The worker then looks whether a sweep is still due. A position of a
    later epoch follows a rebase, and one of a later generation a rebuild. One of an earlier generation is older than
    the values that were sent before the sweep: both sides were set back since. Keys that the sweep would delete can
    then have values.
    """
    generation = generation_of(below)
    for position in map(Position.parse, positions):
        if position is None or position.epoch > epoch or generation_of(position.sequence) != generation:
            raise OutdatedBatch


def in_json(entries: Sequence[LinkEntry]) -> list[dict[str, Any]]:
    """The entries as dicts of `key`, `value` and `sequence` for JSON, in order; a value of None is a deletion.

    Raises `CannotSend`, which names the entries, for keys or values without a form in JSON.
    """
    found: list[dict[str, Any]] = []
    errors: dict[bytes, str] = {}
    for entry in entries:
        try:
            value = None if entry.value is None else to_json(entry.value)
            found.append({"key": to_json(entry.key), "value": value, "sequence": entry.sequence.hex()})
        except (TypeError, ValueError, RecursionError) as error:
            errors[entry.sequence] = f"{type(error).__name__}: {error}"
    if errors:
        raise CannotSend(next(iter(errors.values())), errors)
    return found
