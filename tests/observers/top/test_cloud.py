"""The published cloud: what is published, when, by whom, and how readers hear of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq import runtime
from cq.encoding import codec
from cq.errors import CorruptData, InvalidConfiguration, NotInStore, NotReady
from cq.keys import prefix_end
from cq.keys.top import CloudKeys, TopKeys
from cq.observers.scheduling.runner import DONE
from cq.observers.top.cloud import (
    CLOUD_BYTES,
    Cloud,
    CloudEntry,
    CloudHead,
    CloudReader,
    digest_of,
    encode_entries,
)
from cq.observers.top.index import LAST_PART, top
from cq.observers.top.publisher import BUILDING_SECONDS, MARKS
from cq.observers.top.weights import weights
from cq.store.transact import transact
from tests.kit.faults import Calls, WrappedDatabase
from tests.kit.queues import put
from tests.observers.top.tops import FIRST, ToldTop, publish, publisher

SECONDS = 60.0


def cloud(told: ToldTop, group: str | None = None) -> Cloud:
    found: Cloud = told.read(CloudReader(told.name, group).read)
    return found


def shown(told: ToldTop, group: str | None = None) -> tuple[int, list[tuple[Any, Any]]]:
    """Version, and keys with their scores."""
    found = cloud(told, group)
    return found.version, [(entry.key, entry.score) for entry in found.entries]


def piece_keys(told: ToldTop) -> int:
    """How many pieces of clouds are stored."""
    begin = CloudKeys(told.keys).head(None)[:-3] + b"p"
    return len(transact(told.db, lambda tr: tr.get_range(begin, prefix_end(begin)).to_list()))


def test_what_is_published_is_the_top_with_its_weights_and_time(db: Any) -> None:
    told, before = ToldTop(db, n=3, every=0, key=(str, int)), datetime.now(UTC)
    told.tell({("a", 1): 1, ("b", 1): 10, ("c", 1): Decimal("100.0"), ("d", 1): 0.5})

    assert publish(publisher(told)) == DONE

    found = cloud(told)
    assert (found.queue, found.group, found.version) == (told.name, None, 1)
    assert found.entries == (
        CloudEntry(("c", 1), Decimal("100.0"), 9),
        CloudEntry(("b", 1), 10, 5),
        CloudEntry(("a", 1), 1, 1),
    )
    assert before - timedelta(seconds=1) <= found.created <= datetime.now(UTC)


def test_a_new_version_comes_only_when_the_cloud_differs(db: Any) -> None:
    told = ToldTop(db, n=2, every=0)
    task = publisher(told)
    told.tell({"a": 9, "b": 8})
    publish(task)
    told.tell({"c": 1})
    publish(task)
    assert shown(told) == (1, [("a", 9), ("b", 8)])

    told.tell({"a": None})
    publish(task)
    assert shown(told) == (2, [("b", 8), ("c", 1)])

    told.tell({"a": 9})
    told.tell({"a": None})
    publish(task)
    assert shown(told)[0] == 2


def test_nothing_is_left_to_do_once_all_is_published(db: Any) -> None:
    told = ToldTop(db, every=0)
    told.tell({"a": 1})
    task = publisher(told)
    assert transact(db, lambda tr: tr.get(task.notification).present())

    assert publish(task) == DONE
    assert task.run() == DONE

    assert not transact(db, lambda tr: tr.get(task.notification).present())
    assert [key[:1] for key in told.stored()] == [b"a", b"c", b"i"]


class ClocksAhead(runtime.Machine):
    """Clocks that are so many seconds ahead; the one that is never set just as much if `steady`."""

    def __init__(self, seconds: int, *, steady: bool) -> None:
        self.seconds, self.steady = seconds, steady

    def time_ns(self) -> int:
        return super().time_ns() + self.seconds * 10**9

    def monotonic(self) -> float:
        return super().monotonic() + (self.seconds if self.steady else 0)


def test_a_cloud_is_published_once_in_the_time_configured(db: Any) -> None:
    """By this worker, by another, and by one that starts anew; and what came meanwhile is published then."""
    told = ToldTop(db, every=60)
    task = publisher(told)
    told.tell({"a": 1})
    publish(task)
    told.tell({"a": 2})

    for worker in (task, publisher(told)):
        assert 50 < publish(worker) <= 60
    assert shown(told) == (1, [("a", 1)])

    with runtime.using(ClocksAhead(61, steady=True)):
        assert publish(task) == DONE
    assert shown(told) == (2, [("a", 2)])


def test_a_clock_set_back_does_not_stop_publishing(db: Any) -> None:
    told = ToldTop(db, every=60)
    told.tell({"a": 1})
    publish(publisher(told))
    told.tell({"a": 2})

    with runtime.using(ClocksAhead(-3600, steady=False)):
        assert publish(publisher(told)) == DONE
    assert shown(told) == (2, [("a", 2)])


def test_readers_need_one_read(db: Any) -> None:
    told = ToldTop(db, every=0)
    told.tell({f"key {number}": number for number in range(100)})
    publish(publisher(told))
    tr = Calls(db.create_transaction())

    assert len(CloudReader(told.name).read(tr).entries) == 100
    assert tr.made == ["get"]


def test_a_cloud_beyond_one_value_is_in_pieces_and_old_ones_are_trimmed(db: Any) -> None:
    told = ToldTop(db, n=1000, every=0)
    task = publisher(told)
    for number in range(3):
        told.tell({f"{key:0200}": number for key in range(1000)})
        publish(task)
        assert shown(told) == (number + 1, told.order())
        assert piece_keys(told) == 3
    told.tell(dict.fromkeys(list(told.values)[10:]))
    publish(task)

    assert shown(told) == (4, told.order())
    assert piece_keys(told) == 0


def test_a_cloud_of_very_long_keys_has_fewer_of_them(db: Any) -> None:
    told = ToldTop(db, n=100, every=0)
    for number in range(10):
        told.tell({f"{key:07000}": key for key in range(10 * number, 10 * number + 10)})
    publish(publisher(told))

    _, entries = shown(told)
    assert entries == told.order()[: len(entries)]
    assert len(entries) == CLOUD_BYTES // 7010


def test_groups_have_clouds_of_their_own(db: Any) -> None:
    told = ToldTop(db, every=0, group=lambda key, value: key[0])
    task = publisher(told)
    told.tell({"a1": 1, "a2": 2, "b1": 1})
    publish(task)
    told.tell({"b1": 3})
    publish(task)
    told.tell({"b1": None})
    publish(task)

    assert shown(told, "a") == (1, [("a2", 2), ("a1", 1)])
    assert shown(told, "b") == (3, [])
    with pytest.raises(NotReady, match="group 'c' has been published"):
        cloud(told, "c")


def test_more_groups_than_one_step_takes_are_published_in_several(db: Any) -> None:
    told = ToldTop(db, every=0, group=lambda key, value: key)
    names = [f"{number:03}" for number in range(MARKS + 5)]
    told.tell(dict.fromkeys(names, 1))
    task = publisher(told)

    assert [task.run(), task.run()] == [0.0, DONE]
    assert [shown(told, name)[0] for name in names] == [1] * len(names)


def test_a_change_during_publication_is_published_afterwards(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that it leaves is not the one that was read."""
    told = ToldTop(db, every=0)
    told.tell({"a": 1})
    original = encode_entries
    late: Iterator[dict[str, int]] = iter([{"a": 2}])

    def encode(entries: Any) -> bytes:
        for updates in late:
            told.tell(updates)
        return original(entries)

    monkeypatch.setattr("cq.observers.top.cloud.encode_entries", encode)
    task = publisher(told)
    assert publish(task) == DONE
    assert shown(told) == (1, [("a", 1)])
    assert transact(db, lambda tr: tr.get(task.notification).present())

    publish(task)
    assert shown(told) == (2, [("a", 2)])


# Waiting


def test_a_wait_ends_when_there_is_a_newer_version(db: Any) -> None:
    told = ToldTop(db, every=0)
    task, reader = publisher(told), CloudReader(told.name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait, db, 0, SECONDS)  # also for the first
        told.tell({"a": 1})
        publish(task)
        first = waiting.result()
        waiting = pool.submit(reader.wait, db, 1, SECONDS)
        time.sleep(0.05)
        told.tell({"a": 2})
        publish(task)
        second = waiting.result()

    assert first is not None and first.version == 1  # noqa: PT018 - the type checker wants it so
    assert second is not None and second.entries == (CloudEntry("a", 2, 5),)  # noqa: PT018
    assert reader.wait(db, 1) == second  # at once
    assert reader.wait(db) == second


def test_a_wait_ends_when_its_time_is_over(db: Any) -> None:
    told = ToldTop(db, every=0)
    reader = CloudReader(told.name)
    told.tell({"a": 1})
    publish(publisher(told))

    assert reader.wait(db, 1, timeout=0.05) is None
    assert reader.wait(db, 1, timeout=0) is None
    assert reader.wait(db, 0, timeout=0) is not None


def test_a_wait_reads_once_for_each_event(db: Any) -> None:
    """Nothing is polled."""
    told = ToldTop(db, every=0)
    transactions: list[Any] = []

    class Counted(WrappedDatabase):
        def create_transaction(self) -> Any:
            transactions.append(db.create_transaction())
            return transactions[-1]

    assert CloudReader(told.name).wait(Counted(db), 0, timeout=0.3) is None
    assert len(transactions) == 1


def test_readers_are_told_what_is_missing(db: Any, name: str) -> None:
    cq.configure(db, name)
    told = ToldTop(db)

    with pytest.raises(NotReady, match=r"no cloud of queue .* has been published yet"):
        cloud(told)
    with pytest.raises(InvalidConfiguration, match="keeps no top"):
        transact(db, CloudReader(name).read)
    with pytest.raises(cq.errors.QueueNotConfigured):
        CloudReader("nobody").wait(db)


def test_readers_of_groups_that_there_are_not_are_told_so(db: Any) -> None:
    plain, grouped = ToldTop(db), ToldTop(db, group=lambda key, value: key)

    with pytest.raises(InvalidConfiguration, match="is kept in groups"):
        cloud(grouped)
    with pytest.raises(InvalidConfiguration, match="is not kept in groups"):
        CloudReader(plain.name, "a").wait(db)


def test_a_top_without_clouds_is_told_so(db: Any, name: str) -> None:
    cq.configure(db, name, key=(str, int), observers=[top(group=LAST_PART)])
    for group in (None, "1"):
        reader = CloudReader(name, group)
        with pytest.raises(NotInStore, match="has no clouds"):
            transact(db, reader.read)
        with pytest.raises(NotInStore, match="has no clouds"):
            reader.wait(db)
    with pytest.raises(InvalidConfiguration, match="has no clouds"):
        top(group=LAST_PART, keep="1h")


def test_a_cloud_of_another_format_is_refused(db: Any) -> None:
    told = ToldTop(db)
    head = CloudKeys(told.keys).head(None)
    too_many_pieces = CloudHead(1, 1, b"", 11, b"").to_bytes()
    for stored in (codec.encode([2, 1, 1, b"", 0, b""]), codec.encode("x"), b"\xff", too_many_pieces):
        transact(db, lambda tr: tr.set(head, stored))  # noqa: B023
        with pytest.raises(CorruptData):
            cloud(told)


SCRIPT = '1"><script>alert(1)</script>'


@pytest.mark.parametrize(
    "entries",
    [
        [["a", 1, SCRIPT]],
        [["a", 1, 0]],
        [["a", 1, 10]],
        [["a", 1, True]],
        [["a", 1, 5.0]],
        [["a", SCRIPT, 5]],
        [["a", float("nan"), 5]],
        [["a", True, 5]],
        [["a", None, 5]],
        [[{"a": 1}, 1, 5]],
        [[[], 1, 5]],
        [[["a", [SCRIPT]], 1, 5]],
        [[None, 1, 5]],
        [["a", 1]],
        ["abc"],
        {"abc": 1},
        [["a", 1, 5]] * 10_001,
    ],
    ids=lambda entries: codec.brief(entries)[:40],
)
def test_forged_entries_are_refused(db: Any, entries: Any) -> None:
    """Each reader may rely on their types and ranges, whoever has written them."""
    told = ToldTop(db)
    data = codec.encode(entries)
    head = CloudKeys(told.keys).head(None)
    transact(db, lambda tr: tr.set(head, CloudHead(1, 1, digest_of(data), 0, data).to_bytes()))

    with pytest.raises(CorruptData, match="cq verify --repair"):
        cloud(told)
    with pytest.raises(CorruptData):
        CloudReader(told.name).wait(db)


def test_a_forged_score_of_the_top_is_not_published(db: Any) -> None:
    told = ToldTop(db, every=0)
    told.tell({"a": 1})
    place = TopKeys(told.keys, told.generation).entries(None)

    for forged in (2, SCRIPT, float("nan"), [1]):
        rows = transact(db, lambda tr: tr.get_range(place, prefix_end(place)).to_list())
        put(db, {row.key: codec.encode(forged) for row in rows})
        with pytest.raises(CorruptData):
            publish(publisher(told))


# Other generations of the top


def test_a_top_that_is_being_built_is_not_published(db: Any) -> None:
    told = ToldTop(db, every=0)
    transact(db, lambda tr: tr.clear(told.keys.observer_current("top")))
    told.tell({"a": 1})
    task = publisher(told)

    assert task.run() == BUILDING_SECONDS
    with pytest.raises(NotReady, match="being built"):
        cloud(told)
    told.switch(told.spec, FIRST)
    assert publish(task) == DONE
    assert shown(told) == (1, [("a", 1)])


def test_versions_go_on_when_another_generation_takes_over(db: Any) -> None:
    """And what the new one has no group for is shown empty."""
    told = ToldTop(db, every=0, group=lambda key, value: key[0])
    old = publisher(told)
    told.tell({"a1": 1, "b1": 1})
    publish(old)
    told.tell({"a1": 2})  # marked, and not published by the old one any more

    told.functions["group"] = lambda key, value: "a" + key[1] if key[0] == "a" else None
    told.switch(top(every=0, group=told.functions["group"], version=2), FIRST + 1)
    values, told.values = told.values, {}
    told.tell(values)
    assert old.run() == BUILDING_SECONDS
    publish(publisher(told))

    assert shown(told, "a1") == (1, [("a1", 2)])
    assert shown(told, "a") == (2, [])
    assert shown(told, "b") == (2, [])
    assert publish(publisher(told)) == DONE


def test_more_clouds_than_are_marked_at_once_are_taken_over(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cq.observers.top.publisher._HEADS", 2)
    told = ToldTop(db, every=0, group=lambda key, value: key)
    told.tell(dict.fromkeys("abcde", 1))
    publish(publisher(told))
    told.switch(top(every=0, group=told.functions["group"], version=2), FIRST + 1)
    told.values = {}
    told.tell({"x": 1})
    publish(publisher(told))

    assert [shown(told, group) for group in "abcdex"] == [(2, [])] * 5 + [(1, [("x", 1)])]


def test_clouds_become_empty_when_the_next_generation_has_no_entries(db: Any) -> None:
    """No pass writes anything then: the worker that gets the task looks for them."""
    told = ToldTop(db, every=0)
    told.tell({"a": 1})
    publish(publisher(told))
    told.functions["score"] = lambda key, value: None
    told.switch(top(every=0, score=told.functions["score"], version=2), FIRST + 1)
    task = publisher(told)
    assert task.run() == DONE

    transact(db, task.prepare)

    assert publish(task) == DONE
    assert shown(told) == (2, [])


# Weights


@given(st.lists(st.integers() | st.floats(allow_nan=False) | st.decimals(allow_nan=False), max_size=20))
def test_weights_rise_with_scores_from_1_to_9(scores: list[Any]) -> None:
    found = weights(scores)

    assert set(found) <= set(range(1, 10))
    pairs = sorted(zip(scores, found, strict=True), key=lambda pair: pair[0])
    assert [weight for _, weight in pairs] == sorted(found)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], []),
        ([7, 7], [5, 5]),
        ([1, 2, 4, 8, 16], [1, 3, 5, 7, 9]),
        ([0, 1, 2, 4], [1, 3, 5, 9]),
        ([float("-inf"), 1, 100, float("inf")], [1, 1, 9, 9]),
        ([float("inf")], [9]),
        ([10**5000, 10**2500, 1], [9, 5, 1]),
    ],
)
def test_weights_are_logarithmic_above_zero_and_linear_elsewhere(
    scores: list[Any], expected: list[int]
) -> None:
    assert weights(scores) == expected
