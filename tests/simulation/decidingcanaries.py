"""Canaries of decisions, see `canary`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cq.passes.view import Taken
from tests.simulation.canary import Canaries

decisions = Canaries("decisions")


@decisions.replaces("cq.passes.deciding._Decisions._decide", seed=5)
def decides_later_requests_first(
    decide: Any, self: Any, key: Any, state: Any, data: Any, requests: Any
) -> Any:
    """A pass decides the requests of a key from the last one on."""
    return decide(self, key, state, data, requests[::-1])


@decisions.replaces("cq.passes.deciding._Decisions.new_values")
def answers_without_states(
    new_values: Any, self: Any, report: Any, keys: Any, before: Any, waiting: Any
) -> Any:
    """A pass answers, and leaves the states as they were."""
    found = new_values(self, report, keys, before, waiting)
    return replace(found, new=found.old, data=found.before)


@decisions.replaces("cq.passes.view.drop_repeated_operations", also={"once", "unknown commits"})
def decides_repeated_requests(_: Any, snapshot: Any, keys: Any, rows: Any) -> Any:
    """A pass decides the requests of all tries."""
    return list(rows)


@decisions.replaces("cq.passes.view.read_withdrawn", seed=1, also={"withdraw"})
def decides_withdrawn_requests(*_: Any) -> Any:
    """A pass does not look which requests are withdrawn."""
    return ()


@decisions.replaces("cq.queue.answers._settled_or_watch", seed=10, also={"withdraw"})
def withdraws_beside_a_pass(*_: Any) -> Any:
    """A withdrawal does not wait until passes that began before it have ended."""
    return (None, True), None


@decisions.replaces("cq.passes.deciding._Decisions._clear_marks", seed=1, also={"withdraw"})
def forgets_who_has_withdrawn(_: Any, self: Any, answers: Any) -> None:
    """A pass clears all marks of its bucket, also those of requests that it has not reached."""
    for key in self.view.withdrawn.values():
        self.effects.clear(key)


@decisions.replaces("cq.passes.deciding._prefix")
def drops_requests_that_do_not_fit(prefix: Any, view: Any, wanted: Any) -> Any:
    """A pass clears also the rows that it has not taken."""
    return Taken(updates=prefix(view, wanted).updates)


@decisions.replaces("cq.passes.deciding._Decisions._earlier", seed=309)
def forgets_answers_of_earlier_passes(*_: Any) -> Any:
    """A pass that answers a part of a group drops the answers to its other requests."""
    return {}


@decisions.replaces("cq.queue.shared_adds.SharedAdds._hand_on", seed=52, also={"calls"})
def leaves_callers_alone(hand_on: Any, self: Any, group: Any) -> None:
    """A caller that has its answer lets no other one wait for the answers of its group."""
    if not group.is_ended:
        hand_on(self, group)
