"""Lines of access logs: the visits in them, in the formats of nginx, of Apache, and of your own."""

from __future__ import annotations

from typing import Any

import pytest

from cq.errors import InvalidConfiguration, InvalidData
from cq.intake.access_log import AccessLogFormat, Visit

TIME = b"[01/Mar/2025:20:00:00 +0000]"
AT = 1_740_859_200.0


@pytest.mark.parametrize(
    ("line", "visit"),
    [
        (b'192.0.2.7 - - TIME "GET /a?b=c HTTP/1.1" 200 5', Visit(AT, "/a", "192.0.2.7", "", 5)),
        (b'::1 - ann TIME "GET / HTTP/2.0" 304 - "http://x/" "B/1"\r\n', Visit(AT, "/", "::1", "B/1")),
        (
            b'::1 - - TIME "GET / HTTP/2.0" 200 7 "-" "\\"b\\"" 0.250\n',
            Visit(AT, "/", "::1", '\\"b\\"', 7, 0.25),
        ),
        (b'::1 - - TIME "GET /" 206 7 250000\n', Visit(AT, "/", "::1", "", 7, 0.25)),
        (b'::1 - - TIME "GET / HTTP/1.1" 200 7 -\n', Visit(AT, "/", "::1", "", 7)),
        (b'::1 - - TIME "POST / HTTP/1.1" 200 7\n', None),
        (b'::1 - - TIME "GET / HTTP/1.1" 404 7\n', None),
    ],
    ids=range(7),
)
def test_common_and_combined_format(line: bytes, visit: Visit | None) -> None:
    assert AccessLogFormat().parse(line.replace(b"TIME", TIME)) == visit


@pytest.mark.parametrize(
    ("pattern", "line", "visit"),
    [
        (
            '$remote_addr [$time_local] "$request" $status $body_bytes_sent "$http_user_agent" $request_time',
            b'::1 [01/Mar/2025:20:00:00 +0000] "GET /a HTTP/1.1" 200 5 "B 1" 1.500',
            Visit(AT, "/a", "::1", "B 1", 5, 1.5),
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
            Visit(AT, "/", "192.0.2.7", "B", 5, 0.5),
        ),
        (
            '"%{X-Forwarded-For}i" %t "%r" %>s %T',
            b'"192.0.2.7, 10.0.0.1" [01/Mar/2025:20:00:00 +0000] "GET / HTTP/1.1" 200 2',
            Visit(AT, "/", "192.0.2.7", "", None, 2.0),
        ),
    ],
    ids=range(5),
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
        (None, b"nothing\n", "neither common nor combined log format: 'nothing"),
        (None, b'::1 - - [01/Mat/2025:20:00:00 +0000] "GET / HTTP/1.1" 200 5', "not a time"),
        (None, b'::1 - - [01/Mar/2025:20:00:00 +0000] "\\x16\\x03" 200 5', "not a request"),
        ("%h %t %r %>s", b"::1", "not in the given log format"),
        (
            "$remote_addr $time_iso8601 $uri $status",
            b"::1 2025-03-01T21:00:00 / 200",
            "not a time with a zone",
        ),
    ],
    ids=range(5),
)
def test_another_line_is_refused_with_the_reason(pattern: str | None, line: bytes, said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        AccessLogFormat(pattern).parse(line)


def test_texts_are_limited() -> None:
    found: Any = AccessLogFormat().parse(
        b'::1 - - %s "GET /%s HTTP/1.1" 200 5 "-" "%s"' % (TIME, b"a" * 9_000, b"b" * 9_000)
    )

    assert (len(found.page), len(found.agent)) == (2_000, 2_000)
