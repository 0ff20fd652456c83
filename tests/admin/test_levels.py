"""Windows, roll-ups and expiries are configured at any time; their parts come, change and go with their queue only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq import admin
from cq.admin.configure import put_observer, rebuild_observer, remove_observer
from cq.admin.purging import purging_buckets
from cq.config.expiry import ExpirySpec
from cq.config.queue import queue_names, read_config
from cq.errors import ConfigurationConflict, InvalidConfiguration, QueueNotConfigured
from cq.observers.top.index import top
from cq.observers.top.ranking import Ranking
from cq.observers.verify.queue import verification
from cq.store.transact import transact
from cq.testing import assert_drained, drain
from cq.windows import Window
from tests.kit.clocks import START, Clock
from tests.kit.queues import add, combine_all, configured, values

pytestmark = pytest.mark.usefixtures("clock")

LEVELS = "1m:2h,1h:forever"
ALL: dict[str, Any] = {"window": "60/5", "rollup": LEVELS, "expire": 600}
PARTS = (".1h", ".1m", ".slices", ".window")


def names(db: Any) -> list[str]:
    return transact(db, lambda tr: queue_names(tr.snapshot))


def sums(db: Any, name: str) -> dict[str, int]:
    """{part of a queue: the sum of its values}."""
    return {each.removeprefix(name): sum(values(db, each).values()) for each in names(db)}


def stored_config(db: Any, name: str) -> Any:
    return transact(db, lambda tr: read_config(tr.snapshot, name))


def differences(db: Any, name: str) -> list[Any]:
    found = []
    for each in stored_config(db, name).names:
        checked = verification(db, each)
        found += [*checked.run(), *checked.notes]
    return found


# Configurations


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_a_window_a_roll_up_and_an_expiry_on_one_queue(db: Any, name: str, combiner: str) -> None:
    config = configured(
        db, name, key=(str, bytes), combiner=combiner, buckets=3, audit=combiner == "sum", **ALL
    )
    assert names(db) == [name, *(f"{name}{part}" for part in PARTS)]
    shown = config.settings()
    assert (shown["window"], shown["rollup"], shown["expire"]) == ("1m/5s", LEVELS, "10m")
    for part in PARTS:
        found = stored_config(db, f"{name}{part}")
        assert (found.value, found.combiner, found.buckets) == (config.value, config.combiner, 3)
        assert str(found.key) == ("(str, bytes)" if part == ".window" else "(str, bytes, int)")
    assert configured(db, name, **ALL) == configured(db, name) == config


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_each_part_is_added_and_removed_on_a_queue_in_use(db: Any, name: str, combiner: str) -> None:
    """What is queued at the time counts in the parts that the queue has when it is combined, if it had any before."""
    cq.configure(db, name, combiner=combiner, buckets=2)
    expected = {"": 0}
    steps: list[tuple[dict[str, Any], set[str]]] = [
        ({"window": "60/5"}, {"", ".slices", ".window"}),
        ({"rollup": LEVELS}, {"", *PARTS}),
        ({"expire": 600}, {"", *PARTS}),
        ({"rollup": "1h:forever"}, {"", ".1h", ".slices", ".window"}),
        ({"window": False}, {"", ".1h"}),
        ({"window": "30/5", "rollup": "1m:1h,5m:forever"}, {"", ".1m", ".5m", ".slices", ".window"}),
        ({"window": False, "rollup": "none", "expire": False}, {""}),
    ]
    for number, (settings, parts) in enumerate(steps, 1):
        cq.configure(db, name, **settings)
        add(db, name, {"a": number})
        drain(db)
        combine: Callable[[int], int] = lambda old: (old + number) if combiner == "sum" else number  # noqa: B023, E731
        expected = {part: combine(expected.get(part, 0)) for part in parts}
        assert sums(db, name) == expected
        assert differences(db, name) == []
        add(db, name, {"a": -number})  # queued while the next part is configured
        if combiner == "sum":
            drain(db)
            add(db, name, {"a": number})
            drain(db)
    assert names(db) == [name]


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_a_width_changes_for_all_that_is_kept(db: Any, name: str, clock: Clock, combiner: str) -> None:
    cq.configure(db, name, combiner=combiner, window="60/5")
    add(db, name, {"old": 1})
    clock.now = START + 40
    add(db, name, {"new": 2})
    drain(db)
    seen = {}
    for width in ("30/5", "60/5", "90/5"):
        cq.configure(db, name, window=width)
        seen[width] = transact(db, lambda tr: dict(Window[str](name).items(tr).items))
    assert seen == {"30/5": {"new": 2}, "60/5": {"old": 1, "new": 2}, "90/5": {"old": 1, "new": 2}}

    cq.configure(db, name, window="30/5")
    for _ in range(3):
        drain(db)  # the workers delete what is not kept any more, so it does not come back
        clock.now += 4
    cq.configure(db, name, window="120/5")
    found = transact(db, lambda tr: dict(Window[str](name).items(tr, pending=True).items))
    assert found == {"new": 2}
    assert differences(db, name) == []


# Refusals


@pytest.mark.parametrize(("settings", "part"), [({"rollup": LEVELS}, ".1h"), ({"window": 60}, ".slices")])
def test_another_queue_of_the_name_of_a_part(db: Any, name: str, settings: Any, part: str) -> None:
    for foreign in (dict[str, Any](), {"key": (str, int), "expire": ExpirySpec(60, 1, "key")}):
        cq.configure(db, f"{name}{part}", **foreign)
        with pytest.raises(InvalidConfiguration, match="does not belong to queue"):
            cq.configure(db, name, **settings)
        assert names(db) == [f"{name}{part}"]
        admin.delete(db, f"{name}{part}")
    cq.configure(db, name)
    cq.configure(db, f"{name}{part}")
    with pytest.raises(InvalidConfiguration, match="does not belong to queue"):
        cq.configure(db, name, **settings)
    assert stored_config(db, name).level_names == []


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"combiner": "last", "window": 60}, InvalidConfiguration, "give the queue an expiry of 60 s"),
        ({"combiner": "maximum", "window": (1001, 1)}, InvalidConfiguration, "at most 1,000 slices"),
        ({"value": float, "window": (1001, 1)}, InvalidConfiguration, "at most 1,000 slices"),
        ({"window": (60, 7)}, InvalidConfiguration, "such as 10m/10s"),
        ({"rollup": "1m:1h,90s:1d"}, InvalidConfiguration, "multiple of the next shorter"),
        ({"expire": 0}, InvalidConfiguration, "expected a duration of whole seconds"),
    ],
)
def test_settings_that_cannot_be(db: Any, name: str, given: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        cq.configure(db, name, **given)
    assert names(db) == []


def test_the_slices_of_a_merged_window_keep_their_length(db: Any, name: str) -> None:
    config = configured(db, name, combiner="maximum", window="60/5")
    with pytest.raises(ConfigurationConflict, match="window 1m/5s -> 1m/6s"):
        cq.configure(db, name, window="60/6")
    assert stored_config(db, name) == config
    cq.configure(db, name, window=False)
    cq.configure(db, name, window="60/6")


CHANGES: list[Callable[[Any, str], object]] = [
    lambda db, level: cq.CombineQueue(level).add_now(db, {("a", 60): 1}),
    admin.purge,
    admin.delete,
    lambda db, level: admin.rebucket(db, level, 3),
    lambda db, level: cq.configure(db, level, window="60/5"),
    lambda db, level: cq.configure(db, level, rollup=LEVELS),
    lambda db, level: cq.configure(db, level, expire=600),
    lambda db, level: admin.limit(db, level, max_bytes=5),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_a_part_changes_only_with_its_queue(
    db: Any, name: str, change: Callable[[Any, str], object], combiner: str
) -> None:
    cq.configure(db, name, combiner=combiner, **ALL)
    for part in PARTS:
        before = stored_config(db, f"{name}{part}")
        with pytest.raises((InvalidConfiguration, ConfigurationConflict)):
            change(db, f"{name}{part}")
        assert stored_config(db, f"{name}{part}") == before


def test_observers_of_slices(db: Any, name: str) -> None:
    """The totals cannot lose their observer, nor miss what another observer refuses."""
    cq.configure(db, name, window=60)
    slices = f"{name}.slices"
    before = stored_config(db, slices)
    for act in (
        lambda: remove_observer(db, slices, "window_totals"),
        lambda: rebuild_observer(db, slices, "window_totals"),
        lambda: put_observer(db, slices, admin.ObserverSpec("window_totals", 1, {"into": slices})),
        lambda: put_observer(db, slices, top()),
    ):
        with pytest.raises(InvalidConfiguration):
            act()  # type: ignore[no-untyped-call]
    assert stored_config(db, slices) == before
    merged = f"{name}-merged"
    cq.configure(db, merged, combiner="maximum", window=60)
    with pytest.raises(InvalidConfiguration, match=rf"configure the observers of queue '{merged}.slices'"):
        put_observer(db, f"{merged}.window", top())
    put_observer(db, f"{merged}.slices", top())


# Observers of totals, and of levels


def test_the_totals_of_a_window_have_a_top_and_observers(db: Any, name: str, clock: Clock) -> None:
    """They hear what leaves the window; a change of the window keeps the observers, and what they have."""
    cq.configure(db, name, window="60/5")
    totals, heard = f"{name}.window", list[cq.Change]()
    app = cq.App()
    app.queue(totals, observers=[heard_by(heard)])
    app.configure(db, totals)
    put_observer(db, totals, top())
    add(db, name, {"a": 1, "b": 5})
    clock.now = START + 30
    add(db, name, {"a": 7})
    drain(db, app=app)
    assert top_of(db, totals) == [("a", 8), ("b", 5)]
    cq.configure(db, name, window="50/5", rollup=LEVELS)
    clock.now = START + 55
    drain(db, app=app)
    assert top_of(db, totals) == [("a", 7)]
    assert [each.name for each in stored_config(db, totals).observers] == ["heard_by", "top"]
    clock.now = START + 85
    drain(db, app=app)
    assert top_of(db, totals) == []
    assert [(change.key, change.old, change.new) for change in heard if change.key == "a"] == [
        ("a", None, 8), ("a", 8, 7), ("a", 7, None),
    ]  # fmt: skip


def heard_by(heard: list[cq.Change]) -> cq.Observer:
    return cq.Observer("heard_by", 1, lambda tr, changes: heard.extend(changes))


def top_of(db: Any, name: str) -> list[tuple[Any, Any]]:
    return [each[:2] for each in transact(db, lambda tr: Ranking[Any, Any](name).page(tr)).entries]


# Purge, delete, rebucket, priority


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
@pytest.mark.parametrize("combined", ["nothing", "the queue", "all"])
def test_a_purge_includes_all_parts(db: Any, name: str, clock: Clock, combiner: str, combined: str) -> None:
    """Also what is on its way from one part to another; and a slice from before it is subtracted from nothing."""
    cq.configure(db, name, combiner=combiner, buckets=2, **ALL)
    add(db, name, {"a": 1, "b": 2})
    if combined == "the queue":
        combine_all(db, name)
    elif combined == "all":
        drain(db)
        add(db, name, {"a": 10})
    admin.purge(db, name)
    assert purging_buckets(db, name)
    clock.now += 3
    add(db, name, {"a": 100})
    drain(db)
    assert not purging_buckets(db, name)
    assert sums(db, name) == dict.fromkeys(("", *PARTS), 100)
    assert differences(db, name) == []
    clock.now += 65
    drain(db)
    assert sums(db, name)[".slices"] == (0 if combiner == "sum" else 100)
    assert transact(db, lambda tr: Window[str](name).get(tr, "a")) is None
    assert_drained(db)


def test_rebucketing_includes_all_parts(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=2, **ALL)
    add(db, name, {"a": 1})
    combine_all(db, name)
    admin.rebucket(db, name, 5)
    add(db, name, {"a": 2})
    drain(db)
    for part in ("", *PARTS):
        config = stored_config(db, f"{name}{part}")
        assert (config.buckets, config.former) == (5, None)
    assert sums(db, name) == dict.fromkeys(("", *PARTS), 3)
    cq.configure(db, name, rollup="none")
    cq.configure(db, name, rollup=LEVELS)
    assert stored_config(db, f"{name}.1m").buckets == 5


def test_a_deleted_queue_leaves_no_parts(db: Any, name: str) -> None:
    cq.configure(db, name, **ALL)
    add(db, name, {"a": 1})
    combine_all(db, name)
    admin.delete(db, name)
    assert names(db) == []
    assert transact(db, lambda tr: tr.get_range(b"cq/q/", b"cq/q0").to_list()) == []
    with pytest.raises(QueueNotConfigured):
        add(db, name, {"a": 1})


def test_a_name_that_is_too_long_for_a_window_is_refused_with_its_limit(db: Any) -> None:
    name = "n" * 94
    cq.configure(db, name)
    with pytest.raises(InvalidConfiguration, match="give the queue a name of at most 93"):
        cq.configure(db, name, window="10s")
    cq.configure(db, "n" * 93, window="10s")
