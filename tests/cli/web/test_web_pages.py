"""The pages of the dashboard: what they show of real queues, with awkward keys, errors and names."""

from __future__ import annotations

import contextlib
import re
import time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import cq
from cq import admin
from cq.cli.web.charts import Line, series_line
from cq.cli.web.reads import Checks, KeySeries
from cq.cli.web.text import NOTHING
from cq.encoding.codec import ValueType
from cq.encoding.sketches import Frequent
from cq.errors import StoreError
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.top import top
from cq.observers.top.index import LAST_PART
from cq.testing import drain
from cq.windows import Window
from tests.cli.web.dashboards import Outline, serving
from tests.kit.clocks import set_clock
from tests.kit.processes import wait_until

LONG = "long-" * 20
AWKWARD = {"<script>alert(1)</script>": 9, "hail \N{SNOWFLAKE}": 8, "w" * 200: 7, "red \x1b[31m\u202e": 6}
PATHS = [
    "/",
    "/queues/words",
    f"/queues/{LONG[:100]}",
    "/workers",
    "/links",
    "/aside",
    "/aside/words",
    "/feeds",
    "/cells",
]


@pytest.fixture
def store(db: Any) -> Any:
    """Queues with a top, a cloud, a feed, a window, values of bytes, a pause, and updates set aside."""
    Feed[Any]("changes").configure(db)
    cq.configure(db, "words", key=str, value=int, observers=[top(n=5), feed_spec("changes")])
    cq.configure(db, LONG[:100], key=bytes, value=int, buckets=600)
    cq.configure(db, "visits", key=(str, int), value=int, window="600/10")
    words = cq.CombineQueue[str, int]("words")
    cq.transact(db, lambda tr: words.add(tr, AWKWARD))
    cq.transact(db, lambda tr: cq.CombineQueue(LONG[:100]).add(tr, {b"\x00\xff": 3}))
    cq.transact(db, lambda tr: Window("visits").add(tr, {("<i>", 1): 5}))
    drain(db)
    cq.transact(db, lambda tr: words.add(tr, {"later": 1}))
    admin.pause(db, LONG[:100], "moved <b>today</b>")
    return db


@pytest.mark.usefixtures("store")
def test_pages_are_complete_and_escape_all_texts(db: Any) -> None:
    with serving(db) as found:
        for path in PATHS:
            html = found.page(path)
            outline = Outline(html)

            assert [each.get("src") for each in outline.all("script")] == ["/static/live.js"]
            assert not outline.all("b"), path
            assert not outline.all("i"), path
            assert "\x1b" not in html
            assert "\u202e" not in html
            assert outline.headings[0] == 1
            assert outline.headings.count(1) == 1
            steps = zip(outline.headings, outline.headings[1:], strict=False)
            assert all(after <= before + 1 for before, after in steps), path
            assert all(each.get("scope") in ("col", "row") for each in outline.all("th"))
            labelled = {each["for"] for each in outline.all("label")}
            visible = [each for each in outline.all("input") if each.get("type") != "hidden"]
            assert {each.get("id") for each in visible} == labelled
            assert not any("style" in attributes for _, attributes in outline.tags), path
            assert not any(name.startswith("on") for _, each in outline.tags for name in each), path
            identities = [each["id"] for _, each in outline.tags if "id" in each]
            assert len(identities) == len(set(identities)), path
            for landmark in ("main", "header", "footer", "nav"):
                assert len(outline.all(landmark)) == 1


@pytest.mark.usefixtures("store")
def test_the_page_of_a_queue_shows_its_top_cloud_changes_and_settings(db: Any) -> None:
    with serving(db) as found:
        html = found.page("/queues/words")

        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert "red \\x1b[31m\\u202e" in html
        for heading in ("Now", "Buckets", "Look up a value", "Top", "Recent changes", "Configuration"):
            assert f">{heading}</h2>" in html
        assert re.search(r'<li class="w\d"', html)  # the cloud
        assert "1 of 1 bucket has queued updates" in html
        visits = found.page("/queues/visits")
        link = '<a href="/queues/visits.window">visits.window</a>'
        assert f"{link}, the last 10 min in slices of 10.0 s" in visits
        assert "each square stands for 3 buckets" in found.page(f"/queues/{LONG[:100]}")


def test_the_page_of_a_queue_with_a_decider_shows_its_decisions(db: Any) -> None:
    cq.configure(db, "stock", decider="bounded:0:10")
    report = MemberReport(facts={"decisions": {"stock": [2_000.0, 500.0, 4.0, 10_000.0]}})
    Membership(db).beat(report)
    with serving(db) as found:
        html = found.page("/queues/stock")
        for text in ("bounded@1(clamp=False, hi=10, lo=0, start=0)", ">2,000<", ">25.0 %<", ">2.5 ms<"):
            assert text in html


def test_tops_of_windows_and_periods_have_the_ranks_before(db: Any) -> None:
    cq.configure(db, "hits", window="600/10", rollup="10m:1d")
    admin.put_observer(db, "hits.window", top(n=5))
    admin.put_observer(db, "hits.10m", top(ranks=True, group=LAST_PART))
    drain(db)
    with set_clock() as clock:
        for updates in ({"a": 9, "b": 5}, {"b": 7, "c": 3}):
            cq.CombineQueue[str, int]("hits").add_now(db, updates)
            drain(db)
            clock.now += 610
        clock.now -= 610
        with serving(db) as found:
            pages = [found.page(f"/queues/{name}") for name in ("hits.window", "hits.10m")]

    for page in pages:
        rows = re.findall(
            r'<td class="num">(.)</td><td class="num">(.)</td><th scope="row".*?<bdi>(.)<', page
        )
        assert rows == [("1", "2", "b"), ("2", "–", "c")]  # noqa: RUF001 - the page's dash
        assert ">10 min before</th>" in page


@pytest.mark.usefixtures("store")
def test_a_value_is_looked_up_by_its_key(db: Any) -> None:
    with serving(db) as found:
        for queue, word, answer in (
            ("words", "<script>alert(1)</script>", "<strong><bdi>9</bdi></strong>"),
            ("words", "nothing", "has no value"),
            (LONG[:100], "AP8=", "<strong><bdi>3</bdi></strong>"),
            (LONG[:100], "no base64", "expected JSON of a bytes"),
            ("visits", '["<i>", 1]', "<strong><bdi>5</bdi></strong>"),
            ("visits", "7", "expected"),
            (
                "words",
                "",
                "<bdi>The empty key</bdi> has no value",
            ),  # `Visits` counts all pages under it
        ):
            html = found.client.get(f"/queues/{queue}", params={"key": word}).text

            assert answer in html
            assert not any(
                "required" in each for each in Outline(html).all("input") if each.get("name") == "key"
            )
            assert not Outline(html).all("i")


def test_a_lookup_shows_a_chart_of_the_levels_of_a_roll_up(db: Any) -> None:
    key, now = "<i>&by=1d", time.time()
    cq.configure(db, "hits", key=str, value=int, rollup="1m:2h,1h:60d,1d:forever")
    series = Window[str, int]("hits")
    cq.transact(db, lambda tr: series.add_each(tr, [(key, 4321, now - 600), (key, 7, now)]))
    drain(db)
    with serving(db) as found:
        pages = {
            by: found.client.get("/queues/hits", params={"key": key, "by": by}).text
            for by in ("", "1m", "1d", "<b>")
        }
        for by, html in pages.items():
            outline = Outline(html)
            level = "1d" if by == "1d" else "1m"
            assert not outline.all("i")
            assert not outline.all("b")
            assert [each.get("src") for each in outline.all("script")] == ["/static/live.js"]
            assert not any("style" in attributes for _, attributes in outline.tags)
            links = [each for each in outline.all("a") if "by=" in (each["href"] or "")]
            assert [each["href"] for each in links if each.get("aria-current")] == [
                f"/queues/hits?key=%3Ci%3E%26by%3D1d&by={level}#lookup"
            ]
            assert len(links) == 3
            (chart,) = [
                each for each in outline.all("svg") if (each.get("aria-label") or "").startswith("value")
            ]
            assert f"value by {level}, past 6" in (chart["aria-label"] or "")
            assert f">Values by {level}</h3>" in html
        assert "at most 4,321" in pages["1m"]
        assert "<bdi>4321</bdi>" in pages["1m"]
        assert "<bdi>0</bdi>" in pages["1m"]
        settings = found.page("/queues/hits", until=">Configuration</h2>")
        for level in ("1m", "1h", "1d"):
            assert f'<a href="/queues/hits.{level}">hits.{level}</a>' in settings
            found.page(f"/queues/hits.{level}")
        assert "hits.1h</a>, kept for 60 d;" in settings
        assert 'id="series-title"' not in found.client.get("/queues/hits.1m", params={"key": "[1]"}).text


def test_levels_are_below_their_queue(db: Any) -> None:
    for name in ("hits", "likes"):
        cq.configure(db, name, rollup="1m:2h,1h:60d")
    admin.pause(db, "likes")
    admin.pause(db, "hits.1h")
    admin.pause(db, "likes.1h", "another reason")
    with serving(db) as found:
        html = found.page("/", until=">hits.1h</a>")
        table = html[html.index("<tbody>") :]
        links = [
            each["href"] for each in Outline(table).all("a") if (each["href"] or "").startswith("/queues/")
        ]
        assert links == ["/queues/hits", "/queues/hits.1h", "/queues/likes"]
        assert table.count("2 levels") == 2
        level = found.page("/queues/hits.1h")
        crumb = level[level.index('class="crumb"') : level.index("<h1>")]
        assert [each["href"] for each in Outline(crumb).all("a")] == ["/", "/queues/hits"]
        queue = found.page("/queues/hits")
        levels = queue[queue.index('id="levels-title"') : queue.index('id="part-buckets"')]
        assert [each["href"] for each in Outline(levels).all("a")] == ["/queues/hits.1m", "/queues/hits.1h"]


def test_a_lookup_without_numbers_shows_a_table_only(db: Any) -> None:
    cq.configure(db, "names", key=str, value=str, combiner="last", rollup="1h:2d")
    names = Window[str, str]("names")
    now = time.time()
    cq.transact(
        db, lambda tr: names.add_each(tr, [("a", "<b>first</b>", now - 7_200), ("a", "<b>last</b>", now)])
    )
    drain(db)
    with serving(db) as found:
        html = found.client.get("/queues/names", params={"key": "a"}).text

        assert "There is no chart" in html
        assert "<bdi>&lt;b&gt;first&lt;/b&gt;</bdi>" in html
        assert "<bdi>&lt;b&gt;last&lt;/b&gt;</bdi>" in html
        assert '<td class="num">\N{EN DASH}</td>' in html


def test_charts_of_values_have_gaps_and_the_first_numbers_of_sketches() -> None:
    def line(type_: str, values: list[Any], period: int = 3_600) -> Line | None:
        slots = [(at * period, value) for at, value in enumerate(values)]
        return series_line(KeySeries(("1h",), "1h", period, ValueType(type_), slots))

    gap = line("int", [1, 2, None, 4, None])
    assert gap is not None
    assert gap.large().count("<polyline") == 2
    assert (gap.span, gap.latest, gap.highest) == ("past 5 h", NOTHING, "4")
    whole = line("decimal", [Decimal("0.25"), 0, Decimal(3)])
    assert whole is not None
    assert whole.numbers == [0.25, 0, 3.0]
    sketch = line("frequent", [Frequent.merge(["a", "a", "b"], Frequent.SIZE), None])
    assert sketch is not None
    assert (sketch.title, sketch.numbers) == ("total by 1h", [3, None])
    for bad in (-1, 10**400, float("inf"), float("nan"), True, "5", {1}):
        assert line("any", [1, bad]) is None


def test_an_empty_store_says_what_to_do_first(db: Any) -> None:
    with serving(db) as found:
        assert "This store has no queue yet." in found.page("/")
        assert "cq configure words --key str --value int --combiner sum" in found.page("/")
        assert "<code>cq worker</code>" in found.page("/workers")
        assert "No queue has a link." in found.page("/links")
        assert "Nothing is set aside." in found.page("/aside")
        assert "cq feed configure chat" in found.page("/feeds")
        assert "cq cells add NAME URL" in found.page("/cells")


@pytest.mark.usefixtures("store")
def test_the_sentence_at_the_top_names_what_is_wrong_and_what_to_do(db: Any) -> None:
    with serving(db) as found:
        html = found.page("/")

        assert "2 things need your attention." in html
        assert "No worker is alive" in html
        assert "<code>cq worker</code>" in html
        assert "moved &lt;b&gt;today&lt;/b&gt;" in html
        assert f"<code>cq resume {LONG[:100]}</code>" in html


def test_keys_that_were_set_aside_are_shown_with_their_errors(db: Any) -> None:
    def check(tr: Any, changes: Any) -> None:
        for change in changes:
            if change.key.startswith("<"):
                raise ValueError(f"no {change.key}")

    app, queue = cq.App(), cq.CombineQueue[str, int]("picky")
    app.queue("picky", observers=[check])
    app.configure(db, "picky", key=str, value=int)
    cq.transact(db, lambda tr: queue.add(tr, {"<b>bad</b>": 1, "good": 2, "better": 3}))
    drain(db, app=app)
    with serving(db) as found:
        html = found.page("/aside/picky")

        assert "&lt;b&gt;bad&lt;/b&gt;" in html
        assert "ValueError: no &lt;b&gt;bad&lt;/b&gt;" in html
        assert "in check: raise ValueError(f&#34;no {change.key}&#34;)</code>" in html
        assert "of observer check@1</summary>" in html
        assert "good" not in html
        assert "pieces set aside, as their updates fail: 1" in html
        assert '<a href="/aside/picky">picky</a></th><td class="num">1</td>' in found.page("/aside")


def test_unknown_pages_and_queues_are_not_found(db: Any) -> None:
    with serving(db) as found:
        for path in ("/none", "/queues/none", "/queues/%3Cb%3E", "/queues/", "/aside/none", "/static/none"):
            found.page(path, status=404)
        assert found.client.get("/events", params={"path": "/none"}).status_code == 404


def test_the_findings_of_doctor_are_shown(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'checked.db'}"
    with contextlib.closing(cast("Any", cq.open(url))) as db:
        cq.configure(db, "words")
        admin.pause(db, "words", "for <b>this</b> test")
        with serving(db, store=url) as found:
            html = found.page("/checks", until="<span>in order</span>")
            assert "<span>failed</span>" in html
            assert "for &lt;b&gt;this&lt;/b&gt; test. Its updates stay queued." in html
            assert "Resume it when the reason is gone: <code>cq resume words</code>" in html


def test_checks_that_fail_are_a_problem(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: str | None) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("cq.cli.web.reads.doctor", fail)
    read = partial(Checks(None).reader().read, db, "")
    with pytest.raises(StoreError, match="the checks failed: RuntimeError: a bug"):
        wait_until(read)
