"""The system of decisions: requests of a few keys, some withdrawn, some repeated, some that make the decider raise.

The model has the committed requests of each key in commit order. An observer of decisions notes each decision in the
transaction that makes it. Each must be of the first request of its key that has no answer yet, must derive from the
state that the model has, and must be stored as an answer in the same commit; a request that was set aside and retried
may come at any later place. What `withdraw` has returned must stay true, and callers must get the model's answers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq.admin.purging import purging_buckets
from cq.deciders import Decided
from cq.errors import DecisionFailed, NoAnswer, Withdrawn
from cq.passes.plan import Limits
from cq.queue.answers import DECIDED, FAILED, WITHDRAWN, StoredAnswer, read_answers
from cq.queue.shared_adds import AddGroup
from cq.store.transact import transact
from tests.simulation.calling import noted_id, noting
from tests.simulation.hub import Process
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount
from tests.simulation.scenario import check_verified
from tests.simulation.store import CommitRequest

REQUESTS: Final = "requests"
_KEYS: Final = ("a", "b", "c")
_THREADS: Final = 5
"""Of a process that calls `ask_now`."""


@dataclass(frozen=True)
class Drawn:
    """What an adder asks; without an operation id, each try of it has other requests."""

    keys: tuple[str, ...]
    once: str | None


@dataclass(frozen=True)
class Asked:
    """A request that a transaction has queued."""

    key: str
    number: int
    ticket: str


@dataclass(frozen=True)
class Asking:
    """A transaction has asked this."""

    requests: tuple[Asked, ...]
    once: str | None


@dataclass(frozen=True)
class Decisions:
    """A pass has made these decisions."""

    made: tuple[Decided, ...]


def decided(state: list[int] | None, number: int) -> tuple[list[int] | None, Any]:
    """The decision about a request: some are refused."""
    if number % 5 == 2:
        return state, "refused"
    return [*(state or []), number], len(state or [])


class Deciding(Recount):
    """One run.

    Attributes:
        requests: {key: {number of a request: the request}} of those without a decision, in commit order.
        failed: {number: the request} of those that have failed, and may be retried.
        answers: {ticket: answer} of all decisions.
        states: {key: state}.
        withdrawn: tickets of requests that a caller was told are withdrawn.
    """

    queues: ClassVar[tuple[str, ...]] = (REQUESTS,)
    adders: ClassVar[tuple[int, int]] = (2, 4)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.requests: dict[str, dict[int, Asked]] = {key: {} for key in _KEYS}
        self.failed: dict[int, Asked] = {}
        self.answers: dict[str, Any] = {}
        self.states: dict[str, list[int] | None] = dict.fromkeys(_KEYS)
        self.withdrawn: set[str] = set()
        self._numbers_of: dict[str, int] = {}
        self._last = 0
        self.limits = Limits(
            read_bytes=self.rng.choice((200, 2_000, 20_000)),
            write_bytes=self.rng.choice((500, 20_000)),
            observer_bytes=0,
            max_report=self.rng.choice((1, 20)),
        )
        self.queue: cq.CombineQueue[str, Any] = cq.CombineQueue(REQUESTS)
        self._decided: dict[int, Any] = {}
        self._groups = self.rng.choice((1, 2))

    def begin(self) -> None:
        super().begin()
        if "calls" in self.plan:
            self.start_process("caller", "add", self._call_all)

    def around(self) -> AbstractContextManager[None]:
        """A context in which each transaction of calls of `ask_now` notes what it asks."""
        return noting(_notes, self._groups)

    def make(self) -> None:
        cq.configure(
            self.inner,
            REQUESTS,
            key=str,
            value=list,
            buckets=self.rng.randint(1, 3),
            decider=self._decider(),
        )

    def _decider(self) -> cq.Decider:
        def decide(key: str, state: list[int] | None, number: int) -> tuple[Any, Any]:
            if number % 7 == 3 and "bad requests" in self.plan and not self.is_calm:
                raise ValueError(f"request {number}")
            return decided(state, number)

        def note(tr: Any, made: list[Decided]) -> None:
            tr.notes.append(Decisions(tuple(made)))

        return cq.Decider("numbers", 1, decide, keep=86_400, observer=note)

    def app(self) -> cq.App:
        app = cq.App()
        app.queue(REQUESTS, decider=self._decider())
        return app

    # Askers

    def drawn(self) -> Drawn:
        many = self.hub.rng.choice((1, 1, 2, 5))
        return Drawn(tuple(self.hub.rng.choices(_KEYS, k=many)), self.new_operation())

    def add(self, process: Process, drawn: Drawn) -> None:
        """Ask, and then perhaps wait for an answer, and withdraw the request if it does not come."""
        asked: list[Asking] = []

        def run(tr: Any) -> None:
            asked[:] = [self.write(tr, drawn)]
            tr.notes.append(asked[0])
            if self.hub.rng.random() < self.slow_adds:
                self.hub.wait(self.hub.rng.expovariate(1.0))

        if self.attempt(lambda: transact(self.db(process), run)) is None:
            self.operations.pop(drawn.once or "", None)
            if not self.is_calm and self.hub.rng.random() < 0.5:
                self.attempt(partial(self._follow, self.db(process), self.hub.rng.choice(asked[0].requests)))

    def write(self, tr: Any, drawn: Drawn) -> Asking:
        keys, once = drawn.keys, drawn.once
        first = self._numbers_of.get(once or "", 0)
        if not first:
            first, self._last = self._last + 1, self._last + len(keys)
            if once is not None:
                self._numbers_of[once] = first
        numbers = range(first, first + len(keys))
        if len(keys) == 1:
            tickets = [self.queue.ask(tr, keys[0], first, once)]
        else:
            tickets = self.queue.ask_many(tr, list(zip(keys, numbers, strict=True)), once)
        return Asking(tuple(map(Asked, keys, numbers, tickets)), once)

    def _follow(self, db: Any, asked: Asked) -> None:
        try:
            answer = self.queue.answer(db, asked.ticket, self.hub.rng.choice((0.01, 0.3, 5.0)))
        except (DecisionFailed, Withdrawn):
            return
        except NoAnswer:
            if "withdraw" in self.plan and self.hub.rng.random() < 0.7:
                self._withdraw(db, asked)
            return
        if answer != self.answers.get(asked.ticket):
            raise Violation(f"{asked} is answered {answer}, not {self.answers.get(asked.ticket)}")

    def _withdraw(self, db: Any, asked: Asked) -> None:
        is_withdrawn = self.queue.withdraw(db, asked.ticket)
        self.trace("withdrawn" if is_withdrawn else "not withdrawn", asked)
        if not is_withdrawn and (found := self._stored(asked)) and found.outcome == WITHDRAWN:
            raise Violation(f"{asked} is withdrawn, and its caller was told that it is not")
        if is_withdrawn:
            self._note_withdrawn(asked.ticket)

    def _note_withdrawn(self, ticket: str) -> None:
        self.withdrawn.add(ticket)
        if ticket in self.answers:
            raise Violation(f"request {ticket} is decided, and its caller was told that it is withdrawn")

    # Callers of `ask_now`

    def _call_all(self, process: Process) -> None:
        for _ in range(1, _THREADS):
            self.hub.start(process, "add", lambda: self._call_often(process))
        self._call_often(process)

    def _call_often(self, process: Process) -> None:
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.pause))
            self.attempt(partial(self._call, self.db(process)), NoAnswer)

    def _call(self, db: Any) -> None:
        rng = self.hub.rng
        number = self._last = self._last + 1
        withdraw = "withdraw" in self.plan and rng.random() < 0.7
        once = f"call {number}" if rng.random() < 0.3 else None
        try:
            answer = self.queue.ask_now(
                db, rng.choice(_KEYS), number, once, timeout=rng.choice((0.01, 0.3, 5.0)), withdraw=withdraw
            )
        except Withdrawn as error:
            self._note_withdrawn(error.ticket)
            return
        if answer != self._decided.get(number):
            raise Violation(f"request {number} is answered {answer}, not {self._decided.get(number)}")

    # What is committed

    def count(self, note: Asking | Decisions | Purged, version: int) -> None:
        match note:
            case Asking():
                for asked in note.requests:
                    self.requests[asked.key][asked.number] = asked
            case Purged():
                self.requests = {key: {} for key in _KEYS}
                self.failed.clear()
                self.states = dict.fromkeys(_KEYS)
            case Decisions():
                for each in note.made:
                    self._check_decision(each)

    def _check_decision(self, made: Decided) -> None:
        requests, number = self.requests[made.key], made.request
        asked = self.failed.pop(number, None)
        if asked is None:
            self._pass_over(made.key, number)
            asked = requests.pop(number, None)
        if asked is None:
            raise Violation(f"{made} is of a request that is decided already, or dropped")
        if asked.ticket in self.withdrawn:
            raise Violation(f"{made} is of a request whose caller was told that it is withdrawn")
        expected = decided(self.states[made.key], number)
        if (made.old, (made.new, made.answer)) != (self.states[made.key], expected):
            raise Violation(f"{made} does not derive from {self.states[made.key]}")
        found = self._stored(asked)
        if found is None or (found.outcome, found.content) != (DECIDED, made.answer):
            raise Violation(f"{made} is stored as the answer {found}")
        self.states[made.key] = made.new
        self.answers[asked.ticket] = self._decided[number] = made.answer

    def _pass_over(self, key: str, number: int) -> None:
        """The requests of a key before this one must have an answer that no decision gave them."""
        for earlier in list(self.requests[key]):
            if earlier == number:
                return
            self._settle(key, earlier)
            if earlier in self.requests[key]:
                raise Violation(f"request {number} of {key} is decided before {self.requests[key][earlier]}")

    def _settle(self, key: str, number: int) -> None:
        """A request that has failed or was withdrawn waits no more; a failed one may be retried."""
        found = self._stored(self.requests[key][number])
        if found is not None and found.outcome != DECIDED:
            asked = self.requests[key].pop(number)
            if found.outcome == FAILED:
                self.failed[number] = asked

    def committed(self, tr: CommitRequest) -> None:
        for key, requests in self.requests.items():
            for number in list(requests):
                self._settle(key, number)

    def _stored(self, asked: Asked) -> StoredAnswer | None:
        """The stored answer to a request."""
        ticket, snapshot = bytes.fromhex(asked.ticket), self.inner.create_transaction().snapshot
        return read_answers(snapshot, REQUESTS, [ticket]).get(ticket)

    def look(self) -> None:
        """Raises `Violation` unless the values are the states."""
        if purging_buckets(self.inner, REQUESTS):
            return
        states = {key: state for key, state in self.states.items() if state is not None}
        if (found := self.stored(REQUESTS)) != states:
            raise Violation(f"there is {found}, and decided was {states}")

    def check(self) -> None:
        """Raises `Violation` unless every request that was not dropped has its answer."""
        self.look()
        for asked in [each for requests in self.requests.values() for each in requests.values()]:
            found = self._stored(asked)
            if found is None or found.outcome != WITHDRAWN:
                raise Violation(f"{asked} is not decided: {found}")
        if self.failed:
            raise Violation(f"retried and not decided: {self.failed}")
        check_verified(self.inner, REQUESTS)


def _notes(group: AddGroup) -> list[Asking]:
    """What the transaction of a group of calls asks: the calls without an id, and those of each id."""
    by_id: dict[bytes, list[Asked]] = {}
    for call in sorted(group._taken(), key=lambda call: call.operation is not None):  # as the rows are
        asked = call.values[0]
        found = by_id.setdefault(call.operation or noted_id(group), [])
        found.append(Asked(call.keys[0], asked.content, str(asked)))
    return [Asking(tuple(requests), operation.hex()) for operation, requests in by_id.items()]
