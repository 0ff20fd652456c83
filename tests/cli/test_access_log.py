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
VISIT = Visit(971_211_336.0, "/apache.gif", "192.0.2.7", 2_326)


@pytest.mark.parametrize(
    ("before", "after", "visit"),
    [
        (b"", b"", VISIT),
        (b"GET", b"POST", None),
        (b"GET", b"HEAD", None),
        (b" 200 ", b" 404 ", None),
        (b" 200 ", b" 301 ", None),
        (b" 200 ", b" 500 ", None),
        (b"200 2326", b"304 -", VISIT._replace(size=None)),
        # The time of the response: in seconds with a decimal point, otherwise in microseconds.
        (b"\n", b" 0.012\n", VISIT._replace(took=0.012)),
        (b"\n", b" 12.5\n", VISIT._replace(took=12.5)),
        (b"\n", b" 1500\n", VISIT._replace(took=0.0015)),
        (b"\n", b" 0\n", VISIT._replace(took=0.0)),
        (b"\n", b" -\n", VISIT),
    ],
)
def test_a_line_is_a_visit_or_a_request_that_does_not_count(
    before: bytes, after: bytes, visit: Visit | None
) -> None:
    assert parse(COMMON.replace(before, after, 1)) == visit
    combined = parse(COMBINED.replace(before, after, 1))
    if visit is None:
        assert combined is None
    else:
        assert combined is not None
        assert combined.visitor.startswith("192.0.2.7 ")
        assert combined._replace(visitor=visit.visitor) == visit


def test_the_browser_is_a_part_of_the_visitor() -> None:
    visits = parse(COMBINED), parse(COMBINED.replace(b"4.08", b"4.09"))

    assert len({visit.visitor for visit in visits if visit}) == 2


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

    assert found == [VISIT] * 3  # what is cut off of `long` is space
    assert [line.partition(": neither")[0] for line in skipped] == [f"{path}:2", f"{path}:5"]
    assert peak < 2_000_000


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
