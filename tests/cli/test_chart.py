"""Charts of lines: gaps of unknown numbers, round ticks, and dates below the axis of times."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import Any

import pytest

from cq.cli.shared import chart
from cq.cli.shared.chart import to_svg

EVENING = datetime(2025, 3, 1, 20, 7, 13, tzinfo=UTC).timestamp()
BOTTOM = "374.0"  # the height of 0


def line_chart(*given: Any) -> str:
    """The image of a chart of lines."""
    return to_svg(chart.line_chart(*given))


def texts(drawn: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def heights(drawn: str) -> list[list[str]]:
    """The heights of each drawn run."""
    runs = re.findall(r'<polyline [^>]*points="([^"]+)"', drawn)
    return [[point.split(",")[1] for point in run.split()] for run in runs]


def test_an_unknown_number_is_a_gap_and_zero_is_drawn() -> None:
    unknown, zero = (line_chart("t", "a", [0, 10, 20, 30], {"/": [4, 4, gap, 4]}) for gap in (None, 0))

    assert [len(run) for run in heights(unknown)] == [2, 2]
    assert all(BOTTOM not in run for run in heights(unknown))
    assert [len(run) for run in heights(zero)] == [4]
    assert heights(zero)[0][2] == BOTTOM


def test_a_name_is_at_the_last_known_number_also_at_zero() -> None:
    drawn = line_chart("t", "a", [0, 10, 20], {"ended": [8, 0, None]})

    assert re.search(r'y="378.0" style="[^"]*">ended<', drawn)


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(1, ["0", "1"]), (7, ["0", "2", "4", "6", "8"]), (1_234, ["0", "500", "1,000", "1,500"])],
)
def test_ticks_of_numbers_are_round(most: int, ticks: list[str]) -> None:
    found = texts(line_chart("t", "a", [0, 10], {"/": [0, most]}))

    assert [text for text in found[2:] if re.fullmatch(r"[0-9,]+", text)][: len(ticks)] == ticks


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0, ["20:07:13", "2025-03-01", "20:07:14"]),
        (1_500, ["20:10", "2025-03-01", "20:15", "20:20", "20:25", "20:30"]),
        (9 * 3_600, ["22:00", "2025-03-01", "00:00", "2025-03-02", "02:00", "04:00"]),
        (
            4 * 86_400,
            ["03-02", "2025", "03-03", "03-04", "03-05"],
        ),
    ],
)
def test_ticks_of_times_are_round_and_have_their_date(seconds: int, ticks: list[str]) -> None:
    times = [EVENING, EVENING + seconds] if seconds else [EVENING]

    found = texts(line_chart("t", "a", times, {"/": [1] * len(times)}))

    shown = [text for text in found[2:] if re.search(r"[:-]", text) or text == "2025"]
    assert shown == ticks
    assert found[1].endswith(" UTC")


def test_ticks_of_small_numbers_are_fractions() -> None:
    found = texts(line_chart("t", "a", [0, 10], {"/": [0, 0.25]}))

    assert found[2:8] == ["0", "0.05", "0.1", "0.15", "0.2", "0.25"]


def test_an_image_has_several_charts_from_top_to_bottom() -> None:
    charts = [chart.line_chart(title, "about", [0, 10], {"/": [0, 1]}) for title in ("first", "<second>")]

    image = ET.fromstring(to_svg(*charts))  # noqa: S314 - of our own making

    groups = [each for each in image if each.get("transform")]
    assert [each.get("transform") for each in groups] == ["translate(0 0)", "translate(0 420)"]
    assert image.get("height") == "840"
    assert [each[0].text for each in groups] == ["first", "<second>"]
    assert "at most 1. <second>. /: at most 1." in "".join(image.itertext())
