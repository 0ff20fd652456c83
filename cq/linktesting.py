"""Targets of links in tests: a target in memory, and a check that a target keeps the contract of links."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from cq import runtime
from cq.admin.configured_queue import configure
from cq.app import App
from cq.draining import drain
from cq.errors import CqError
from cq.keys.link import Position, first_sequence
from cq.observers.links.log import BUCKETS, LinkEntry
from cq.observers.links.operate import OpenLink
from cq.observers.links.registry import opened_link
from cq.observers.links.spec import app as app_link
from cq.observers.links.state import read_control
from cq.observers.links.target import (
    CannotSend,
    Changes,
    LinkFailed,
    OutdatedBatch,
    Source,
    Target,
    refuse_late_sweep,
)
from cq.observers.monitoring.link_status import link_status
from cq.plain_text import describe
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database
from cq.store.embedded import Database as Embedded
from cq.store.transact import transact

_NAME: Final = "check"
_TRIES: Final = 30
_KEYS: Final = 20
_NOWHERE: Final = str(Position(10**15 - 1, b"\xff" * 22))
"""A position that no target has."""


class MemoryTarget(Target):
    """A target in memory, for tests: it keeps values and positions, and fails as the test says. Thread-safe.

    Declare it by `app.target("memory")(lambda source: target)`, for a link `cq.links.app("memory")`.

    Args:
        keeps_positions: False: it applies all changes that it gets, as a target does that stores no positions.

    Attributes:
        values: {key: value}.
        applied: all entries applied, in order, so with repetitions if it keeps no positions.
        positions: {bucket: position}.
        refused: keys whose entries it refuses for ever.
        error: each call raises it; None: calls succeed.
        seconds: how long each call takes.
    """

    noun = "the target in memory"

    def __init__(self, *, keeps_positions: bool = True) -> None:
        self.keeps_positions = keeps_positions
        self.values: dict[Any, Any] = {}
        self.applied: list[LinkEntry] = []
        self.positions: dict[int, str] = {}
        self.refused: set[Any] = set()
        self.error: Exception | None = None
        self.seconds = 0.0
        self._sequences: dict[Any, bytes] = {}
        self._lock = threading.Lock()

    def apply(self, changes: Changes) -> str | None:
        self.check()
        with self._lock:
            stored = self.positions.get(changes.bucket, "")
            if self.keeps_positions and stored != changes.previous:
                return stored
            refused = {entry.sequence: "refused" for entry in changes.entries if entry.key in self.refused}
            if refused:
                raise CannotSend("refused", refused)
            for entry in changes.entries:
                self._apply(entry)
            if self.keeps_positions:
                self.positions[changes.bucket] = changes.position
        self.signal("committed")
        return None

    def check(self) -> None:
        if self.seconds:
            runtime.event().wait(self.seconds)
        if self.error is not None:
            raise self.error

    def newest(self) -> bytes:
        return max(self._sequences.values(), default=b"")

    def sweep(self, epoch: int, below: bytes) -> int:
        with self._lock:
            refuse_late_sweep(self.positions.values(), epoch, below)
            swept = [key for key, sequence in self._sequences.items() if sequence < below]
            for key in swept:
                del self.values[key], self._sequences[key]
        return len(swept)

    def copy(self) -> Any:
        """What it has now, for `restore`."""
        with self._lock:
            return deepcopy((self.values, self._sequences, self.positions))

    def restore(self, copy: Any) -> None:
        """Set it back to a copy, as after a restore from a backup."""
        with self._lock:
            self.values, self._sequences, self.positions = deepcopy(copy)

    def _apply(self, entry: LinkEntry) -> None:
        self.applied.append(entry)
        self.values.pop(entry.key, None)
        self._sequences.pop(entry.key, None)
        if entry.value is not None:
            self.values[entry.key] = entry.value
            self._sequences[entry.key] = entry.sequence


def check_target(
    make: Callable[[Source], Target], read: Callable[[], Mapping[Any, Any]] | None = None
) -> bool:
    """Check a target in a test; returns whether it keeps positions.

    A link of a new store sends changes of a queue of int values by str keys to the target, also while calls are
    repeated, late, concurrent, or without an answer, and through a rebase and a rebuild.

    - A target that keeps positions has to apply each change once: `apply` must do nothing, and return the stored
      position, unless that is `previous`. A late `sweep` must delete nothing, see `cq.links.refuse_late_sweep`.
    - A target whose `apply` always returns None is only checked to take every change, some of them twice: it gets each
      change at least once, the entries of a key in order within a run, and knows older entries by their sequences.

    Args:
        make: returns a target for a source. It is called several times, as workers do: what its targets have applied
            must be in one place, such as a database, which must be empty.
        read: returns {key: value} of what the targets have applied, which is compared with the queue; None: only the
            positions are checked.

    Raises:
        AssertionError: the target breaks the contract; the message says what it has done.
    """
    __tracebackhide__ = True
    with TemporaryDirectory() as folder, Embedded(Path(folder) / "check.db", power_safe=False) as db:
        contract = _Contract(make)
        app = App()
        app.target(_NAME)(contract.probe)
        configure(db, _NAME, links=[app_link(_NAME)])
        try:
            for number, step in enumerate(("check", "crash", "rebase", "rebuild")):
                contract.crashes = step == "crash"
                with opened_link(db, _NAME, app=app) as link:
                    _begin(link, step)
                contract.settle(db, app)  # without changes a target stores positions, too
                _change(db, number)
                contract.settle(db, app)
                _compare(db, read, step)
            if contract.keeps:
                with opened_link(db, _NAME, app=app) as link:
                    for late in contract.late_sweeps(link):
                        _compare(db, read, late)
        except CqError as error:
            raise AssertionError(contract.failure or str(error)) from error
        finally:
            contract.close()
        if contract.failure:
            raise AssertionError(contract.failure)
        return bool(contract.keeps)


def _begin(link: OpenLink, step: str) -> None:
    if step == "check":
        link.target.create()
        link.check()
    elif step == "rebase":
        link.rebase()
    elif step == "rebuild" and link.target.repeats:
        link.rebuild()


def _change(db: Database, number: int) -> None:
    """Change all values, and delete some."""
    values = dict(CombineQueue[str, int](_NAME).scan(db))
    for update in (1, 2):
        updates = {f"key {key}": update for key in range(_KEYS)}
        transact(db, lambda tr: CombineQueue(_NAME).add(tr, updates))  # noqa: B023 - runs at once
    deleted = {key: -3 - value for key, value in values.items() if int(key[4:]) % 4 == number}
    transact(db, lambda tr: CombineQueue(_NAME).add(tr, deleted))


def _compare(db: Database, read: Callable[[], Mapping[Any, Any]] | None, step: str) -> None:
    expected = dict(CombineQueue[str, int](_NAME).scan(db))
    found = expected if read is None else dict(read())
    wrong = [
        f"{key}: {found.get(key)} instead of {expected.get(key)}"
        for key in sorted(expected.keys() | found.keys())
        if found.get(key) != expected.get(key)
    ]
    if wrong:
        raise AssertionError(f"the target has wrong values after the step {step!r}: {', '.join(wrong[:5])}")


class _Contract:
    """The contract of a target, as the probes of all workers check it.

    Attributes:
        keeps: whether the target keeps positions; None: not known yet.
        crashes: whether the answer to each batch gets lost once.
        failure: the first fault of the target; empty without one.
    """

    def __init__(self, make: Callable[[Source], Target]) -> None:
        self.keeps: bool | None = None
        self.crashes = False
        self.failure = ""
        self._make = make
        self._made: list[Target] = []
        self._lost: set[str] = set()
        self._earliest: dict[int, Changes] = {}
        self._latest: dict[bytes, bytes] = {}

    def probe(self, source: Source) -> Target:
        """Targets for this source, behind a probe."""
        targets = [self._make(source) for _ in range(2)]
        self._made += targets
        return _ProbedTarget(self, *targets)

    def close(self) -> None:
        """Close all targets; the first error is a failure."""
        for target in self._made:
            try:
                target.close()
            except Exception as error:  # noqa: BLE001 - of the target, which the check is about
                self.failure = self.failure or f"close has raised {describe(error)}"

    def settle(self, db: Database, app: App) -> None:
        """Send everything; raises `AssertionError` if that fails again and again, or breaks the contract."""
        for _ in range(_TRIES):
            drain(db, app=app)
            (status,) = link_status(db, _NAME)
            if self.failure:
                raise AssertionError(self.failure)
            if status.aside:
                raise AssertionError(f"the target refuses {status.aside} changes, by CannotSend")
            if status.state == "active" and not status.rows:
                return
        raise AssertionError(f"the link is {status.state} and sends nothing: {status.error}")

    def expect(self, holds: bool, message: str) -> None:
        """Note the first failure, and end the call."""
        if not holds:
            self.failure = self.failure or message
            raise LinkFailed(self.failure)

    def position(self, target: Target, changes: Changes) -> str | None:
        """The position that the target has; None if it keeps none."""
        found = target.apply(replace(changes, previous=_NOWHERE, position=_NOWHERE, entries=()))
        if self.keeps is None:
            self.keeps = found is not None
        self.expect(
            (found is not None) == self.keeps and (self.keeps or not target.keeps_positions),
            f"for a `previous` that no target has, apply returned {found!r}: a target with positions returns its own, "
            "one without positions returns None and has `keeps_positions` False",
        )
        self.expect(found is None or isinstance(found, str), f"apply has returned {found!r}")
        return found

    def late_sweeps(self, link: OpenLink) -> Iterator[str]:
        """Sweep as a worker does that has stood still since before both sides were set back; yields what each sweep is.

        Its generation is lost, so nothing was sent in it, and nothing may be deleted. First only the earlier generation
        of the target's positions shows that it is late, then only their epoch, and then only their later generation. No
        changes can be sent afterwards.
        """
        target, generation = self._made[0], link.observer.generation + 1
        epoch = transact(link.db, lambda tr: read_control(tr, link.keys)).epoch
        self._sweep_late(target, epoch, generation)
        yield "late sweep of a generation that is lost"
        self._begin(target, Position(epoch + 1, first_sequence(generation)))
        self._sweep_late(target, epoch, generation)
        yield "late sweep of an earlier epoch"
        self._begin(target, Position(epoch + 1, first_sequence(generation + 1)))
        self._sweep_late(target, epoch + 1, generation)
        yield "late sweep of an earlier generation"

    def _begin(self, target: Target, position: Position) -> None:
        for bucket in range(BUCKETS):
            changes = Changes(_NAME, bucket, "", str(position), ())
            target.apply(replace(changes, previous=self.position(target, changes) or ""))

    def _sweep_late(self, target: Target, epoch: int, generation: int) -> None:
        with suppress(OutdatedBatch):
            swept = target.sweep(epoch, first_sequence(generation))
            self.expect(swept == 0, f"a late sweep has deleted {swept} rows")

    def order(self, changes: Changes) -> None:
        """Check the order of the entries of each key, for targets that keep no positions."""
        for entry in changes:
            latest = self._latest.get(entry.encoded_key, b"")
            self.expect(entry.sequence >= latest or self.crashes, f"{entry.key!r}: an older entry came later")
            self._latest[entry.encoded_key] = entry.sequence

    def late(self, changes: Changes) -> Changes:
        """The first changes of the bucket, which a late worker may send again at any time."""
        return self._earliest.setdefault(changes.bucket, changes)

    def is_lost(self, changes: Changes) -> bool:
        """Whether the answer to these changes gets lost."""
        is_first = changes.position not in self._lost
        self._lost.add(changes.position)
        return self.crashes and is_first


class _ProbedTarget(Target):
    """Sends changes to two targets as several workers and a network do: twice, late, two at once, with lost answers."""

    def __init__(self, contract: _Contract, target: Target, other: Target) -> None:
        self._contract, self._target, self._other = contract, target, other
        self.noun, self.repeats, self.keeps_positions = target.noun, target.repeats, target.keeps_positions
        self.batch_bytes, self.batch_entries = target.batch_bytes, min(target.batch_entries, 3)
        for method in ("check_settings", "check", "create", "take_over", "newest", "sweep"):
            setattr(self, method, getattr(target, method))

    @property
    def width(self) -> int | None:
        return self._target.width

    def apply(self, changes: Changes) -> str | None:
        contract = self._contract
        stored = contract.position(self._target, changes)
        if stored is None:
            contract.order(changes)
            self._target.apply(changes)
        elif changes.previous == stored:
            self._apply(changes, stored)
            stored = None
        if changes.entries and contract.is_lost(changes):
            raise LinkFailed("the answer is lost")
        return stored

    def _apply(self, changes: Changes, stored: str) -> None:
        """Apply changes that follow the target's position, with everything that must not change anything."""
        if changes.position != stored:
            self._refuse(replace(changes, previous=_NOWHERE), stored, "changes with another `previous`")
        self._apply_twice_at_once(changes)
        now = self._contract.position(self._other, changes)
        self._contract.expect(
            now == changes.position, f"after changes up to {changes.position!r} the target has {now!r}"
        )
        if changes.position != stored:
            self._target.apply(changes)  # again: a target may take that for a success
            self._refuse(
                replace(changes, previous=stored, position=_NOWHERE), changes.position, "late changes"
            )
        if changes.entries and (earliest := self._contract.late(changes)) is not changes:
            self._refuse(earliest, changes.position, "changes of an earlier time")

    def _apply_twice_at_once(self, changes: Changes) -> None:
        """Two workers send the same changes; one of them at least must succeed."""
        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(target.apply, changes) for target in (self._target, self._other)]
        errors = [error for call in calls if (error := call.exception()) is not None]
        if len(errors) == len(calls):
            raise errors[0]
        answers = [call.result() for call in calls if call.exception() is None]
        self._contract.expect(
            set(answers) <= {None, changes.position},
            f"two workers have sent the same changes up to {changes.position!r}, and got {answers}",
        )

    def _refuse(self, changes: Changes, stored: str, what: str) -> None:
        """The target must not apply these changes."""
        found = self._other.apply(changes)
        self._contract.expect(
            found == stored, f"for {what}, apply returned {found!r} and not the stored position {stored!r}"
        )
