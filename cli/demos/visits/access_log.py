"""The access log of the demo of visits: reading all visits of a log, and generating one."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import BinaryIO, Final

from cq.errors import InvalidData
from cq.intake.access_log import AccessLogFormat, Visit
from cq.intake.logs import open_log
from cq.observers.visits import BOTS

_LINE_BYTES: Final = 65_536
"""Maximum bytes of a line; web servers accept requests of 8 to 16 kB."""
_BOTS: Final = re.compile(BOTS, re.IGNORECASE)
_BOT: Final = 40  # the number of a generated browser that is a bot


def read_log(path: Path, skip: Callable[[str], object] = lambda line: None) -> Iterator[tuple[Visit, bytes]]:
    """The visits in a plain or gzip file and their lines, in the order of the file.

    They are in common or combined format, see `AccessLogFormat`. Raises `OSError`, also for a truncated gzip file.

    Args:
        path: path of the file.
        skip: called for each line in another format, with its place and the reason.
    """
    log_format = AccessLogFormat()
    with open_log(path) as lines:
        try:
            for number, line in enumerate(_lines_of(lines), 1):
                try:
                    visit = log_format.parse(line)
                except InvalidData as error:
                    skip(f"{path}:{number}: {error}")
                    continue
                if visit is not None:
                    yield visit, line
        except (EOFError, zlib.error) as error:
            raise OSError(f"{path}: the file is truncated or damaged: {error}") from None


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, each truncated to 64 kB: a file without line breaks must not be read into memory."""
    while line := file.readline(_LINE_BYTES):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(_LINE_BYTES)
        yield line


def is_bot(visit: Visit) -> bool:
    """Whether the visit is one of a bot, by the name of its browser."""
    return _BOTS.search(visit.agent) is not None


def write_log(path: Path, rng: Random, *, visits: int = 20_000, seconds: float = 1_500.0) -> None:
    """Generate a log: visitors come, read some pages and leave; few pages have most of the visits.

    The log is in combined format with response times, and includes requests that do not count, as those of bots. Sizes
    and times of responses are log-normal, as on real sites: half of the responses have less than 10 kB and take less
    than 50 ms. The file is compressed if its name ends with `.gz`.
    """
    begin = datetime(2025, 3, 1, 20, 0, tzinfo=UTC)
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        for moment, line in sorted(_generated(rng, visits, seconds)):
            time = (begin + timedelta(seconds=moment)).strftime("%d/%b/%Y:%H:%M:%S +0000")
            file.write(line.replace("TIME", time, 1).encode())


def _page(rng: Random, moment: float) -> str:
    """The start page, a topic of any time, or a story of the last minutes, whose rank rises and falls."""
    kind = rng.random()
    if kind < 0.2:
        return "/"
    if kind < 0.35:
        return f"/story/{max(0, int((moment - rng.expovariate(1 / 200)) // 250))}"
    return f"/topic/{min(int(rng.paretovariate(0.8)), 5_000)}"


def _generated(rng: Random, visits: int, seconds: float) -> Iterator[tuple[float, str]]:
    """(seconds since the begin, line without its time) of each request."""
    while visits > 0:
        host = (
            f"192.0.2.{rng.randrange(256)}" if rng.random() < 0.5 else f"2001:db8::{rng.randrange(65536):x}"
        )
        browser, moment = rng.randint(1, _BOT), rng.triangular(0, seconds, 0.7 * seconds)
        agent = "ExampleBot/1.0" if browser == _BOT else f"Browser/{browser}.0"
        for _ in range(min(visits, 1 + int(rng.expovariate(0.5)))):
            page = _page(rng, moment)
            size, took = round(rng.lognormvariate(9.2, 1.0)), rng.lognormvariate(-3.0, 0.8)
            answer = f"200 {size}" if rng.random() < 0.95 else "304 -"
            end = f'"-" "{agent}" {took:.3f}\n'
            if moment < seconds:
                yield moment, f'{host} - - [TIME] "GET {page}?from=list HTTP/1.1" {answer} {end}'
            if rng.random() < 0.1:
                yield moment, f'{host} - - [TIME] "POST {page} HTTP/1.1" 302 - {end}'
            visits -= 1
            moment += rng.expovariate(1 / 20)
