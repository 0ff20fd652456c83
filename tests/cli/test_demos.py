"""The demos: exactly what a recount gives, though their processes are killed, and what differs is found."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

import pytest

import cq
from cq import deciders, testing
from cq.cli.demos import stock, tags
from cq.cli.demos.chat import FEED, Action, MessageRecount, act, inbox_of
from cq.cli.demos.harness import DemoCrew, DemoDiffers, DemoFailed, DemoRun, Steps, published, workers
from cq.cli.demos.stock import Purchase, check_bounds, counted, make_queues, recount, run_buyer
from cq.cli.demos.tags import TagEvent
from cq.cli.shared.processes import ProcessFailed
from cq.errors import InvalidData, NotInStore
from cq.feeds.feed import Feed
from cq.keys import QueueKeys, below
from cq.keys import membership as workerkeys
from cq.keys.feed import encode_name
from cq.keys.top import CloudKeys
from cq.observers.top.cloud import CloudEntry
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.cli.conftest import Cli, Here
from tests.kit.processes import run_code
from tests.kit.queues import put, stored
from tests.kit.workers import running

# The processes


@dataclass(frozen=True)
class Appender:
    """Appends lines to a file, and goes on after those that are there."""

    path: Path
    lines: int

    def run(self, stop: Event) -> None:
        with self.path.open("a+") as file:
            file.seek(0)
            for number in range(len(file.readlines()), self.lines):
                file.write(f"{number}\n")
                file.flush()
                stop.wait(0.002)


CALM = DemoRun(1, math.inf, Path(), Random(1))
"""Without kills."""


def failing(stop: Event) -> None:
    raise InvalidData("told")


def test_processes_that_are_killed_go_on_until_all_is_done(tmp_path: Path) -> None:
    roles = {name: Appender(tmp_path / name, 2_000).run for name in ("one", "two")}
    demo = DemoRun(1, 0.5, tmp_path, Random(1))
    with DemoCrew(roles, demo) as crew:
        crew.run(lambda: demo.kills.total() >= 2, seconds=60)
        crew.spare()
        crew.run(lambda: crew.ended == {"one", "two"}, seconds=60)
    for name in roles:
        assert (tmp_path / name).read_text().split() == [str(number) for number in range(2_000)]


def test_a_process_that_fails_ends_the_demo() -> None:
    with (
        pytest.raises(ProcessFailed, match="'bad' has failed: told"),
        DemoCrew({"bad": failing}, CALM) as crew,
    ):
        crew.run(lambda: False, seconds=60)


def test_what_takes_too_long_fails() -> None:
    with pytest.raises(DemoFailed, match="not done"), DemoCrew({}, CALM) as crew:
        crew.run(lambda: False, seconds=0.0)


def test_workers_combine_and_stop_in_good_order(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/store.db"
    db = cq.open(url)
    cq.configure(db, "words", key=str, value=int, combiner="sum")
    queue = cq.CombineQueue("words")
    cq.transact(db, lambda tr: queue.add(tr, {"a": 2}))
    with DemoCrew(workers(1, url, []), CALM) as crew:
        crew.run(lambda: cq.transact(db, lambda tr: queue.get(tr, "a")) == 2, seconds=60)
    # It has signed off, which one that is killed does not.
    assert not cq.transact(db, lambda tr: tr.get_range(*workerkeys.workers()).to_list())


HOLDING = """
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
import math
from random import Random
from cq.cli.demos.harness import DemoCrew, DemoRun

@dataclass(frozen=True)
class Holder:
    path: Path

    def run(self, stop):
        semaphore = multiprocessing.Semaphore(0)  # as the binding takes for each thread that waits
        is_second = self.path.exists()
        self.path.touch()
        if not is_second:
            stop.wait()

def main(path):
    demo = DemoRun(1, math.inf, path.parent, Random(1))
    with DemoCrew({"holder": Holder(path).run}, demo) as crew:
        crew.run(path.exists, seconds=60)
        crew._kill("holder")
        crew.run(lambda: "holder" in crew.ended, seconds=60)
"""


def test_a_killed_process_leaves_no_semaphore(tmp_path: Path) -> None:
    (tmp_path / "holding.py").write_text(HOLDING)

    code = "import holding; from pathlib import Path; holding.main(Path('held'))"
    assert run_code(code, cwd=tmp_path) == (0, "", "")


# Cells


@pytest.mark.sampled(3, among="demos")
def test_users_are_where_they_are_said_to_be_whoever_is_killed(cli: Cli) -> None:
    command = ("demo", "cells", "--number", "60", "--users", "5", "--cells", "3", "--movers", "1")

    ended = cli.run(
        *command,
        *("--deletions", "1", "--writers", "1", "--kill-every", "1.5", "--seed", "5"),
        *("--folder", "kept", "--json"),
    )

    assert (ended.status, ended.err) == (0, "seed 5\n")
    (found,) = ended.rows()
    assert (found["seed"], found["users"] + found["deleted"]) == (5, 5)
    assert found["deleted"] or found["writes"] == 60 + 25 * found["adopted"]
    assert (sum(found["cells"].values()), found["cells"]["cell-1"]) == (found["users"], 0)
    listed = cli.run("cells", "list", "--directory", "embedded:kept/directory.db", "--json").rows()
    assert {row["cell"]: row["users"] for row in listed} == found["cells"]


def test_a_store_that_has_cells_is_left_alone(here: Here, cli: Cli) -> None:
    assert here("cells", "add", "own", "embedded:own.db").status == 0

    ended = here("demo", "cells", "--store", cli.url)

    assert (ended.status, ended.out) == (2, "")
    assert "the store has cells, which the demo must not use" in ended.err


# Chat


@pytest.mark.sampled(3, among="demos")
def test_messages_are_as_recounted_whoever_is_killed(cli: Cli) -> None:
    sizes = ("--users", "4", "--groups", "2", "--messages", "60", "--flood", "600")
    processes = ("--senders", "1", "--workers", "1", "--kill-every", "0.5")

    ended = cli.run("demo", "chat", *sizes, *processes, "--seed", "7", "--json")

    assert (ended.status, ended.err) == (0, "seed 7\n")
    (found,) = ended.rows()
    assert found["messages"] > 600
    assert found["received"] > 600
    assert found["changes"] > 0
    assert found["seen"] == 2 * found["received"]
    assert found["kills"] > 0
    assert not (cli.folder / "cli.db").exists()
    shown = cli.run("feed", "read", "demo_chat", "user 1", "--limit", "1", "--store", "embedded:cq-demo.db")
    assert (shown.status, len(shown.out.splitlines())) == (0, 1)


ACTIONS = [
    Action("sender", 0, "join", "g", "user 1"),
    Action("sender", 1, "group", "g"),
    Action("sender", 2, "join", "g", "user 2"),
    Action("sender", 3, "group", "g"),
    Action("sender", 4, "message", "user 1"),
    Action("sender", 5, "edit", "g", changes=1, is_group=True),
    Action("sender", 6, "recall", "user 1", changes=4),
    Action("sender", 7, "edit", "user 1", changes=4),  # too late
]


@pytest.fixture
def feed(db: Any, tmp_path: Path) -> Feed:
    made = Feed(FEED)
    made.configure(db, numbers=True)
    steps = Steps.stored(tmp_path / "steps", b"position", ACTIONS)
    for place, action in enumerate(ACTIONS):
        for _ in range(2):  # as after a commit of which nobody knows
            transact(db, partial(steps.once, act, [(place, action)]))
    assert transact(db, steps.done) == len(ACTIONS)
    Worker(db).drain()
    return made


def test_what_was_done_is_not_done_again(db: Any, feed: Feed) -> None:
    recount = MessageRecount(db)

    assert (recount.messages, recount.changes) == (3, 2)
    for user, number in (("user 1", 5), ("user 2", 1), ("sender", 2)):
        inbox = list(inbox_of(db, user))
        recount.compare(user, inbox)
        assert len(inbox) == number


def test_a_difference_is_told(db: Any, feed: Feed) -> None:
    recount = MessageRecount(db)
    inbox = list(inbox_of(db, "user 1"))
    edited = next(each for each in inbox if each.edited and each.changes is None)
    former = [replace(each, body=["sender", 1]) if each is edited else each for each in inbox]
    for wrong in (inbox[1:], [*inbox, inbox[-1]], [inbox[1], inbox[0], *inbox[2:]], former):
        with pytest.raises(DemoFailed, match="user 1"):
            recount.compare("user 1", wrong)
    transact(db, lambda tr: tr.clear(feed.keys.message(encode_name("", "user 1"), inbox[0].id)))
    with pytest.raises(DemoFailed):
        recount.compare("user 1", list(inbox_of(db, "user 1")))


# Stock


CAP: Final = 8


@pytest.mark.sampled(3, among="demos")
def test_shops_and_budgets_are_as_recounted_whoever_is_killed(cli: Cli) -> None:
    """It takes the time of a hold: at its end all holds have expired."""
    sizes = ("--processes", "2", "--workers", "1", "--cap", "43", "--for", "1s", "--kill-every", "0.4")

    ended = cli.run("demo", "stock", *sizes, "--seed", "7", "--json")

    assert (ended.status, ended.err) == (0, "seed 7\n")
    (found,) = ended.rows()
    assert found["kills"] > 0
    assert found["decisions"] > 0
    assert found["cap"] == 40 * found["days"]
    assert found["spent"] == sum(each["price"] * each["sold"] for each in found["shops"].values())
    assert found["usable"] == 1
    assert not (cli.folder / "cli.db").exists()


@pytest.fixture
def shops(cli: Cli, db: Any) -> Any:
    """The store of the command line with the queues, and a worker."""
    make_queues(db, CAP)
    with running(Worker(db)):
        yield db


def go_on(cli: Cli, db: Any, purchase: Purchase) -> Counter[tuple[str, int]]:
    """What a buyer counts that was killed after it had asked for a step of a purchase, when the shops have closed."""
    transact(db, lambda tr: tr.set(stock._CLOSED, b""))
    transact(db, purchase.asked)
    run_buyer(Event(), url=cli.url, buyer=purchase.buyer, seed=1)
    (stored,) = transact(db, stock.stored_purchases)
    assert (stored.step, stored.ticket) == ("", "")
    return counted(db)


def test_a_purchase_goes_on_after_a_kill(cli: Cli, shops: Any) -> None:
    stock._budget.ask_now(shops, 1, deciders.reserve(1, "0-5", ttl=60))
    counts = go_on(cli, shops, Purchase(0, 5, 1, "north", "buy", ""))
    assert counts == {("north", 1): -1, ("charged", 1): 1, ("decisions", 1): 2}
    found = recount(shops, CAP)
    assert (found["spent"], found["usable"]) == (1, 1)


def test_a_piece_is_put_back_if_its_hold_has_expired(cli: Cli, shops: Any) -> None:
    counts = go_on(cli, shops, Purchase(0, 5, 1, "north", "buy", ""))
    assert +counts == {("put back", 1): 1, ("decisions", 1): 3}
    assert recount(shops, CAP)["put_back"] == 1


def test_the_hold_of_a_killed_buyer_is_abandoned(cli: Cli, shops: Any) -> None:
    counts = go_on(cli, shops, Purchase(0, 5, 1, "south", "reserve", ""))
    assert counts == {("abandoned", 1): 1, ("decisions", 1): 1}
    with pytest.raises(DemoDiffers, match=r"only 0\.0% of the budgets were usable"):
        recount(shops, CAP)  # as it has not expired yet


def test_differences_are_told(cli: Cli, shops: Any) -> None:
    go_on(cli, shops, Purchase(0, 5, 1, "north", "buy", ""))
    check_bounds(shops, CAP)
    with pytest.raises(DemoDiffers, match="the shop north has 4 of 2 pieces"):
        check_bounds(shops, CAP // 2)
    stock._stock.ask_now(shops, ("south", 1), -1)
    with pytest.raises(DemoDiffers, match=r"the pieces that are left: .*'south', 1.: 3 instead of None"):
        recount(shops, CAP)


# Tags


@pytest.mark.sampled(3, among="demos")
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


@pytest.mark.parametrize("missing", [1, 2])
def test_a_version_that_is_not_kept_is_named(done: Any, missing: int) -> None:
    for _ in range(2):
        transact(done, lambda tr: cq.CombineQueue("demo_tags").add(tr, {"b": 5}))
        testing.drain(done, "demo_tags")
    newest = published(done, "demo_tags")
    assert newest is not None
    tags.check_versions(done, newest, {})
    keys = CloudKeys(QueueKeys("demo_tags"))
    rows = stored(done, below(keys.all_kept))
    assert len(rows) == newest.version == 3
    put(done, {rows[missing - 1][0]: None})

    with pytest.raises((DemoFailed, NotInStore), match=r"is not kept|no cloud"):
        tags.check_versions(done, newest, {})


def test_a_queue_of_an_earlier_demo_is_made_anew(done: Any) -> None:
    cloud = published(done, "demo_tags")
    assert cloud is not None
    tags.check_result(done, {"a": 2, "b": 1}, cloud.entries, 2)

    tags.make_queue(done, 2)

    assert dict(cq.CombineQueue("demo_tags").scan(done)) == {}
    assert published(done, "demo_tags") is None
