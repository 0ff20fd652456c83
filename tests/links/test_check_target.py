"""`check_target` and `MemoryTarget` of `cq.testing`: what the check finds in targets that break the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import cq
from cq import links
from cq.keys.link import Position
from cq.links import CannotSend, Changes, LinkFailed, Target
from cq.testing import MemoryTarget, assert_drained, check_target, drain
from tests.kit.queues import add
from tests.links.linkhelpers import status


def test_a_target_without_positions_has_a_weaker_contract() -> None:
    """It gets some entries again: what it has in the end is right."""
    target = MemoryTarget(keeps_positions=False)
    assert not check_target(lambda source: target, lambda: target.values)
    assert len(target.applied) > len({entry.sequence for entry in target.applied})


class Unlike(MemoryTarget):
    """A target that breaks the contract."""

    def __init__(self, change: Callable[[Unlike, Changes], Any]) -> None:
        super().__init__()
        self.keeps_positions = True
        self._change = change

    def apply(self, changes: Changes) -> str | None:
        answer = self._change(self, changes)
        return MemoryTarget.apply(self, answer) if isinstance(answer, Changes) else answer


def compares_nothing(target: Unlike, changes: Changes) -> Any:
    return replace(changes, previous=target.positions.get(changes.bucket, ""))


def compares_sequences_only(target: Unlike, changes: Changes) -> Any:
    """A position of another epoch seems to be the same."""
    stored = target.positions.get(changes.bucket, "")
    return replace(changes, previous=stored) if stored[-44:] <= changes.position[-44:] else stored


def stores_no_position_without_entries(target: Unlike, changes: Changes) -> Any:
    stored = target.positions.get(changes.bucket, "")
    return changes if changes.entries or stored != changes.previous else None


def stores_the_position_of_the_bucket_before(target: Unlike, changes: Changes) -> Any:
    return replace(changes, bucket=changes.bucket // 2)


def loses_deletions(target: Unlike, changes: Changes) -> Any:
    return replace(changes, entries=[entry for entry in changes.entries if entry.value is not None])


def applies_one_entry_of_each_batch(target: Unlike, changes: Changes) -> Any:
    return replace(changes, entries=changes.entries[:1])


def applies_before_it_compares(target: Unlike, changes: Changes) -> Any:
    for entry in changes.entries:
        target._apply(entry)
    return replace(changes, entries=())


def answers_with_a_number(target: Unlike, changes: Changes) -> Any:
    return 7


def refuses(target: Unlike, changes: Changes) -> Any:
    if changes.entries:
        raise CannotSend("too blue", {changes.entries[0].sequence: "too blue"})
    return changes


def fails(target: Unlike, changes: Changes) -> Any:
    raise LinkFailed("no route")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (compares_nothing, "that no target has, apply returned None: a target with"),
        (compares_sequences_only, "that no target has, apply returned None"),
        (stores_no_position_without_entries, "the target has ''"),
        (stores_the_position_of_the_bucket_before, "with another|the target has|sends nothing"),
        (loses_deletions, "wrong values after the step 'crash': key"),
        (applies_one_entry_of_each_batch, "wrong values after the step 'check': key"),
        (applies_before_it_compares, "wrong values"),
        (answers_with_a_number, "apply has returned 7"),
        (refuses, r"the target refuses \d+ changes"),
        (fails, "no route"),
    ],
)
def test_a_target_that_breaks_the_contract_is_found(broken: Any, message: str) -> None:
    target = Unlike(broken)
    with pytest.raises(AssertionError, match=message):
        check_target(lambda source: target, lambda: target.values)


class Unclosable(MemoryTarget):
    """A target that cannot be closed."""

    def close(self) -> None:
        raise OSError("the pool is gone")


def test_a_target_that_cannot_be_closed_is_found() -> None:
    target = Unclosable()
    with pytest.raises(AssertionError, match="close has raised OSError: the pool is gone"):
        check_target(lambda source: target, lambda: target.values)


def compares_epochs(position: Position, below: bytes) -> Position:
    return position._replace(sequence=below)


def compares_generations(position: Position, below: bytes) -> Position:
    return position._replace(epoch=0)


def compares_earlier_generations(position: Position, below: bytes) -> Position:
    return position._replace(sequence=min(position.sequence, below))


class Sweeping(MemoryTarget):
    """A target that takes some sweeps that are late; it may not tell how many rows it has deleted."""

    def __init__(self, compared: Callable[[Position, bytes], Position], *, counts: bool) -> None:
        super().__init__()
        self._compared, self._counts = compared, counts

    def sweep(self, epoch: int, below: bytes) -> int:
        stored = self.positions
        found = [position for position in map(Position.parse, stored.values()) if position is not None]
        self.positions = {number: str(self._compared(each, below)) for number, each in enumerate(found)}
        try:
            swept = super().sweep(epoch, below)
        finally:
            self.positions = stored
        return swept if self._counts else 0


@pytest.mark.parametrize(
    ("compared", "what"),
    [
        (compares_epochs, "of a generation that is lost"),
        (compares_generations, "of an earlier epoch"),
        (compares_earlier_generations, "of an earlier generation"),
    ],
)
@pytest.mark.parametrize("counts", [True, False])
def test_a_target_that_sweeps_late_is_found(compared: Any, what: str, counts: bool) -> None:
    target = Sweeping(compared, counts=counts)
    message = (
        r"a late sweep has deleted \d+ rows" if counts else f"wrong values after the step 'late sweep {what}'"
    )
    with pytest.raises(AssertionError, match=message):
        check_target(lambda source: target, lambda: target.values)


def test_targets_that_share_nothing_are_found() -> None:
    with pytest.raises(AssertionError, match=r"the target in memory lacks changes|the target has ''"):
        check_target(lambda source: MemoryTarget())


def test_it_fails_refuses_and_is_set_back_as_a_test_says(db: Any, name: str) -> None:
    target, app = MemoryTarget(), cq.App()
    app.target("memory")(lambda source: target)
    cq.configure(db, name, links=[links.app("memory")])
    target.error = links.LinkFailed("no route")
    add(db, name, {"a": 1, "bad": 1})
    drain(db, app=app)
    assert status(db, name) == "failing: LinkFailed: no route"
    target.error, target.refused = None, {"bad"}
    drain(db, app=app)
    assert target.values == {"a": 1}
    with pytest.raises(AssertionError, match="set aside because link 'memory' could not send them: 1"):
        assert_drained(db)
    copy = target.copy()
    add(db, name, {"a": 1})
    drain(db, app=app)
    assert target.values == {"a": 2}
    target.restore(copy)
    add(db, name, {"a": 1})
    drain(db, app=app)
    assert status(db, name).startswith("stopped: the target in memory lacks changes")
    assert isinstance(target, Target)
