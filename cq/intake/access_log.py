"""Access logs of web servers: the visits in their lines, in common and combined format, or in a format of your own."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from cq.errors import InvalidConfiguration, InvalidData

_COMMON: Final = '%h %l %u %t "%r" %>s %b'
_BROWSER: Final = ' "%{Referer}i" "%{User-Agent}i"'
_QUOTED: Final = r'(?:[^"\\]|\\.)*'
_FORWARDED: Final = f'(?: "{_QUOTED}")?'  # the last field of the format `main` in nginx's own packages
_TOOK: Final = r"(?: (?:\d{1,12}(?:\.\d{1,9})?|-))?"
_FIELD: Final = re.compile(r"\$\{([a-z0-9_]+)\}|\$([a-z0-9_]+)|%[<>]?((?:\{[^}]*\})?[A-Za-z])")
_FIELDS: Final = {
    # {name of a field of nginx or Apache: its group}
    **dict.fromkeys(("remote_addr", "h", "a", "{c}a"), "address"),
    **dict.fromkeys(("http_x_forwarded_for", "{X-Forwarded-For}i"), "forwarded"),
    **dict.fromkeys(("time_local", "t"), "time"),
    "time_iso8601": "iso",
    "msec": "unix",
    **dict.fromkeys(("request", "r"), "request"),
    **dict.fromkeys(("request_method", "m"), "method"),
    **dict.fromkeys(("request_uri", "uri", "U"), "page"),
    **dict.fromkeys(("status", "s"), "status"),
    **dict.fromkeys(("http_user_agent", "{User-Agent}i", "{User-agent}i"), "agent"),
}
_SHAPES: Final = {
    "t": r"\[[^\]]{20,40}\]",
    "time_local": r"[^\]]{20,40}",
    "msec": r"\d{1,12}(?:\.\d{1,9})?",
    **dict.fromkeys(("status", "s"), r"\d{3}"),
}
_MAX_TEXT_BYTES: Final = 2_000  # of a page or a browser; keys of a queue have up to 8,000 bytes
_SHOWN: Final = 80
# Each time between them has a day in UTC, which ids of visitors and sessions need.
_FIRST_TIME: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_END_OF_TIMES: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class Visit(NamedTuple):
    """A visit of a page.

    Attributes:
        time: in seconds since 1970.
        page: path of the page.
        address: of the visitor.
        agent: the visitor's browser; empty if the log does not name it.
    """

    time: float
    page: str
    address: str
    agent: str = ""

    @property
    def visitor(self) -> str:
        """Address and browser, with a hash instead of the browser's long name."""
        if not self.agent:
            return self.address
        return f"{self.address} {blake2b(self.agent.encode(), digest_size=6).hexdigest()}"


class AccessLogFormat:
    r"""The format of an access log, by which its lines are read.

    A visit is a GET with an answer of status 2xx or 304.

    Args:
        pattern: as in the settings of the web server: `log_format` of nginx, such as
            `'$remote_addr [$time_local] "$request" $status'`, or `LogFormat` of Apache, such as
            `'%h %t "%r" %>s "%{User-Agent}i"'`. None: common or combined format, or nginx's `main`. A last
            field may have the time of the response.

    Raises:
        InvalidConfiguration: the pattern lacks the address, the time, the request or the status.

    >>> AccessLogFormat().parse(b'192.0.2.7 - - [01/Mar/2025:20:00:00 +0000] "GET /news?from=list HTTP/1.1" 200 5120\n')
    Visit(time=1740859200.0, page='/news', address='192.0.2.7', agent='')
    """

    def __init__(self, pattern: str | None = None) -> None:
        if pattern is None:
            groups = set[str]()
            text = f"{_compiled(_COMMON, groups)}(?:{_compiled(_BROWSER, groups)}{_FORWARDED})?{_TOOK}"
        else:
            text = _compiled(pattern.strip(), set())
        # Bytes that are not UTF-8 are surrogates in arguments of a command.
        self._line = re.compile(text.encode("utf-8", "surrogateescape") + rb"\s*")
        self._name = (
            "neither common nor combined log format" if pattern is None else "not in the given log format"
        )
        self._check(pattern)

    def _check(self, pattern: str | None) -> None:
        found = self._line.groupindex.keys()
        for what, names, example in (
            ("address", {"address", "forwarded"}, "$remote_addr or %h"),
            ("time", {"time", "iso", "unix"}, "$time_local or %t"),
            ("request", {"request", "page"}, "$request or %r"),
            ("status", {"status"}, "$status or %>s"),
        ):
            if not names & found:
                raise InvalidConfiguration(
                    f"the log format {pattern!r} has no {what}: expected {example} in it"
                )

    def parse(self, line: bytes) -> Visit | None:
        """The visit of a line, None for another request; raises `InvalidData` for a line of another format."""
        found = self._line.fullmatch(line)
        if found is None:
            raise InvalidData(f"{self._name}: {_text(line, _SHOWN)!r}")
        fields = found.groupdict()
        time = _time(fields)
        status = fields["status"]
        if not (status[:1] == b"2" or status == b"304"):
            return None  # perhaps without a request, such as that of a load balancer's probe
        method, page = fields.get("method") or b"GET", fields.get("page")
        if page is None:
            request = fields["request"].split(b" ")
            if len(request) not in (2, 3):
                raise InvalidData(f"not a request: {_text(fields['request'], _SHOWN)!r}")
            method, page = request[:2]
        if method != b"GET":
            return None
        address = fields.get("address") or fields["forwarded"].partition(b",")[0]
        return Visit(
            time,
            _text(page.partition(b"?")[0]) or "/",
            _text(address),
            _text(fields.get("agent") or b""),
        )


def _compiled(pattern: str, groups: set[str]) -> str:
    """The regular expression of a pattern, and the names of its groups, added to `groups`."""
    parts, end = list[str](), 0
    for field in _FIELD.finditer(pattern):
        parts.append(re.escape(pattern[end : field.start()]))
        name, end = field[field.lastindex or 0], field.end()
        before = pattern[field.start() - 1] if field.start() else ""
        shape = _SHAPES.get(name) or {'"': _QUOTED, "[": r"[^\]]*"}.get(before, r"\S+")
        group = _FIELDS.get(name)
        if group is None or group in groups:
            parts.append(shape)
        else:
            groups.add(group)
            parts.append(f"(?P<{group}>{shape})")
    return "".join(parts) + re.escape(pattern[end:])


def _text(data: bytes, limit: int = _MAX_TEXT_BYTES) -> str:
    # Cut again, as a byte that is not UTF-8 becomes three: keys of a queue have a limit.
    return data[:limit].decode("utf-8", "replace").encode()[:limit].decode("utf-8", "ignore")


def _time(fields: dict[str, bytes | None]) -> float:
    for name, parse in (("time", _seconds), ("iso", _iso), ("unix", float)):
        found = fields.get(name)
        if found is not None:
            time = parse(found)
            if not _FIRST_TIME <= time < _END_OF_TIMES:
                raise InvalidData(f"not a time of the years 1 to 9999: {_text(found)!r}")
            return time
    raise AssertionError(fields)  # the pattern was checked


@lru_cache(maxsize=1_000)  # many visits have the same second, and parsing a time takes longer than the rest
def _seconds(text: bytes) -> float:
    try:
        return datetime.strptime(text.decode("ascii").strip("[]"), "%d/%b/%Y:%H:%M:%S %z").timestamp()
    except (ValueError, OverflowError):
        raise InvalidData(f"not a time: {_text(text)!r}") from None


@lru_cache(maxsize=1_000)
def _iso(text: bytes) -> float:
    try:
        time = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidData(f"not a time with a zone: {_text(text)!r}")
    return time.timestamp()
