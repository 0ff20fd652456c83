"""The version of a combiner changes while updates are added: what is queued is combined by the former one first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import cq
from cq import admin
from cq.admin.configure import change, requested
from cq.admin.conversion import finish_conversion
from cq.admin.rebucketing import finish_rebucket
from cq.config.flags import read_flags
from cq.config.queue import QueueConfig, read_config
from cq.errors import CodeMismatch, ConfigurationConflict, InvalidConfiguration, NotNow
from cq.observers.worker.worker import Worker
from cq.passes.conversion import ConversionFailed
from cq.queue.set_aside import retry_aside
from cq.store.transact import transact
from cq.windows import Window
from tests.kit.clocks import jumping
from tests.kit.observing import SeenInStore, app_of, app_with
from tests.kit.queues import add, aside, combine_all, spoil, values

UPDATE = 0
"""The version of updates, which every version of the combiner accepts."""


class Converted:
    """A queue with values [version, number, ...]: the numbers of its updates in commit order.

    Attributes:
        refused: keys that the combiner refuses now.
        seen: an observer of all versions.
        breaks: what was wrong.
    """

    def __init__(self, db: Any, name: str, *, converts: bool = True) -> None:
        self.db, self.name, self.converts = db, name, converts
        self.refused: set[str] = set()
        self.seen = SeenInStore(db, name)
        self.breaks: list[str] = []

    def combiner(self, version: int) -> cq.Combiner:
        def combine(key: str, values: Sequence[list[int]]) -> list[int]:
            if key in self.refused:
                raise ValueError("refused")
            if self.converts and any(value[0] not in (UPDATE, version) for value in values):
                self.breaks.append(f"version {version} combines {values} of {key!r}")
            numbers = [number for value in values for number in value[1:]]
            return [version, *numbers]

        def convert(key: str, value: list[int], before: int) -> list[int]:
            if value[0] != before or before >= version:
                self.breaks.append(f"{value} of {key!r} is converted from {before} to {version}")
            if key in self.refused:
                raise ValueError("cannot be converted")
            return [version, *value[1:]]

        return cq.Combiner(
            "numbers", version, combine, value_types=("list",), convert=convert if self.converts else None
        )

    def app(self, version: int) -> cq.App:
        return app_of(self.name, self.seen.observer, combiner=self.combiner(version))

    def configure(self, version: int, **settings: Any) -> None:
        self.app(version).configure(self.db, self.name, key=str, value=list, **settings)

    def config(self) -> QueueConfig:
        return transact(self.db, lambda tr: read_config(tr.snapshot, self.name))

    def values(self) -> dict[str, list[int]]:
        return dict(cq.CombineQueue(self.name).scan(self.db))

    def add(self, *keys: str, number: int = 1) -> None:
        add(self.db, self.name, {key: [UPDATE, number] for key in keys})

    def combine(self, version: int) -> None:
        combine_all(self.db, self.name, self.app(version))

    def drain(self, version: int) -> None:
        with suppress(cq.errors.ConfigurationError):  # of the former version: later updates are not for it
            Worker(self.db, self.app(version), [self.name]).drain()


@pytest.fixture
def queue(db: Any, name: str) -> Converted:
    """With values of version 1, and updates that are queued."""
    made = Converted(db, name)
    made.configure(1, buckets=2)
    made.add("a", "b", "c", "d")
    made.combine(1)
    made.add("a", "e", number=2)
    return made


def test_queued_updates_are_combined_by_the_former_version_and_values_converted(queue: Converted) -> None:
    queue.configure(2)
    queue.add("a", "f", number=3)
    with pytest.raises(CodeMismatch, match="workers with numbers@1 must first combine"):
        queue.combine(2)
    queue.drain(1)
    queue.drain(2)

    assert queue.values() == {
        "a": [2, 1, 2, 3], "b": [2, 1], "c": [2, 1], "d": [2, 1], "e": [2, 2], "f": [2, 3],
    }  # fmt: skip
    config = queue.config()
    assert (str(config.combiner), config.former, config.conversion) == ("numbers@2", None, None)
    assert queue.breaks == []


def test_a_version_without_convert_keeps_the_values(db: Any, name: str) -> None:
    queue = Converted(db, name, converts=False)
    queue.configure(1)
    queue.add("a", "b")
    queue.combine(1)
    queue.add("a", number=2)
    queue.configure(2)
    queue.drain(1)
    queue.add("b", number=3)
    queue.drain(2)

    assert {key: value[1:] for key, value in queue.values().items()} == {"a": [1, 2], "b": [1, 3]}
    assert queue.config().conversion is None


def test_a_worker_of_the_former_version_stops_when_its_part_is_done(queue: Converted) -> None:
    queue.configure(2)
    queue.drain(1)

    with pytest.raises(CodeMismatch, match="asks for the combiner numbers@2, this process has numbers@1"):
        queue.combine(1)


def test_the_versions_of_levels_change_with_their_queue(db: Any, name: str) -> None:
    queue = Converted(db, name)
    app, later = (app_of(name, combiner=queue.combiner(version)) for version in (1, 2))
    app.configure(db, name, key=str, value=list, rollup="1m:1h,1h:forever")
    names = queue.config().names
    queue.add("a")
    for each in names:
        combine_all(db, each, app)
    queue.add("a", number=2)

    later.configure(db, name)
    with pytest.raises(cq.errors.ConfigurationError, match=r"with that version|has numbers@1"):
        Worker(db, app, names).drain()
    queue.add("a", number=3)
    Worker(db, later, names).drain()

    for each in names:
        config = transact(db, lambda tr: read_config(tr, each))  # noqa: B023
        assert (str(config.combiner), config.conversion) == ("numbers@2", None)
        assert sorted(number for value in values(db, each).values() for number in value[1:]) == [
            1, 2, 3,
        ]  # fmt: skip
    assert queue.breaks == []
    with pytest.raises(InvalidConfiguration, match="belongs to the roll-up of"):
        cq.configure(db, names[1], combiner=queue.combiner(3))


@pytest.mark.parametrize("setting", [{"window": "600/10"}, {"rollup": "1m:1h,1h:forever"}])
def test_reads_combine_no_values_of_a_level_that_is_not_converted(
    db: Any, name: str, setting: dict[str, Any]
) -> None:
    queue = Converted(db, name)
    app, later = (app_of(name, combiner=queue.combiner(version)) for version in (1, 2))
    app.configure(db, name, key=str, value=list, **setting)
    names = queue.config().names
    queue.add("a")
    Worker(db, app, names).drain()
    later.configure(db, name)
    for each in names:
        finish_rebucket(db, each)
    combine_all(db, name, later)
    finish_conversion(db, name)
    reader = cq.CombineQueue[str, Any](name, combiner=queue.combiner(2))

    def read(tr: Any) -> Any:
        return (
            Window(reader).get(tr, "a") if "window" in setting else reader.merged_series(tr, "a", last=3600)
        )

    with pytest.raises(NotNow, match="still being changed"):
        transact(db, read)
    Worker(db, later, names).drain()

    assert transact(db, read) == [2, 1]
    assert queue.breaks == []


def test_only_a_later_version_is_a_change_and_only_alone(queue: Converted) -> None:
    queue.configure(2)
    with pytest.raises(NotNow, match="still being changed from the combiner numbers@1 to numbers@2"):
        queue.configure(3)
    for other in (admin.purge, lambda db, name: admin.rebucket(db, name, 5)):
        with pytest.raises(NotNow, match="still being changed"):
            other(queue.db, queue.name)
    queue.configure(2)
    queue.drain(1)
    queue.drain(2)
    with pytest.raises(ConfigurationConflict):
        queue.configure(1)
    with pytest.raises(ConfigurationConflict):
        cq.configure(queue.db, queue.name, combiner=replace(queue.combiner(3), name="others"))
    with pytest.raises(InvalidConfiguration, match="one after the other"):
        cq.configure(queue.db, queue.name, combiner=queue.combiner(3), observers=[])

    assert str(queue.config().combiner) == "numbers@2"


def test_a_priority_is_set_together_with_a_later_version(queue: Converted) -> None:
    change(queue.db, queue.name, requested(combiner=queue.combiner(2), priority=7))

    assert queue.config().combiner.version == 2
    assert cq.transact(queue.db, lambda tr: read_flags(tr, queue.name)).priority == 7


def test_no_combiner_of_an_application_takes_the_place_of_a_built_in_one(db: Any, name: str) -> None:
    combiner = cq.Combiner("sum", 2, lambda key, values: max(values))
    cq.configure(db, name, key=str, value=int, audit=True)

    with pytest.raises(InvalidConfiguration, match="name of a built-in combiner"):
        cq.configure(db, name, combiner=combiner)
    with pytest.raises(InvalidConfiguration, match="name of a built-in combiner"):
        cq.App().queue(name, combiner=replace(combiner, version=1))


def test_pending_reads_wait_for_the_change(queue: Converted) -> None:
    queue.configure(2)
    reader = cq.CombineQueue[str, Any](queue.name, combiner=queue.combiner(2))
    with pytest.raises(NotNow, match="still being changed"):
        transact(queue.db, lambda tr: reader.get(tr, "a", pending=True))

    assert transact(queue.db, lambda tr: reader.get(tr, "b")) == [1, 1]
    queue.drain(1)
    queue.drain(2)
    assert transact(queue.db, lambda tr: reader.get(tr, "a", pending=True)) == [2, 1, 2]


def test_emitters_with_the_new_version_add_during_the_change_and_others_no_longer(queue: Converted) -> None:
    def emitter(version: int) -> cq.Emitter[str, Any]:
        return cq.Emitter(cq.CombineQueue[str, Any](queue.name, combiner=queue.combiner(version)), queue.db)

    former = emitter(1)
    queue.configure(2)
    former.emit("a", [UPDATE, 7])
    while not former.statistics().failures:
        former._buffer.wake.wait(0.001)
    former.timeout = 0.01
    with pytest.raises(cq.errors.FlushFailed, match="has another combiner"):
        former.close()
    with pytest.raises(CodeMismatch, match="asks for the combiner numbers@2"):
        emitter(1)
    with emitter(2) as later:
        later.emit("a", [UPDATE, 8])
        later.flush()
        queue.drain(1)
        later.emit("a", [UPDATE, 9])
        later.flush()
        queue.drain(2)

    assert queue.values()["a"] == [2, 1, 2, 8, 9]
    assert queue.breaks == []


def test_updates_set_aside_by_the_former_version_are_combined_by_it(queue: Converted) -> None:
    queue.refused = {"a"}
    queue.combine(1)
    assert len(aside(queue.db, queue.name)) == 1
    queue.configure(2)
    queue.drain(1)
    finish_rebucket(queue.db, queue.name)
    assert queue.config().former is not None, "what is set aside is of version 1"

    queue.refused = set()
    retry_aside(queue.db, queue.name)
    queue.drain(1)
    queue.drain(2)

    assert queue.values()["a"] == [2, 1, 2]
    assert queue.breaks == []


def test_a_value_that_cannot_be_converted_waits_for_a_repaired_function(queue: Converted) -> None:
    queue.configure(2)
    queue.drain(1)
    queue.refused = {"c"}
    with pytest.raises(
        ConversionFailed, match=r"key 'c' .* numbers@1 to numbers@2: ValueError: cannot .* in convert:"
    ):
        queue.combine(2)
    queue.refused = set()
    queue.drain(2)

    assert queue.values()["c"] == [2, 1]
    assert queue.breaks == []


def test_a_value_whose_conversion_takes_too_long_is_named(db: Any, name: str) -> None:
    """The store refuses its transactions, which would be tried again without a word."""

    def convert(key: str, value: list[int], before: int) -> list[int]:
        if key == "b":
            clock.passed += 6.0
        return value

    def app(version: int, **more: Any) -> cq.App:
        combine = cq.Combiner("numbers", version, lambda key, found: found[-1], value_types=("list",), **more)
        return app_of(name, combiner=combine)

    app(1).configure(db, name, key=str, value=list)
    add(db, name, {key: [1] for key in "abc"})
    combine_all(db, name, app(1))
    app(2, convert=convert).configure(db, name)
    with suppress(cq.errors.ConfigurationError):  # of the former version: later updates are not for it
        Worker(db, app(1), [name]).drain()
    with (
        jumping() as clock,
        pytest.raises(ConversionFailed, match=r"key 'b' .*: convert took 6.0 s, and a transaction lives 5 s"),
    ):
        combine_all(db, name, app(2, convert=convert))


def test_a_value_that_cannot_be_read_waits_until_it_is_repaired(queue: Converted) -> None:
    repair = spoil(queue.db, queue.name, "c")
    queue.configure(2)
    queue.drain(1)
    with pytest.raises(ConversionFailed, match=r"key 'c' .* numbers@1 to numbers@2: CorruptData: "):
        queue.combine(2)
    repair()
    queue.drain(2)

    assert queue.values()["c"] == [2, 1]
    assert queue.breaks == []


def test_a_convert_that_changes_the_former_value_itself_is_stored_and_reported(db: Any, name: str) -> None:
    queue = Converted(db, name)

    def convert(key: str, value: list[int], version: int) -> list[int]:
        value[0] = 2
        return value

    queue.configure(1)
    queue.add("a")
    queue.combine(1)
    app = app_with(db, name, queue.seen.observer, combiner=replace(queue.combiner(2), convert=convert))
    queue.drain(1)
    combine_all(db, name, app)

    assert queue.values() == {"a": [2, 1]}
    assert queue.seen.received("a") == [(None, [1, 1]), ([1, 1], [2, 1])]


@pytest.mark.parametrize("made", [None, [], 5])
def test_a_conversion_makes_values_of_the_queue(db: Any, name: str, made: Any) -> None:
    queue = Converted(db, name)
    combiner = replace(
        queue.combiner(2), convert=lambda key, value, version: made, is_empty=lambda value: value == []
    )
    queue.configure(1)
    queue.add("a")
    queue.combine(1)
    app = app_with(db, name, queue.seen.observer, combiner=combiner)
    queue.drain(1)

    with pytest.raises(ConversionFailed, match=r"InvalidData|WrongType"):
        combine_all(db, name, app)


def test_an_observer_that_refuses_a_converted_value_misses_its_report(queue: Converted) -> None:
    queue.configure(2)
    queue.drain(1)
    app = queue.app(2)
    queue.seen.refused = {"b"}
    combine_all(queue.db, queue.name, app)
    queue.seen.refused = set()
    assert [(each.updates, each.failure.code) for each in aside(queue.db, queue.name)] == [
        ([], "observer seen@1")
    ]
    assert queue.values()["b"] == [2, 1]
    queue.add("b", number=7)
    combine_all(queue.db, queue.name, app)

    assert queue.values()["b"] == [2, 1, 7]
    assert queue.breaks == []
    assert queue.seen.received("b") == [(None, [1, 1]), ([1, 1], [2, 1, 7])]
