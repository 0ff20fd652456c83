"""The levels of a roll-up are created, changed and deleted with their queue, and only with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq.admin.configure import rebuild_observer, remove_observer
from cq.admin.purge import is_purging
from cq.admin.rebucket import finish_rebucket
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import queue_names, read_config
from cq.errors import ConfigurationConflict, InvalidConfiguration, QueueNotConfigured
from cq.observers.builtin import FACTORIES
from cq.observers.rollup import observer
from cq.observers.top.index import top
from cq.observers.verify.queue import verification
from cq.passes.plan import Limits
from cq.queue.missed_reports import read_missed, retry_missed
from cq.store.transact import transact
from cq.testing import drain
from tests.clocks import START, set_clock
from tests.helpers import add, configured, put_built_in

LEVELS = "1m:forever,1h:forever"


def names(db: Any) -> list[str]:
    return transact(db, lambda tr: queue_names(tr.snapshot))


def values(db: Any, name: str) -> dict[Any, Any]:
    return dict(cq.CombineQueue(name).scan(db))


def stored_config(db: Any, name: str) -> Any:
    return transact(db, lambda tr: read_config(tr.snapshot, name))


def test_a_roll_up_creates_levels_like_the_queue(db: Any, name: str) -> None:
    config = configured(db, name, key=(str, bytes), value="set", combiner="union", buckets=3, rollup=LEVELS)
    assert names(db) == [name, f"{name}.1h", f"{name}.1m"]
    for level in ("1m", "1h"):
        found = stored_config(db, f"{name}.{level}")
        assert (found.value, found.combiner, found.buckets) == (config.value, config.combiner, 3)
        assert str(found.key) == "(str, bytes, int)"
    assert configured(db, name, rollup=LEVELS) == config  # the same settings again change nothing


def test_a_roll_up_can_begin_on_a_queue_with_values_and_end(db: Any, name: str) -> None:
    cq.configure(db, name)
    add(db, name, {"a": 1})
    cq.configure(db, name, rollup=LEVELS)
    add(db, name, {"a": 2})
    drain(db)
    assert values(db, name) == {"a": 3}
    assert list(values(db, f"{name}.1h").values()) == [2]
    cq.configure(db, name, rollup="none")
    assert names(db) == [name]
    add(db, name, {"a": 4})
    drain(db)
    assert values(db, name) == {"a": 7}


def test_a_queue_of_the_same_name_is_not_taken_for_a_level(db: Any, name: str) -> None:
    cq.configure(db, f"{name}.1h")
    with pytest.raises(InvalidConfiguration, match="is no level of"):
        cq.configure(db, name, rollup=LEVELS)
    assert names(db) == [f"{name}.1h"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"rollup": "1m:forever"}, ConfigurationConflict),
        ({"rollup": "1m:forever,1d:forever"}, ConfigurationConflict),
        ({"window": "60/5"}, (InvalidConfiguration, ConfigurationConflict)),
    ],
)
def test_a_roll_up_does_not_change_its_periods(
    db: Any, name: str, settings: dict[str, Any], error: Any
) -> None:
    config = configured(db, name, rollup=LEVELS)
    with pytest.raises(error):
        cq.configure(db, name, **settings)
    assert stored_config(db, name) == config


def test_neither_a_window_nor_a_level_has_a_roll_up(db: Any, name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="with a window"):
        cq.configure(db, name, window="60/5", rollup=LEVELS)
    cq.configure(db, name, rollup=LEVELS)
    with pytest.raises(InvalidConfiguration, match="a level"):
        cq.configure(db, f"{name}.1h", rollup="1d:forever")
    long = "n" * 98
    with pytest.raises(InvalidConfiguration):
        cq.configure(db, long, rollup=LEVELS)


CHANGES: list[Callable[[Any, str], object]] = [
    lambda db, level: cq.CombineQueue(level).add_now(db, {("a", 60): 1}),
    cq.purge,
    cq.delete,
    lambda db, level: cq.rebucket(db, level, 3),
    lambda db, level: cq.configure(db, level, window="60/5"),
    lambda db, level: cq.configure(db, level, expire=600),
    lambda db, level: remove_observer(db, level, "rollup"),
    lambda db, level: rebuild_observer(db, level, "rollup"),
    lambda db, level: cq.put_observer(db, level, cq.ObserverSpec("rollup", 1, {"into": level, "period": 60})),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_level_changes_only_with_its_queue(
    db: Any, name: str, change: Callable[[Any, str], object]
) -> None:
    cq.configure(db, name, rollup=LEVELS)
    level = f"{name}.1m"
    before = stored_config(db, level)
    with pytest.raises((InvalidConfiguration, ConfigurationConflict)):
        change(db, level)
    assert stored_config(db, level) == before


def test_a_level_takes_observers_of_its_own(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    level = f"{name}.1m"
    seen: list[Any] = []

    def watching(tr: Any, changes: Any) -> None:
        seen.extend(changes)

    app = cq.App()
    app.queue(level, observers=[watching])
    app.configure(db, level)
    assert [each.name for each in stored_config(db, level).observers] == ["watching", "rollup"]
    cq.configure(db, name, rollup=LEVELS)
    add(db, name, {"a": 1})
    drain(db, app=app)
    assert [(change.key[0], change.new) for change in seen] == [("a", 1)]
    assert list(values(db, f"{name}.1h").values()) == [1]


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_level_is_reported_in_steps_unless_another_observer_hears_it(
    db: Any, name: str, is_heard: bool
) -> None:
    """Only for an observer of its own, a level's backlog is folded to its end before any of it is reported."""
    cq.configure(db, name, rollup=LEVELS, buckets=1)
    level = f"{name}.1m"
    if is_heard:
        put_built_in(db, stored_config(db, level), top())
    add(db, name, *({f"k{each}": 1, f"k{each + 20}": 1} for each in range(200)))
    code = cq.App().code(stored_config(db, level), FACTORIES)
    bucket = PassRunner(db, code, 0, limits=Limits(read_bytes=1000))

    first = bucket.combine()
    assert first.more
    assert bool(first.reported) != is_heard
    assert bool(first.folded) == is_heard
    drain(db)
    for each in (level, f"{name}.1h"):
        assert sum(values(db, each).values()) == 400
    assert not list(verification(db, level).run())


def test_a_purge_includes_the_levels(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS, buckets=2)
    add(db, name, {"a": 1, "b": 2})
    drain(db)
    add(db, name, {"a": 10})
    cq.purge(db, name)
    assert is_purging(db, name)
    add(db, name, {"a": 100})
    drain(db)
    assert not is_purging(db, name)
    for each in (name, f"{name}.1m", f"{name}.1h"):
        assert list(values(db, each).values()) == [100]


def test_rebucketing_includes_the_levels(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS, buckets=2)
    everything = (name, f"{name}.1m", f"{name}.1h")
    add(db, name, {"a": 1})
    cq.rebucket(db, name, 5)
    add(db, name, {"a": 2})
    drain(db)
    for each in everything:
        finish_rebucket(db, each)
        config = stored_config(db, each)
        assert (config.buckets, config.former) == (5, None)
        assert list(values(db, each).values()) == [3]


def test_a_deleted_queue_leaves_no_levels(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    add(db, name, {"a": 1})
    cq.delete(db, name)
    assert names(db) == []
    with pytest.raises(QueueNotConfigured):
        add(db, name, {"a": 1})


@pytest.mark.parametrize(
    "settings",
    [{}, {"into": "b"}, {"into": 1, "period": 60}, {"into": "b", "period": 0}, {"into": "b", "period": True}],
)
def test_an_observer_with_other_settings_is_refused(db: Any, name: str, settings: dict[str, Any]) -> None:
    cq.configure(db, name, rollup=LEVELS)
    with pytest.raises(InvalidConfiguration, match="not a level"):
        observer(stored_config(db, f"{name}.1m"), settings, 1)
    with pytest.raises(InvalidConfiguration, match="not a level"):
        observer(stored_config(db, name), {"into": "b", "period": 60}, 1)


def test_retentions_can_be_set_at_any_time(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    add(db, name, {"a": 1})
    cq.configure(db, name, rollup="1m:2h,1h:forever")
    assert str(stored_config(db, name).rollup) == "1m:2h,1h:forever"
    assert str(stored_config(db, f"{name}.1m").expiry) == "2h by key"
    assert stored_config(db, f"{name}.1h").expiry is None
    drain(db)
    assert list(values(db, f"{name}.1h").values()) == [1]
    assert not list(verification(db, f"{name}.1m").run())
    cq.configure(db, name, rollup=LEVELS)
    assert stored_config(db, f"{name}.1m").expiry is None


@pytest.mark.parametrize("cause", ["purge", "expiry"])
@pytest.mark.parametrize("next_report", ["retry", "update"])
def test_a_deletion_that_another_observer_refused_changes_no_longer_period(
    db: Any, name: str, cause: str, next_report: str
) -> None:
    """Neither when it is reported again, nor when an update of the key is."""
    refuses = True

    def refusing(tr: Any, changes: list[cq.Change]) -> None:
        if refuses and any(change.new is None for change in changes):
            raise RuntimeError("refused")

    cq.configure(db, name, rollup="1m:2m,1h:forever")
    minutes, hours = f"{name}.1m", f"{name}.1h"
    app = cq.App()
    app.queue(minutes, observers=[refusing])
    app.configure(db, minutes)
    with set_clock() as clock:
        add(db, name, {"a": 5})
        drain(db, app=app)
        before = values(db, hours)
        assert list(before.values()) == [5]
        if cause == "purge":
            cq.purge(db, name)
            before = {}
        else:
            clock.now += 300
        drain(db, app=app)
        assert values(db, minutes) == {}
        assert values(db, hours) == before
        assert len(transact(db, lambda tr: read_missed(tr, minutes))) == 1

        refuses = False
        if next_report == "retry":
            assert retry_missed(db, minutes) == 1
        else:
            transact(db, lambda tr: cq.Series(name).add(tr, {"a": 1}, at=START, now=START))
            before = {key: value + 1 for key, value in before.items()} or {("a", START // 3600 * 3600): 1}
        drain(db, app=app)
        assert values(db, hours) == before
        assert not list(verification(db, minutes).run())
