"""The page of a cloud: whole, escaped, accessible, light and dark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.observers.top.cloud import Cloud, CloudEntry
from cq.observers.top.html import number, shown, to_animation, to_html

WHEN = datetime(2026, 3, 4, 5, 6, 7, 890_000, UTC)


def cloud(*entries: tuple[Any, Any, int], group: str | None = None) -> Cloud:
    return Cloud("words", group, 12, WHEN, tuple(CloudEntry(*entry) for entry in entries))


class Page(HTMLParser):
    """What a browser finds in a page: its elements in order, each with its attributes and its own text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, dict(attrs), list[str]())
        self.elements.append(element)
        if tag != "meta":
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][2].append(data)

    def texts(self, tag: str, kind: str | None = None) -> list[str]:
        """The text of the elements of this name and class."""
        return [
            "".join(text)
            for name, attributes, text in self.elements
            if name == tag and (kind is None or attributes.get("class") == kind)
        ]


def test_the_words_are_a_list_with_scores_in_words() -> None:
    text = to_html(cloud(("the", 12_345, 9), ("cat", 7, 1)))
    page = Page(text)

    assert [attributes for tag, attributes, _ in page.elements if tag in ("html", "ol")] == [
        {"lang": "en"},
        {"class": "cloud", "role": "list", "aria-labelledby": "title"},
    ]
    assert [attributes["class"] for tag, attributes, _ in page.elements if tag == "li"] == ["w9", "w1"]
    assert page.texts("span", "score") == ["12,345", "7"]
    assert page.texts("h1") == page.texts("title") == ["words"]
    assert page.texts("time") == ["2026-03-04 05:06:07 UTC"]
    assert text.startswith("<!doctype html>\n")
    assert not re.search(r"<script|https?:|\son\w+=|url\(|@import", text)


@given(st.text(), st.text(min_size=1), st.text())
def test_keys_groups_and_titles_stay_text(key: str, group: str, title: str) -> None:
    """Whatever they are: the page has the elements it always has."""
    page = Page(to_html(cloud((key, 1, 5), group=group), title))

    tags = [tag for tag, _, _ in page.elements]
    assert tags == [
        *("html", "head", "meta", "meta", "meta", "meta", "title", "style"),
        *("body", "main", "h1", "p", "time", "ol", "li", "span", "span"),
    ]
    assert page.texts("span")[0] == shown(key)


def test_a_weight_that_a_caller_has_made_up_is_escaped() -> None:
    weight: Any = '1"><script>alert(1)</script>'

    assert "<script" not in to_html(cloud(("a", 1, weight)))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("two words", "two words"),
        ("", '""'),
        ("a\nb\u202e\x00\ud800", "a\\u000ab\\u202e\\u0000\\ud800"),
        (("a", 3), "a · 3"),
        (b"\x01", "AQ=="),
        (-5, "-5"),
    ],
)
def test_keys_are_shown_so_that_people_can_read_them(key: Any, expected: str) -> None:
    assert shown(key) == expected
    assert to_html(cloud((key, 1, 5))).encode()


def test_scores_are_shown_so_that_people_can_read_them() -> None:
    scores: list[Any] = [1_234_567, 10**5000, 0.1, Decimal("1234.5678"), float("inf"), -3]

    assert [number(score) for score in scores] == [
        *("1,234,567", "1.00000e+5000", "0.1", "1234.57", "inf", "-3")
    ]


def test_a_cloud_of_nothing_says_so() -> None:
    text = to_html(cloud(group="2026"))

    assert Page(text).texts("h1") == ["words: 2026"]
    assert "Nothing has a score" in text
    assert "<ol" not in text


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_colours_have_contrast_in_light_and_dark() -> None:
    style = Page(to_html(cloud())).texts("style")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for part in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part))
        page = luminance(colours["page"])
        for name in ("text", "quiet", *(f"w{weight}" for weight in range(1, 10))):
            lighter, darker = sorted((page, luminance(colours[name])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name


def test_an_animation_shows_each_version_for_its_share_of_the_time() -> None:
    clouds = [cloud(("the", count, 9)) for count in range(1, 5)]

    text = to_animation(clouds, title="<words>", every=0.5)

    page = Page(text)
    delays = [attributes["style"] for name, attributes, _ in page.elements if name == "section"]
    assert delays == [f"animation-delay: {delay}s" for delay in ("0", "0.5", "1", "1.5")]
    assert page.texts("span", "score") == ["1", "2", "3", "4"]
    assert page.texts("h1") == ["<words>"]
    assert "animation: frame 2s step-end infinite" in text
    assert "25.0000% { visibility: hidden; }" in text
    assert "prefers-reduced-motion" in text
    assert "<script" not in text
