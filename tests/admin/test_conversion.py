"""The version of a combiner changes while updates are added: what is queued is combined by the former one first."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq.admin.conversion import finish_conversion
from cq.admin.rebucket import finish_rebucket
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import QueueConfig, read_config, write_config
from cq.errors import CodeMismatch, ConfigurationConflict, InvalidConfiguration, NotNow
from cq.keys import QueueKeys
from cq.observers.worker.worker import Worker
from cq.passes import combine_pass
from cq.passes.combine_pass import Pass
from cq.passes.conversion import ConversionFailed
from cq.passes.plan import Limits
from cq.queue.bucket_state import BucketState
from cq.queue.set_aside import retry_aside
from cq.store.transact import transact
from tests.faults import FaultyDatabase
from tests.helpers import add, aside, code_of, combine_all, commits, nothing_queued, values

UPDATE = 0
"""The version of updates, which every version of the combiner accepts."""


class Converted:
    """A queue with values [version, number, ...]: the numbers of its updates in commit order.

    Attributes:
        refused: keys that the combiner and the observer refuse now.
        chain: {key: value} that the observer has received last.
        breaks: what was wrong.
    """

    def __init__(self, db: Any, name: str, *, converts: bool = True) -> None:
        self.db, self.name, self.converts = db, name, converts
        self.refused: set[str] = set()
        self.told = f"test/{name}/".encode()
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
        made = cq.App()
        made.queue(
            self.name, combiner=self.combiner(version), observers=[cq.Observer("chain", 1, self._observe)]
        )
        return made

    def _observe(self, tr: Any, changes: list[cq.Change]) -> None:
        for change in changes:
            if change.key in self.refused:
                raise ValueError("not reported")
            key = self.told + change.key.encode()
            last, old = tr.snapshot.get(key).value, repr(change.old).encode()
            if last != (None if change.old is None else old):
                self.breaks.append(f"{change} after {last!r}")
            tr.set(key, repr(change.new).encode())

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
        with suppress(cq.ConfigurationError):  # of the former version: later updates are not for it
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
    app, later = cq.App(), cq.App()
    app.queue(name, combiner=queue.combiner(1))
    later.queue(name, combiner=queue.combiner(2))
    app.configure(db, name, key=str, value=list, rollup="1m:1h,1h:forever")
    names = queue.config().names
    queue.add("a")
    for each in names:
        combine_all(db, each, app)
    queue.add("a", number=2)

    later.configure(db, name)
    with pytest.raises(cq.ConfigurationError, match=r"with that version|has numbers@1"):
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
    app, later = cq.App(), cq.App()
    app.queue(name, combiner=queue.combiner(1))
    later.queue(name, combiner=queue.combiner(2))
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
            cq.Window(reader).get(tr, "a")
            if "window" in setting
            else reader.merged_series(tr, "a", last=3600)
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
    for change in (cq.purge, lambda db, name: cq.rebucket(db, name, 5)):
        with pytest.raises(NotNow, match="still being changed"):
            change(queue.db, queue.name)
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

    with emitter(1) as former:
        queue.configure(2)
        with pytest.raises(cq.FlushFailed, match="has another combiner"):
            former.emit("a", [UPDATE, 7])
    with pytest.raises(CodeMismatch, match="asks for the combiner numbers@2"):
        emitter(1)
    with emitter(2) as later:
        later.emit("a", [UPDATE, 8])
        queue.drain(1)
        later.emit("a", [UPDATE, 9])
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


@pytest.mark.parametrize("made", [None, [], 5])
def test_a_conversion_makes_values_of_the_queue(db: Any, name: str, made: Any) -> None:
    queue = Converted(db, name)
    combiner = replace(
        queue.combiner(2), convert=lambda key, value, version: made, is_empty=lambda value: value == []
    )
    queue.configure(1)
    queue.add("a")
    queue.combine(1)
    app = cq.App()
    app.queue(name, combiner=combiner, observers=[cq.Observer("chain", 1, queue._observe)])
    app.configure(db, name)
    queue.drain(1)

    with pytest.raises(ConversionFailed, match=r"InvalidData|WrongType"):
        combine_all(db, name, app)


def test_an_observer_that_refuses_a_converted_value_misses_its_report(queue: Converted) -> None:
    combiner, observed = queue.combiner(2), queue.refused
    queue.configure(2)
    queue.drain(1)
    refused = {"b"}

    def observe(tr: Any, changes: list[cq.Change]) -> None:
        if any(change.key in refused and change.cause == "conversion" for change in changes):
            raise ValueError("not this one")
        queue._observe(tr, changes)

    app = cq.App()
    app.queue(queue.name, combiner=combiner, observers=[cq.Observer("chain", 1, observe)])
    combine_all(queue.db, queue.name, app)
    assert [(each.updates, each.failure.code) for each in aside(queue.db, queue.name)] == [
        ([], "observer chain@1")
    ]
    assert queue.values()["b"] == [2, 1]
    queue.add("b", number=7)
    combine_all(queue.db, queue.name, app)

    assert queue.values()["b"] == [2, 1, 7]
    assert queue.breaks == []
    assert observed == set()


# Whatever happens


class Run:
    """Adds, passes of both versions, changes and finishes in a random order, with faults and commits that land late.

    Attributes:
        expected: {key: the numbers of its committed updates, in commit order}.
    """

    def __init__(self, db: Any, name: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.queue = Converted(db, name)
        self.faulty = FaultyDatabase(db, seed, conflict=0.1, unknown=0.1)
        self.version = 1
        self.numbers = 0
        self.expected: dict[str, list[int]] = defaultdict(list)
        self.late: list[tuple[Any, list[str], int]] = []
        self.queue.configure(1, buckets=self.rng.randint(1, 3))

    def run(self, turns: int = 120) -> None:
        steps = [self.begin, self.begin, self.land, self.land, self.finish, *[self.combine] * 3]
        for turn in range(turns):
            if turn in (turns // 4, turns // 2):
                self.switch()
            with suppress(CodeMismatch):
                self.rng.choice(steps)()

    def settle(self) -> None:
        while self.late:
            self.land()
        for _ in range(2):
            for version in range(1, self.version + 1):
                self.queue.drain(version)

    def begin(self) -> None:
        """An add, which is committed later."""
        self.numbers += 1
        keys = self.rng.sample("abcdefgh", self.rng.randint(1, 4))
        tr = self.queue.db.create_transaction()
        cq.CombineQueue[str, Any](self.queue.name).add(tr, {key: [UPDATE, self.numbers] for key in keys})
        self.late.append((tr, keys, self.numbers))

    def land(self) -> None:
        """Commit an add or a pass; one from before a change conflicts with it."""
        if not self.late:
            return
        tr, keys, number = self.late.pop(self.rng.randrange(len(self.late)))
        if commits(tr):
            for key in keys:
                self.expected[key].append(number)

    def combine(self) -> None:
        """A pass of the present or the former version that is committed later, conflicts, or is in doubt."""
        version = self.rng.randint(max(1, self.version - 1), self.version)
        code = code_of(self.queue.db, self.queue.name, self.queue.app(version))
        shape = self.rng.choice(code.shapes)
        limits = Limits(read_bytes=self.rng.choice((60, 10_000)), load_bytes=self.rng.choice((20, 10_000)))
        bucket = self.rng.randrange(shape.config.buckets)
        if self.rng.random() < 0.3:
            tr = self.queue.db.create_transaction()
            Pass(tr, shape, bucket).run()
            self.late.append((tr, [], 0))
        else:
            PassRunner(self.faulty, shape, bucket, limits=limits).combine()

    def finish(self) -> None:
        finish_rebucket(self.faulty, self.queue.name)
        finish_conversion(self.faulty, self.queue.name)

    def switch(self) -> None:
        with suppress(NotNow):
            self.queue.configure(self.version + 1)
            self.version += 1

    def wrong(self) -> list[str]:
        """What is wrong once everything is combined."""
        found = list(self.queue.breaks)
        values = self.queue.values()
        if (numbers := {key: value[1:] for key, value in values.items()}) != self.expected:
            found.append(f"the updates are {numbers}, expected {dict(self.expected)}")
        found += [f"{key!r} is {value}" for key, value in values.items() if value[0] != self.version]
        if not nothing_queued(self.queue.db, self.queue.name) or self.queue.config().conversion is not None:
            found.append("the change is not finished")
        return found


@pytest.mark.parametrize("seed", range(20))
def test_each_value_is_converted_once_after_the_last_pass_of_the_former_version(
    db: Any, name: str, seed: int
) -> None:
    run = Run(db, name, seed)
    run.run()
    run.settle()

    assert run.version > 1
    assert run.wrong() == []


def combines_before_it_converts() -> AbstractContextManager[object]:
    """A pass of the new version does not look whether the bucket is converted."""
    return patch.object(combine_pass, "needs_conversion", lambda config, state: False)


def converts_again() -> AbstractContextManager[object]:
    """A pass does not note how far it has converted."""

    def forgets(state: BucketState, *, converting: bytes | None) -> BucketState:
        return state

    return patch("cq.passes.conversion.replace", forgets)


def combines_the_former_shape_with_the_new_version() -> AbstractContextManager[object]:
    """A worker of the new version does not leave the former shape to the former version."""
    return patch.object(cq.App, "code", lambda self, wanted, built_in=None: self._code(wanted, built_in))


def finishes_before_the_former_shape_is_empty() -> AbstractContextManager[object]:
    """The former shape is forgotten although updates are queued in it."""

    def finish(db: Any, name: str) -> bool:
        def forget(tr: Any) -> bool:
            config = read_config(tr, name)
            if config.former is not None:
                for bounds in QueueKeys(name).of_generation(config.former.generation):
                    tr.clear_range(*bounds)
                write_config(tr, replace(config, former=None))
            return True

        return transact(db, forget)

    return patch(f"{__name__}.finish_rebucket", finish)


@pytest.mark.parametrize(
    "variant",
    [
        combines_before_it_converts,
        converts_again,
        combines_the_former_shape_with_the_new_version,
        finishes_before_the_former_shape_is_empty,
    ],
)
def test_a_broken_variant_is_found(
    db: Any, name: str, variant: Callable[[], AbstractContextManager[object]]
) -> None:
    for seed in range(20):
        run = Run(db, f"{name}-{seed}", seed)
        with variant():
            run.run()
        if run.queue.breaks:
            return
        run.settle()
        if run.wrong():
            return
    raise AssertionError("it is not found")
