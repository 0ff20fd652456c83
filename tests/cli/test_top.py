"""`cq top` and `cq cloud`: what they print, and the page they write."""

from __future__ import annotations

import json
import os
import signal
import stat
from typing import Any

import pytest

import cq
from cq.config.queue import ObserverConfig
from cq.observers.top.index import observer, top
from cq.observers.top.publisher import Publisher
from cq.store.transact import transact
from tests.cli.conftest import Cli, Here
from tests.kit.clocks import set_clock
from tests.kit.processes import SECONDS
from tests.kit.queues import configured


class Words:
    """The queue `words` with a top; values are told and clouds published in this process."""

    def __init__(self, db: Any, **settings: Any) -> None:
        self.db = db
        self.spec = top(every=0, **settings)
        self.config = configured(db, "words", observers=[self.spec])
        self.observer = ObserverConfig(
            "top", 1, dict(self.spec.settings), self.config.observers[0].generation
        )
        self.group = settings.get("group")

    def tell(self, **values: int) -> None:
        """New keys with their values; then the cloud is published."""
        changes = [cq.Change(key, None, value) for key, value in values.items()]
        observe = observer(self.config, self.spec.settings, self.observer.generation, group=self.group)
        transact(self.db, lambda tr: observe(tr, changes))
        task = Publisher(self.db, self.config, self.observer)
        while task.run() >= 0.0:
            pass


def test_the_top_and_the_bottom(here: Here, db: Any) -> None:
    Words(db).tell(c=1, a=3, b=3, d=0)

    assert here("top", "words") == (0, "a\t3\nb\t3\nc\t1\nd\t0\n", "")
    assert here("top", "words", "-n", "1").out == "a\t3\n"
    assert here("top", "words", "--bottom", "-n", "2").out == "d\t0\nc\t1\n"
    assert here("top", "words", "-n", "1", "--json").rows() == [{"key": "a", "score": 3}]


def test_groups(here: Here, db: Any) -> None:
    Words(db, group=lambda key, value: key[0]).tell(a1=1, a2=2, b1=5)

    assert here("top", "words", "--group", "a").out == "a2\t2\na1\t1\n"
    assert here("top", "words", "--group", "c") == (0, "", "")
    assert here("top", "words", "--groups").out == "a\t2\nb\t1\n"
    assert here("top", "words", "--groups", "--json").rows()[0] == {"group": "a", "count": 2}
    assert here("cloud", "words", "--group", "b", "--json").rows()[0]["group"] == "b"


def test_the_cloud(here: Here, db: Any) -> None:
    Words(db).tell(a=100, b=10, c=1)

    lines = here("cloud", "words").out.splitlines()
    assert lines[0].startswith("version 1, 20")
    assert lines[1:] == ["9\ta\t100", "5\tb\t10", "1\tc\t1"]
    (found,) = here("cloud", "words", "--json").rows()
    assert found["version"] == 1
    assert found["entries"][0] == {"key": "a", "score": 100, "weight": 9}


def test_a_page_is_written_whole(here: Here, db: Any, cli: Cli) -> None:
    Words(db).tell(a=1)
    page = cli.folder / "words.html"

    assert here("cloud", "words", "--html", "words.html") == (
        0,
        "",
        "cq cloud: wrote version 1 to words.html\n",
    )
    assert page.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(page.stat().st_mode) == 0o644
    assert here("cloud", "words", "--html", "-").out == page.read_text()
    assert not [name for name in os.listdir(cli.folder) if name.startswith(".")]


def test_following_shows_each_version_as_it_comes(cli: Cli, db: Any) -> None:
    words = Words(db)
    following = cli.start("cloud", "words", "--follow", "--json")
    assert following.stdout is not None
    for number in range(1, 4):
        words.tell(**{f"key{number}": number})
        found = json.loads(following.stdout.readline())
        assert (found["version"], len(found["entries"])) == (number, number)
    following.send_signal(signal.SIGINT)

    assert following.wait(SECONDS) == 130


def test_the_cloud_of_a_time_and_what_has_changed_since(here: Here, db: Any, cli: Cli) -> None:
    assert here("configure", "words", "--top", "3", "--keep-clouds", "30d").status == 0
    with set_clock() as clock:
        for updates in (["a=9", "b=5", "c=4"], ["b=6", "c=-4", "d=1"], ["e=1"]):
            here("add", "words", *updates)
            here("worker", "words", "--drain")
            clock.now += 86_400

        older = here("cloud", "words", "--at", "2023-11-15")
        changes = here("cloud", "words", "--since", "3d", "--at", "2023-11-16T00:00+00:00")
        rows = here("cloud", "words", "--since", "2d", "--json").rows()
        page = here("cloud", "words", "--since", "9d", "--html", "words.html")
        single = here("cloud", "words", "--since", "9d", "--at", "2023-11-15", "--html", "single.html")
        unknown = here("cloud", "words", "--at", "2023-11-14")

    assert single.err == "cq cloud: wrote version 1 to single.html\n"
    assert older.out == "version 1, 2023-11-14 22:13:20 UTC, 3 keys\n9\ta\t9\n3\tb\t5\n1\tc\t4\n"
    assert changes.out == "version 1 to 2, 3 changes\nb\t11\t5\nd\t1\t-\nc\t-\t4\n"
    assert rows == [{"queue": "words", "group": None, "since": 2, "version": 2, "changes": []}]
    assert page.err == "cq cloud: wrote versions 1 to 2 to words.html\n"
    assert (cli.folder / "words.html").read_text().count('<section class="frame"') == 2
    assert "as of 2023-11-14 00:00:00 UTC: the oldest is of 2023-11-14 22:13:20 UTC" in unknown.err


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("cloud words --at soon", 2, "expected a time such as 2026-01-31T12:00, or 2d for two days ago"),
        ("cloud words --since 1h --follow", 2, "give either --follow, or --at and --since"),
        ("configure words --keep-clouds 1h", 2, "--keep-clouds needs the top: add --top"),
        ("cloud nobody --follow", 1, "cq: queue 'nobody' is not configured"),
        ("top plain", 1, "cq: queue 'plain' keeps no top: run `cq configure plain --top` first"),
        (
            "top tallies",
            1,
            "its values are of type dict, so declare a top with a score function in an application",
        ),
        ("cloud words", 1, "cq: no cloud of queue 'words' has been published yet"),
    ],
)
def test_what_is_refused_or_missing_is_said(
    here: Here, db: Any, command: str, status: int, said: str
) -> None:
    cq.configure(db, "plain")
    cq.configure(db, "tallies", value=dict, combiner="counter")
    Words(db)

    ended = here(*command.split())

    assert (ended.status, ended.out) == (status, "")
    assert said in ended.err
    assert status == 2 or ended.err.count("\n") == 1
