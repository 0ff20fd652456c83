"""The log of the demo of visits: read as it is, and generated."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from random import Random
from statistics import mean, median

import pytest

from cq.cli.demos.visits.replay import read_log, write_log
from cq.intake.access_log import Visit

COMMON = b'192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache.gif?a=1 HTTP/1.0" 200 2326\n'
VISIT = Visit(971_211_336.0, "/apache.gif", "192.0.2.7", "", 2_326)


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_is_cut_at_64_kb_and_the_next_one_is_read(tmp_path: Path, packed: bool) -> None:
    long = COMMON[:-1] + b" " * 65_536
    path = tmp_path / "access.log"
    content = COMMON + b"x" * 30_000_000 + b"\n" + long + b"\n" + COMMON + b"y" * 200_000
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    skipped: list[str] = []

    tracemalloc.start()
    try:
        found = [visit for visit, _ in read_log(path, skipped.append)]
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

    first, second = ([visit for visit, _ in read_log(path, pytest.fail)] for path in paths)

    assert first == second
    assert 400 < len(first) <= 500
    assert [visit.time for visit in first] == sorted(visit.time for visit in first)
    sizes = [visit.size for visit in first if visit.size is not None]
    times = [visit.took for visit in first if visit.took is not None]
    assert len(sizes) < len(times) == len(first)
    assert 7_000 < median(sizes) < 14_000
    assert 0.03 < median(times) < 0.08
    assert mean(sizes) > 1.3 * median(sizes)
