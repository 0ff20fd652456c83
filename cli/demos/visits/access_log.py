"""Access logs of web servers in common and combined format: reading and generating them."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import BinaryIO, Final, NamedTuple, cast

_LINE: Final = re.compile(
    rb"(?P<host>\S+) \S+ \S+ \[(?P<time>[^\]]{20,40})\] "
    rb'"(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) (?P<size>\d{1,15}|-)'
    rb'(?: "(?:[^"\\]|\\.)*" "(?P<agent>(?:[^"\\]|\\.)*)")?(?: (?P<took>\d{1,12}(?:\.\d{1,9})?|-))?\s*'
)
_GZIP: Final = b"\x1f\x8b"
_MAX_PAGE_BYTES: Final = 2_000  # of a page's path; keys of a queue have up to 8,000 bytes
_SHOWN: Final = 80
_LINE_BYTES: Final = 65_536
"""Maximum bytes of a line; web servers accept requests of 8 to 16 kB."""
_MICRO: Final = 1e-6


class Visit(NamedTuple):
    """A visit of a page.

    Attributes:
        time: in seconds since 1970.
        page: path of the page.
        visitor: address and browser.
        size: bytes of the response; None: none were sent.
        took: seconds that the response took; None: not in the log.
    """

    time: float
    page: str
    visitor: str
    size: int | None = None
    took: float | None = None


class NoVisit(ValueError):
    """A line is not a line of an access log; the message says why."""


def read_log(path: Path, skip: Callable[[str], object] = lambda line: None) -> Iterator[Visit]:
    """The visits in a plain or gzip file, in the order of the file.

    A visit is a GET with an answer of status 2xx or 304. The address and, in the combined format, the browser identify
    the visitor. A last field may have the time of the response: seconds with a decimal point, such as nginx writes for
    `$request_time`, or whole microseconds, such as Apache writes for `%D`. Raises `OSError`, also for a truncated gzip
    file.

    Args:
        path: path of the file.
        skip: called for each line in another format, with its place and the reason.
    """
    with path.open("rb") as plain:
        is_compressed = plain.read(len(_GZIP)) == _GZIP
    with gzip.open(path) if is_compressed else path.open("rb") as lines:
        try:
            for number, line in enumerate(_lines_of(cast(BinaryIO, lines)), 1):
                try:
                    visit = parse(line)
                except NoVisit as error:
                    skip(f"{path}:{number}: {error}")
                    continue
                if visit is not None:
                    yield visit
        except (EOFError, zlib.error) as error:
            raise OSError(f"{path}: the file is truncated or damaged: {error}") from None


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, each truncated to 64 kB: a file without line breaks must not be read into memory."""
    while line := file.readline(_LINE_BYTES):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(_LINE_BYTES)
        yield line


def parse(line: bytes) -> Visit | None:
    """The visit of a line, None for a request that does not count; raises `NoVisit` for a line in another format."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise NoVisit(f"neither common nor combined log format: {line[:_SHOWN].decode('utf-8', 'replace')!r}")
    time = _seconds(found["time"])
    request = found["request"].split(b" ")
    if len(request) not in (2, 3):
        raise NoVisit(f"not a request: {found['request'][:_SHOWN].decode('utf-8', 'replace')!r}")
    if request[0] != b"GET" or not (found["status"][:1] == b"2" or found["status"] == b"304"):
        return None
    page = request[1].partition(b"?")[0][:_MAX_PAGE_BYTES].decode("utf-8", "replace")
    visitor = found["host"][:_MAX_PAGE_BYTES].decode("utf-8", "replace")
    if found["agent"] is not None:
        visitor += " " + blake2b(found["agent"], digest_size=6).hexdigest()
    size = None if found["size"] == b"-" else int(found["size"])
    return Visit(time, page, visitor, size, _took(found["took"]))


def _took(text: bytes | None) -> float | None:
    """The seconds of a response time: with a decimal point in seconds, otherwise in microseconds."""
    if text is None or text == b"-":
        return None
    return float(text) if b"." in text else int(text) * _MICRO


@lru_cache(maxsize=1_000)  # many visits have the same second, and parsing a time takes longer than the rest
def _seconds(text: bytes) -> float:
    try:
        return datetime.strptime(text.decode("ascii"), "%d/%b/%Y:%H:%M:%S %z").timestamp()
    except (ValueError, OverflowError):
        raise NoVisit(f"not a time: {text.decode('utf-8', 'replace')!r}") from None


def write_log(path: Path, rng: Random, *, visits: int = 20_000, seconds: float = 1_500.0) -> None:
    """Generate a log: visitors come, read some pages and leave; few pages have most of the visits.

    The log is in combined format with response times, and includes some requests that do not count as visits. Sizes and
    times of responses are log-normal, as on real sites: half of the responses have less than 10 kB and take less than
    50 ms. The file is compressed if its name ends with `.gz`.
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
        agent, moment = f"Browser/{rng.randint(1, 40)}.0", rng.triangular(0, seconds, 0.7 * seconds)
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
