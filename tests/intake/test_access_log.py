"""Lines of access logs: the visits in them, in the formats of nginx, of Apache, and of your own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.errors import InvalidConfiguration, InvalidData
from cq.intake.access_log import AccessLogFormat, Visit

TIME = b"[01/Mar/2025:20:00:00 +0000]"
COMMON = b'192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache.gif?a=1 HTTP/1.0" 200 2326\n'
COMBINED = COMMON.rstrip() + b' "http://www.example.com/" "Mozilla/4.08 \\"x\\" [en]"\n'
VISIT = Visit(971_211_336.0, "/apache.gif", "192.0.2.7")
AT = 1_740_859_200.0


@pytest.mark.parametrize(
    ("before", "after", "visit"),
    [
        (b"", b"", VISIT),
        (b"GET", b"POST", None),
        (b"GET", b"HEAD", None),
        (b" 200 ", b" 404 ", None),
        (b" 200 ", b" 301 ", None),
        (b" 200 ", b" 500 ", None),
        # A probe of a load balancer, or TLS on a port without it.
        (b'"GET /apache.gif?a=1 HTTP/1.0" 200', b'"" 400', None),
        (b'"GET /apache.gif?a=1 HTTP/1.0" 200', b'"-" 408', None),
        (b'"GET /apache.gif?a=1 HTTP/1.0" 200', b'"\\x16\\x03 \\x01 a b" 400', None),
        (b"200 2326", b"304 -", VISIT),
        # The time of the response.
        (b"\n", b" 0.012\n", VISIT),
        (b"\n", b" 1500\n", VISIT),
        (b"\n", b" -\n", VISIT),
    ],
)
def test_a_line_is_a_visit_or_a_request_that_does_not_count(
    before: bytes, after: bytes, visit: Visit | None
) -> None:
    parse = AccessLogFormat().parse

    assert parse(COMMON.replace(before, after, 1)) == visit
    combined = parse(COMBINED.replace(before, after, 1))
    if visit is None:
        assert combined is None
    else:
        assert combined is not None
        assert combined.visitor.startswith("192.0.2.7 ")
        assert combined._replace(agent="") == visit


@pytest.mark.parametrize("forwarded", [b'"-"', b'"192.0.2.8, \\x22"', b'"-" 0.012'])
def test_the_format_main_of_nginx_is_known(forwarded: bytes) -> None:
    parse = AccessLogFormat().parse

    assert parse(COMBINED.rstrip() + b" " + forwarded + b"\n") == parse(COMBINED)
    with pytest.raises(InvalidData, match="neither"):
        parse(COMMON.rstrip() + b" " + forwarded + b"\n")


def test_the_browser_is_a_part_of_the_visitor() -> None:
    parse = AccessLogFormat().parse
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
        (COMMON.rstrip() + b" 1e3", "neither"),
        (COMMON.replace(b"GET /apache.gif?a=1 HTTP/1.0", b"\\x16\\x03"), "not a request"),
        (COMMON[:-20], "neither"),
        (COMBINED[:-3], "neither"),
        (b"\xff\x00" * 1000, "neither"),
    ],
)
def test_what_is_no_line_is_named(line: bytes, why: str) -> None:
    with pytest.raises(InvalidData, match=why) as raised:
        AccessLogFormat().parse(line)

    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


@given(st.binary(max_size=100), st.integers(0, len(COMBINED)), st.integers(0, len(COMBINED)))
def test_any_bytes_are_a_visit_or_refused(data: bytes, begin: int, end: int) -> None:
    for line in (data, COMBINED[:begin] + data + COMBINED[end:]):
        with suppress(InvalidData):
            AccessLogFormat().parse(line)


@pytest.mark.parametrize(
    ("pattern", "line", "visit"),
    [
        (
            '$remote_addr [$time_local] "$request" $status $body_bytes_sent "$http_user_agent" $request_time',
            b'::1 [01/Mar/2025:20:00:00 +0000] "GET /a HTTP/1.1" 200 5 "B 1" 1.500',
            Visit(AT, "/a", "::1", "B 1"),
        ),
        (
            '{"at":"$time_iso8601","ip":"$remote_addr","m":"$request_method","u":"$request_uri","s":$status}',
            b'{"at":"2025-03-01T21:00:00+01:00","ip":"::1","m":"GET","u":"/a?b","s":200}\n',
            Visit(AT, "/a", "::1"),
        ),
        (
            "${msec} $remote_addr $status $uri $host",
            b"1740859200.000 ::1 200 /a example.com",
            Visit(AT, "/a", "::1"),
        ),
        (
            '%v:%p %{X-Forwarded-For}i %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i" %D',
            b'x:80 192.0.2.7 - - [01/Mar/2025:20:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "B" 500000',
            Visit(AT, "/", "192.0.2.7", "B"),
        ),
        (
            '"%{X-Forwarded-For}i" %t "%r" %>s %T',
            b'"192.0.2.7, 10.0.0.1" [01/Mar/2025:20:00:00 +0000] "GET / HTTP/1.1" 200 2',
            Visit(AT, "/", "192.0.2.7"),
        ),
        (
            '\udcff %h %t "%r" %>s',
            b'\xff ::1 [01/Mar/2025:20:00:00 +0000] "GET /" 200',
            Visit(AT, "/", "::1"),
        ),
    ],
    ids=range(6),
)
def test_formats_of_your_own_are_the_patterns_of_the_servers(pattern: str, line: bytes, visit: Visit) -> None:
    assert AccessLogFormat(pattern).parse(line) == visit


@pytest.mark.parametrize("lacking", ["%h", "%t", "%r", "%>s"])
def test_a_pattern_must_say_who_saw_what_and_when(lacking: str) -> None:
    with pytest.raises(InvalidConfiguration, match="has no "):
        AccessLogFormat("%h %t %r %>s".replace(lacking, "%l"))


@pytest.mark.parametrize(
    ("pattern", "line", "said"),
    [
        ("%h %t %r %>s", b"::1", "not in the given log format"),
        (
            "$remote_addr $time_iso8601 $uri $status",
            b"::1 2025-03-01T21:00:00 / 200",
            "not a time with a zone",
        ),
    ],
    ids=range(2),
)
def test_another_line_is_refused_with_the_reason(pattern: str, line: bytes, said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        AccessLogFormat(pattern).parse(line)


@pytest.mark.parametrize(
    ("pattern", "time"),
    [
        (None, b"[01/Jan/0001:00:00:00 +2359]"),
        (None, b"[31/Dec/9999:23:59:59 -2359]"),
        ('$remote_addr [$time_iso8601] "$request" $status', b"[0001-01-01T00:00:00+23:59]"),
        ('$remote_addr [$msec] "$request" $status', b"[999999999999.000]"),
    ],
)
def test_a_time_without_a_day_in_utc_is_refused(pattern: str | None, time: bytes) -> None:
    """Ids of visitors are of a day: such a line would end each run that reads it."""
    ends = b"192.0.2.7 - - ", b' "GET / HTTP/1.1" 200 5'
    line = time.join(ends) if pattern is None else b"192.0.2.7 " + time + b' "GET / HTTP/1.1" 200'

    with pytest.raises(InvalidData, match="years 1 to 9999"):
        AccessLogFormat(pattern).parse(line)


@pytest.mark.parametrize("letter", [b"a", b"\xff"])
def test_texts_are_limited(letter: bytes) -> None:
    """Also if bytes are not UTF-8: each becomes three."""
    found: Any = AccessLogFormat().parse(
        b'::1 - - %s "GET /%s HTTP/1.1" 200 5 "-" "%s"' % (TIME, letter * 9_000, letter * 9_000)
    )

    size = len(letter.decode(errors="replace").encode())
    assert all(2_000 - size < len(text.encode()) <= 2_000 for text in (found.page, found.agent))
