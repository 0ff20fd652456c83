"""Access logs in both formats are read as they are, and what is none of their lines is named."""

from __future__ import annotations

import gzip
import tracemalloc
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.cli.demos.visits.access_log import NoVisit, Visit, parse, read_log, write_log

COMMON = b'192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache.gif?a=1 HTTP/1.0" 200 2326\n'
COMBINED = COMMON.rstrip() + b' "http://www.example.com/" "Mozilla/4.08 \\"x\\" [en]"\n'


def test_common_and_combined_lines_are_visits() -> None:
    common, combined = parse(COMMON), parse(COMBINED)

    assert common == Visit(971_211_336.0, "/apache.gif", "192.0.2.7", 2_326)
    assert combined is not None
    assert (combined.time, combined.page) == (971_211_336.0, "/apache.gif")
    assert combined.visitor.startswith("192.0.2.7 ")
    other = parse(COMBINED.replace(b"4.08", b"4.09"))
    assert other is not None
    assert other.visitor != combined.visitor


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"GET", b"POST"), (b"GET", b"HEAD"), (b" 200 ", b" 404 "), (b" 200 ", b" 301 "), (b" 200 ", b" 500 ")],
)
def test_requests_that_are_no_visits(before: bytes, after: bytes) -> None:
    assert parse(COMMON.replace(before, after)) is None


def test_a_page_that_has_not_changed_was_visited_too() -> None:
    assert parse(COMMON.replace(b"200 2326", b"304 -")) is not None


@pytest.mark.parametrize(
    ("field", "took"),
    [(b"0.012", 0.012), (b"12.5", 12.5), (b"1500", 0.0015), (b"0", 0.0), (b"-", None)],
)
def test_a_last_field_has_the_time_of_the_response(field: bytes, took: float | None) -> None:
    for line in (COMMON, COMBINED):
        visit = parse(line.rstrip() + b" " + field + b"\n")

        assert visit is not None
        assert (visit.size, visit.took) == (2_326, took)


def test_a_response_without_a_size_has_none() -> None:
    visit = parse(COMMON.replace(b"200 2326", b"304 -"))

    assert visit is not None
    assert (visit.size, visit.took) == (None, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "neither common nor combined"),
        (b"nothing\n", "neither common nor combined"),
        (COMMON.replace(b"Oct", b"Okt"), "not a time"),
        (COMMON.replace(b"10/Oct", b"32/Oct"), "not a time"),
        (COMMON.replace(b"-0700", b"+9900"), "not a time"),
        (COMMON.replace(b" 200 ", b" 2000 "), "neither"),
        (COMMON.replace(b"2326", b"9" * 5_000), "neither"),
        (COMMON.rstrip() + b" 1e3", "neither"),
        (COMMON.replace(b"GET /apache.gif?a=1 HTTP/1.0", b"\\x16\\x03"), "not a request"),
        (COMMON[:-20], "neither"),
        (COMBINED[:-3], "neither"),
        (b"\xff\x00" * 1000, "neither"),
    ],
)
def test_what_is_no_line_is_named(line: bytes, why: str) -> None:
    with pytest.raises(NoVisit, match=why) as raised:
        parse(line)

    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


@given(st.binary(max_size=100), st.integers(0, len(COMBINED)), st.integers(0, len(COMBINED)))
def test_any_bytes_are_a_visit_or_refused(data: bytes, begin: int, end: int) -> None:
    for line in (data, COMBINED[:begin] + data + COMBINED[end:]):
        with suppress(NoVisit):
            parse(line)


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_is_cut_at_64_kb_and_the_next_one_is_read(tmp_path: Path, packed: bool) -> None:
    long = COMMON[:-1] + b" " * 65_536
    path = tmp_path / "access.log"
    content = COMMON + b"x" * 30_000_000 + b"\n" + long + b"\n" + COMMON + b"y" * 200_000
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    skipped: list[str] = []

    tracemalloc.start()
    try:
        found = list(read_log(path, skipped.append))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [visit.page for visit in found] == ["/apache.gif"] * 3  # what is cut off of `long` is space
    assert [line.split(":")[1] for line in skipped] == ["2", "5"]
    assert peak < 2_000_000


def test_packed_and_plain_logs_are_the_same_and_bad_lines_are_counted(tmp_path: Path) -> None:
    plain, packed = tmp_path / "access.log", tmp_path / "packed"
    content = COMMON + b"bad\n" + COMBINED + b"\n"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    skipped: list[str] = []

    found = [list(read_log(path, skipped.append)) for path in (plain, packed)]

    assert found[0] == found[1]
    assert len(found[0]) == 2
    places = [line.partition(": neither")[0] for line in skipped]
    assert places == [f"{path}:{line}" for path in (plain, packed) for line in (2, 4)]


def test_a_log_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(gzip.compress(COMMON * 1000)[:60])

    with pytest.raises(OSError, match="truncated or damaged"):
        list(read_log(path))


def test_a_log_that_is_made_up_is_one_and_the_same_for_a_seed(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.log", "b.log.gz")]
    for path in paths:
        write_log(path, Random(1), visits=500)

    first, second = (list(read_log(path, pytest.fail)) for path in paths)

    assert first == second
    assert 400 < len(first) <= 500
    assert [visit.time for visit in first] == sorted(visit.time for visit in first)
    sizes = [visit.size for visit in first if visit.size is not None]
    times = [visit.took for visit in first if visit.took is not None]
    assert len(sizes) < len(times) == len(first)
    assert 7_000 < median(sizes) < 14_000
    assert 0.03 < median(times) < 0.08
    assert mean(sizes) > 1.3 * median(sizes)
