"""Processes whose threads call `add_now`, and what each call was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import cq
from cq.queue import shared_adds
from cq.queue.shared_adds import AddCall, AddGroup
from cq.store.api import error_code, may_have_committed
from tests.simulation.application import SUMS, TEXTS
from tests.simulation.hub import Process
from tests.simulation.model import Added, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

_THREADS: Final = 4
_FIRST_TEXT: Final = 8_000_000


@dataclass(frozen=True)
class Called:
    """A transaction has the updates of these calls."""

    texts: frozenset[str] = field(repr=False)


class Callers:
    """The processes with threads that call `add_now`.

    Texts tell calls apart, each of which occurs once. Calls with an id are left to the model of their queue.

    Attributes:
        told: the texts of calls that have returned.
        refused: the texts of calls of which the caller was told that they do not count.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.plan.rng("single adds")
        self.told: set[str] = set()
        self.refused: set[str] = set()
        self._committed: set[str] = set()
        self._pause = self.rng.choice((0.005, 0.05, 0.5))
        self._groups = self.rng.choice((1, 1, 2))
        self._texts = self._ids = 0

    def noting(self) -> AbstractContextManager[None]:
        """A context in which each transaction of calls notes what it adds."""
        return noting(_notes, self._groups)

    def start(self) -> None:
        """Another process."""
        self.world.start_process("caller", "call", self._run)

    def commit(self, note: Called) -> None:
        """A transaction is committed. Raises `Violation`."""
        self._committed |= note.texts
        self.check_refused()

    def check_refused(self) -> None:
        """Nothing counts that a caller was told not to. Raises `Violation`."""
        if wrong := self._committed & self.refused:
            raise Violation(f"calls were told that they do not count, and they do: {sorted(wrong)}")

    def check(self) -> None:
        """Raises `Violation`."""
        self.check_refused()
        if lost := self.told - self._committed:
            raise Violation(f"calls have returned and are not committed: {sorted(lost)}")

    def _run(self, process: Process) -> None:
        for _ in range(1, _THREADS):
            self.world.hub.start(process, "call", lambda: self._call_often(process))
        self._call_often(process)

    def _call_often(self, process: Process) -> None:
        while not self.world.is_calm:
            self.world.hub.wait(self.rng.expovariate(1 / self._pause))
            self._call(process)

    def _call(self, process: Process) -> None:
        name = self.rng.choice((TEXTS, SUMS))
        once = self._drawn_id()
        updates = [self._drawn(name) for _ in range(self.rng.choice((1, 1, 3)))]
        texts = {update for _, update in updates if isinstance(update, str)} if once is None else set()
        if self.rng.random() < 0.05:
            updates.append(("k0", None))  # which no queue takes
        try:
            cq.CombineQueue[str, Any](name).add_now(self.world.db(process), updates, once)
        except (cq.InvalidData, cq.QueueFull, cq.errors.QueueNotConfigured):
            self.refused |= texts
        except Exception as error:
            code = error_code(error)
            if code is None:
                raise
            if not may_have_committed(code):
                self.refused |= texts
        else:
            self.told |= texts

    def _drawn_id(self) -> str | None:
        """None, or an id that one or two calls have."""
        if self.rng.random() < 0.7:
            return None
        self._ids += 1
        return f"call {self._ids // 2}"

    def _drawn(self, queue: str) -> tuple[str, Any]:
        key = self.rng.choice(self.world.adders.keys)
        if queue == SUMS:
            return key, 1
        self._texts += 1
        return key, f"{_FIRST_TEXT + self._texts}."


@contextmanager
def noting(notes_of: Callable[[AddGroup], Sequence[Any]], groups: int) -> Iterator[None]:
    """A context in which each transaction of a group of calls has these notes, with at most `groups` under way."""
    write = AddGroup._write

    def note(group: AddGroup, tr: Any) -> None:
        write(group, tr)
        tr.notes += notes_of(group)

    with patch.object(AddGroup, "_write", note), patch.object(shared_adds, "CLUSTER_GROUPS", groups):
        yield


def _notes(group: AddGroup) -> list[Any]:
    """What the transaction of a group adds: the updates of the calls without an id, and those of each id."""
    by_id: dict[bytes, list[AddCall]] = {}
    for call in sorted(group._taken(), key=lambda call: call.operation is not None):  # as the rows are
        by_id.setdefault(call.operation or noted_id(group), []).append(call)
    notes: list[Any] = []
    for operation, calls in by_id.items():
        counted = calls if calls[0].operation is None else calls[:1]
        pairs = [pair for call in counted for pair in zip(call.keys, call.values, strict=True)]
        notes.append(Added(group.queue, tuple(pairs), operation))
        if calls[0].operation is None:
            notes.append(Called(frozenset(value for _, value in pairs if isinstance(value, str))))
    return notes


def noted_id(group: AddGroup) -> bytes:
    """The operation id that a group has at its first try."""
    found: bytes = group.__dict__.setdefault("noted", group._operation)
    return found
