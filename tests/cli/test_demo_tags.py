"""`cq demo tags`: exactly what a plain count of the events gives, though its processes are killed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cq
from cq import testing
from cq.cli.demos import tags
from cq.cli.demos.harness import DemoFailed, published
from cq.cli.demos.tags import TagEvent
from cq.errors import NotInStore
from cq.keys import QueueKeys, below
from cq.keys.top import CloudKeys
from cq.observers.top.cloud import CloudEntry
from cq.store.transact import transact
from tests.cli.conftest import Cli, Here
from tests.kit.queues import put, stored


def test_the_counts_are_those_of_the_file_whoever_is_killed(cli: Cli, demo_db: Any) -> None:
    rng = Random(3)
    lines, total = [], Counter[str]()
    for number in range(6_000):
        tag, by = f"täg {int(rng.paretovariate(1)) % 500}", rng.choice((1, 1, -1))
        total[tag] += by
        lines.append(json.dumps({"entity": f"e{number % 70}", "tag": tag, "by": by}) + "\n")
    (cli.folder / "events.jsonl").write_text("".join(lines))
    options = "--events events.jsonl --servers 2 --kill-every 0.5 --top 9 --seed 5 --json"

    ended = cli.run("demo", "tags", *options.split())

    assert (ended.status, ended.err) == (0, "seed 5\n")
    (found,) = ended.rows()
    expected = {tag: count for tag, count in total.items() if count}
    top = sorted(expected.items(), key=lambda item: (-item[1], item[0]))[:9]
    assert (found["seed"], found["increments"], found["tags"]) == (5, 6_000, len(expected))
    assert [(entry["key"], entry["score"]) for entry in found["cloud"]] == top
    assert dict(cq.CombineQueue("demo_tags").scan(demo_db)) == expected
    assert found["kills"] > 0
    assert found["versions"] > 0
    assert len(found["hot"]) == 5
    assert dict(cq.CombineQueue("demo_tags_shown").scan(demo_db))


def test_a_line_that_is_no_event_is_named(here: Here, cli: Cli) -> None:
    (cli.folder / "events.jsonl").write_text(
        '{"entity": "a", "tag": "b", "by": 1}\n\n{"entity": "a", "tag": 1}\n'
    )

    ended = here("demo", "tags", "--events", "events.jsonl", "--seed", "1")

    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith('cq: events.jsonl, line 3: expected {"entity": TEXT')


def test_generated_events_are_those_of_the_seed_and_lose_only_what_is_there() -> None:
    events = list(tags.generated(5_000, Random(1)))

    assert events == list(tags.generated(5_000, Random(1)))
    has: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entity, tag, by in events:
        has[entity][tag] += by
        assert has[entity][tag] in (0, 1)


def test_partitions_hold_all_events_of_an_entity_in_order() -> None:
    events = [TagEvent(f"entity {number % 10}", f"tag {number}", 1) for number in range(100)]

    parts = [[event.tag for event in part] for part in tags.by_entity(events, 3)]

    assert sorted(tag for part in parts for tag in part) == sorted(event.tag for event in events)
    for number in range(10):
        own = [event.tag for event in events if event.entity == f"entity {number}"]
        assert [tag for part in parts for tag in part if tag in own] == own


@pytest.fixture
def done(tmp_path: Path) -> Any:
    """A store in which a demo with the events [a, a, b] has come to its end."""
    db: Any = cq.open(f"embedded:{tmp_path / 'demo.db'}")
    tags.make_queue(db, 2)
    transact(db, lambda tr: cq.CombineQueue("demo_tags").add(tr, {"a": 2, "b": 1}))
    testing.drain(db, "demo_tags")
    yield db
    db.close()


RIGHT = (CloudEntry("a", 2, 9), CloudEntry("b", 1, 1))


@pytest.mark.parametrize(
    ("counts", "cloud", "said"),
    [
        ({"a": 2, "b": 1}, RIGHT, None),
        ({"a": 3, "b": 1}, RIGHT, "'a': 2 instead of 3"),
        ({"a": 2}, RIGHT, "'b': 1 instead of None"),
        ({"a": 2, "b": 1}, RIGHT[:1], "not the top"),
        ({"a": 2, "b": 1}, RIGHT[::-1], "not the top"),
    ],
)
def test_a_result_that_is_wrong_is_named(
    done: Any, counts: dict[str, int], cloud: tuple[CloudEntry, ...], said: str | None
) -> None:
    if said is None:
        tags.check_result(done, counts, cloud, 2)
    else:
        with pytest.raises(DemoFailed, match=said):
            tags.check_result(done, counts, cloud, 2)


def test_a_decayed_score_that_is_wrong_is_named(done: Any) -> None:
    events = [TagEvent("e", "a", 1), TagEvent("e", "a", -1), TagEvent("e", "b", 1), TagEvent("f", "a", 1)]
    updates = [
        ("a", tags.HALF_LIFE.update(at=0)),
        ("b", tags.HALF_LIFE.update(at=2)),
        ("a", tags.HALF_LIFE.update(at=3)),
    ]
    transact(done, lambda tr: cq.CombineQueue(tags.HOT).add(tr, updates))
    testing.drain(done, tags.HOT)

    assert tags.check_hot(done, [events]) == ["a", "b"]
    for wrong in (events[:3], [*events, TagEvent("f", "c", 1)], events[:2]):
        with pytest.raises(DemoFailed, match=r"decayed score|tags with a score"):
            tags.check_hot(done, [wrong])


def test_a_wrong_number_of_versions_of_a_tag_is_named(done: Any) -> None:
    cloud = published(done, "demo_tags")
    assert cloud is not None
    transact(done, lambda tr: cq.CombineQueue(tags.SHOWN).add(tr, {"a": 1, "b": 1}))

    tags.check_shown(done, [cloud])
    with pytest.raises(DemoFailed, match="versions that tags were seen in"):
        tags.check_shown(done, [cloud, cloud])


@pytest.mark.parametrize("missing", [1, 2])
def test_a_version_that_is_not_kept_is_named(done: Any, missing: int) -> None:
    for _ in range(2):
        transact(done, lambda tr: cq.CombineQueue("demo_tags").add(tr, {"b": 5}))
        testing.drain(done, "demo_tags")
    newest = published(done, "demo_tags")
    assert newest is not None
    tags.check_versions(done, newest, [])
    keys = CloudKeys(QueueKeys("demo_tags"))
    rows = stored(done, below(keys.all_kept()))
    assert len(rows) == newest.version == 3
    put(done, {rows[missing - 1][0]: None})

    with pytest.raises((DemoFailed, NotInStore), match=r"is not kept|no cloud"):
        tags.check_versions(done, newest, [])


def test_a_queue_of_an_earlier_demo_is_made_anew(done: Any) -> None:
    cloud = published(done, "demo_tags")
    assert cloud is not None
    tags.check_result(done, {"a": 2, "b": 1}, cloud.entries, 2)

    tags.make_queue(done, 2)

    assert dict(cq.CombineQueue("demo_tags").scan(done)) == {}
    assert published(done, "demo_tags") is None
