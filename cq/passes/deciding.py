"""Decides requests: the pass of a queue with a decider.

It takes requests in commit order, as many as it can answer, and never folds them: a request that it does not take stays
in its row. It decides the requests of each key in their order, each with the state that the one before it has left. The
last state is the key's new value. States, answers and the cleared rows are one transaction.

A request that makes the decider raise changes nothing, is set aside and answered with the error. A withdrawn request is
not decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from cq.deciders import Decided
from cq.encoding import codec
from cq.encoding.codec import brief, is_int64
from cq.errors import CorruptData, InvalidData
from cq.failure import KeyFailure, is_failure
from cq.keys import version_of
from cq.keys.answers import GROUP_BYTES, AnswerKeys, group_of, position_of
from cq.passes.combining import Combination, NewValues, decoded_values, finished
from cq.passes.decision import value_cost, write_limit
from cq.passes.effects import Effects
from cq.passes.view import Taken, View, ViewReader
from cq.queue.answers import DECIDED, FAILED, WITHDRAWN, Encoded, encoded_answer, parse_answers, set_answers
from cq.queue.requests import is_request
from cq.queue.rows import Updates, by_key
from cq.queue.set_aside import set_aside
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.sizes import set_bytes

_ANSWER_BYTES: Final = 30
"""Bytes of a stored answer, about, in addition to the request's own bytes."""
_OBSERVED_BYTES: Final = 400
"""Bytes that an observer of decisions writes for each, about."""
_GROUPS: Final = 400
"""Groups in a row of the list of answers."""
_ERROR_CHARACTERS: Final = 1_000


def decide_requests(view: View, reader: ViewReader, before_code: Callable[[list[bytes]], object]) -> Effects:
    """Read what deciding the next requests needs, and return the effects."""
    plan = view.plan
    view.taken = _take(view)
    sets_aside = bool(plan.rejected.keys() & view.taken.updates.keys())
    view.report = [] if sets_aside else list(view.taken.updates)
    reader.request_answers()
    reader.read_current()
    if not sets_aside and len(view.report) < len(view.taken.updates):
        view.taken = _prefix(view, set(view.report))
    withdrawn = _drop_withdrawn(view) if view.withdrawn else []
    if not sets_aside:
        view.report = list(view.taken.updates)
    if plan.max_backfill:
        reader.read_backfill()
    if view.code.runs_application_code:
        before_code(view.touched)
    effects = Effects(view)
    effects.report = view.report
    _Decisions(view, effects, withdrawn).run()
    return finished(effects, view)


# What to take


def _take(view: View) -> Taken:
    """The first requests that the pass decides: of as many keys as planned, and not of a suspect beside others.

    A key that is to be set aside is taken alone, once its requests are the first ones.
    """
    plan, queued = view.plan, view.queued
    wanted: Collection[bytes] = ()
    first = next(iter(queued), b"")
    if plan.rejected or first in plan.suspects:
        wanted = (first,)
    elif plan.max_report:
        others = (encoded for encoded in queued if encoded not in plan.suspects)
        wanted = set(islice(others, plan.max_report))
    return _prefix(view, wanted)


def _prefix(view: View, wanted: Collection[bytes]) -> Taken:
    """The requests before the first one of another key, as many as the pass can answer, but at least one.

    At most `max_take` requests: a decider may be slow, and write more than predicted by its observer.
    """
    decider, (copies, each_key) = view.code.decider, value_cost(view)
    is_heard = decider is not None and decider.observer is not None
    most = write_limit(view.plan.limits, is_observed=bool(view.code.observers))
    # An answer counts without the request's own bytes. Mostly a row is a group, whose answers are one row.
    of_answer = _ANSWER_BYTES + (_OBSERVED_BYTES if is_heard else 0)
    of_row = set_bytes(AnswerKeys(view.config.name).answers(bytes(GROUP_BYTES)), GROUP_BYTES)
    found: Updates = {}
    size, left = 0, view.plan.max_take
    for row in view.rows:
        updates = row.updates
        each = of_answer + (row.size + of_row) // max(1, len(updates))
        for position, (encoded, request) in enumerate(updates):
            size += each + (0 if encoded in found else copies * len(encoded) + each_key)
            if encoded not in wanted or (found and size > most) or left == 0:
                return Taken(updates=found, rest=(row, position), size=size)
            found.setdefault(encoded, []).append(request)
            if left is not None:
                left -= 1
    return Taken(updates=found, size=size)


def _drop_withdrawn(view: View) -> list[bytes]:
    """Drop withdrawn requests from those taken: they are neither decided nor set aside. Returns their tickets."""
    tickets: list[bytes] = []
    kept: Updates = {}
    for encoded, requests in view.taken.updates.items():
        for each in requests:
            if is_request(each) and each[0] in view.withdrawn:
                tickets.append(each[0])
            else:
                kept.setdefault(encoded, []).append(each)
    view.taken = replace(view.taken, updates=kept)
    return tickets


# Deciding


class _KeyDecisions(NamedTuple):
    """What a pass decides for one key.

    Attributes:
        state, data: the new state, decoded and encoded.
        answers: (ticket, outcome and encoded answer) of each request.
        failed: (failure, ticket) of the requests for which the decider has raised.
        decisions: the others, for the decider's observer.
        refused: number of the others that are refused.
    """

    state: Any
    data: bytes | None
    answers: list[tuple[bytes, Encoded]]
    failed: list[tuple[KeyFailure, bytes]]
    decisions: list[Decided]
    refused: int


class _Decisions(Combination):
    """The decided and the failing requests of one pass."""

    def __init__(self, view: View, effects: Effects, withdrawn: Sequence[bytes]) -> None:
        super().__init__(view, effects)
        self._withdrawn = withdrawn
        self._types = view.config.value.types or (int,)
        self._found: dict[bytes, _KeyDecisions] = {}

    def run(self) -> None:
        """Decide, set aside what fails, and answer."""
        self.isolate(self.view.report, self.report)
        self.result.reported = len(self.result.values)
        self.set_aside()
        answers = self._answers()
        by_group: defaultdict[bytes, dict[int, Encoded]] = defaultdict(dict)
        for ticket, answer in answers.items():
            by_group[group_of(ticket)][position_of(ticket)] = answer
        keys, version = AnswerKeys(self.view.config.name), self.view.read_version
        for group, added in by_group.items():
            set_answers(self.effects.sets, keys, group, version, self._earlier(group) | added)
        groups = list(by_group)
        for number, start in enumerate(range(0, len(groups), _GROUPS)):
            listed = b"".join(groups[start : start + _GROUPS])
            self.effects.set_versionstamped_key(keys.new_decided(number), listed)
        self._clear_marks(answers)
        if self.result.decided:
            first = version_of(self.view.rows[0].versionstamp)
            self.result.waited = (self.view.read_version - first) / VERSIONS_PER_SECOND

    def _earlier(self, group: bytes) -> dict[int, Encoded]:
        """The answers to a group that earlier passes have given; none if its row is damaged."""
        row = self.view.answers.get(group)
        with suppress(CorruptData):
            return {} if row is None or row.value is None else parse_answers(row.value)[1]
        return {}

    def new_values(
        self,
        report: Sequence[bytes],
        keys: Sequence[Any],
        before: Sequence[bytes | None],
        waiting: Sequence[list[Any]],
    ) -> NewValues:
        """The states of the reported keys before and after their requests."""
        columns = zip(keys, decoded_values(before), before, waiting, strict=True)
        found = [self._decide(*each) for each in columns]
        self._found.update(zip(report, found, strict=True))
        # Decoded once more, as a decider may have changed the states that it was given.
        old = decoded_values(before)
        return NewValues(old, [each.state for each in found], before, [each.data for each in found])

    def _decide(self, key: Any, state: Any, data: bytes | None, requests: Sequence[Any]) -> _KeyDecisions:
        decider = self.view.code.decider
        if decider is None:
            raise TypeError("the queue has no decider")
        decide, is_refused, is_heard = decider.decide, decider.refused, decider.observer is not None
        answers: list[tuple[bytes, Encoded]] = []
        failed: list[tuple[KeyFailure, bytes]] = []
        decisions: list[Decided] = []
        last: Any = ()
        encoded, refused = b"", 0
        for each in requests:
            if not is_request(each):
                raise CorruptData("a queued request is not one that cq wrote")
            ticket, request = each
            try:
                new, answer = _pair(decide(key, state, request))
                if answer is not last or type(answer) not in _IMMUTABLE:  # many have the same one
                    last, encoded = answer, encoded_answer(answer)
                new_data = data if new is state and type(new) in _IMMUTABLE else self._checked(new)
                refused += bool(new == state if is_refused is None else is_refused(request, answer))
            except BaseException as error:
                if not is_failure(error):
                    raise
                failure = KeyFailure.of(error, f"decider {decider.name}@{decider.version}")
                failed.append((failure, ticket))
                answers.append((ticket, _failed(failure)))
                if type(state) not in _IMMUTABLE:  # it may be changed in part
                    state = None if data is None else codec.decode(data)
                continue
            answers.append((ticket, (DECIDED, encoded)))
            if is_heard:
                decisions.append(Decided(key, request, answer, state, new))
            state, data = new, new_data
        if data is _NOT_YET:
            data = self._encoded(state)
        return _KeyDecisions(state, data, answers, failed, decisions, refused)

    def _checked(self, state: Any) -> bytes | None:
        """The state encoded, or `_NOT_YET`; raises for one that cannot be stored."""
        is_int = type(state) is int and int in self._types and is_int64(state)
        return _NOT_YET if is_int else self._encoded(state)

    def _encoded(self, state: Any) -> bytes | None:
        if state is None:
            return None
        self.view.config.value.check(state)
        return codec.encode_value(state)

    def _answers(self) -> dict[bytes, Encoded]:
        """{ticket: answer} of all requests taken or withdrawn; sets aside those that failed."""
        view, effects = self.view, self.effects
        answers: dict[bytes, Encoded] = dict.fromkeys(self._withdrawn, (WITHDRAWN, _NONE))
        queued: dict[bytes, Any] = {}  # decoded once more, as a decider may have changed the requests
        if any(found.failed for found in self._found.values()):
            queued = {
                each[0]: each for some in by_key(view.rows).values() for each in filter(is_request, some)
            }
        for encoded in self.result.values:
            found = self._found[encoded]
            answers.update(found.answers)
            effects.decisions += found.decisions
            self.result.decided += len(found.answers) - len(found.failed)
            self.result.refused += found.refused
            piece = 0
            for failure, ticket in found.failed:
                piece = set_aside(effects, view.keys, encoded, failure, [queued[ticket]], piece)
                self.result.failed[encoded] = failure
        for encoded, failure in self.result.aside.items():
            taken = filter(is_request, view.taken.updates.get(encoded, []))
            answers.update((each[0], _failed(failure)) for each in taken)
        return answers

    def _clear_marks(self, answers: dict[bytes, Encoded]) -> None:
        """Clear the marks of withdrawn requests that are answered; if no request remains queued, all marks."""
        view = self.view
        for ticket, key in view.withdrawn.items():
            if ticket in answers or view.is_complete:
                self.effects.clear(key)


_IMMUTABLE: Final = frozenset((int, float, bool, str, bytes, type(None)))


_NOT_YET: Final = b""
"""In the place of a state of int that is not encoded, as only the last one of the pass is stored."""
_NONE: Final = encoded_answer(None)


def _pair(returned: Any) -> tuple[Any, Any]:
    """What a decider has returned; raises `InvalidData` for anything else than a new state and an answer."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise InvalidData(f"expected the decider to return (new state, answer), got: {brief(returned)}")
    return returned


def _failed(failure: KeyFailure) -> Encoded:
    return FAILED, encoded_answer(failure.error[:_ERROR_CHARACTERS])
