"""Visits of pages: views and unique visitors of the last minutes, and of all time, and sessions by day.

Five queues, and two more each with `readers` and with `sessions`; their names begin with the name of the visits:

    NAME.views      page: views, over a window
    NAME.seen       (page, visitor): views, over the same window; counted into:
    NAME.visitors   page: distinct visitors within the window
    NAME.lifetime   page: all views ever, except those of authors
    NAME.readers    page: distinct readers ever, on request, counted from:
    NAME.read       (page, visitor): all views ever, except those of authors
    NAME.salts      day: a random salt for the ids of visitors, for two days
    NAME.sessions   on request, see `cq.observers.sessions`, counted from:
    NAME.sessions.visitors

The whole site has the key "" where a page has its name: each visit counts there, too.
"""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import cq
from cq import runtime
from cq.admin.configure import change, put_observer, requested
from cq.admin.configured_queue import WindowSetting
from cq.arguments import repeatable
from cq.config.rollup import LevelPart
from cq.config.window import WindowSpec, milliseconds
from cq.durations import Span, seconds_of
from cq.errors import InvalidConfiguration, InvalidData
from cq.intake.access_log import AccessLogFormat, Visit
from cq.intake.lines import AddedLines
from cq.intake.logs import LogFollower
from cq.keys import queue_entry
from cq.observers.distinct import count_now, distinct
from cq.observers.sessions import DAY, Sessions, interval
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.reads import snapshot_of
from cq.store.transact import transact
from cq.windows import Window
from cq.windows.window import TAKEN

BOTS: Final = r"bot|crawl|spider|slurp|scan|monitor|preview|fetch|curl|wget|python|java/|go-http|^-$"
"""Parts of the names of programs that are no browsers, and of requests without a name."""
_PAIR: Final = (str, str)
_SITE: Final = ""
_SALT_BYTES: Final = 16
_ID_BYTES: Final = 9
_SALTS_KEPT: Final = 8
_MIN_UNFIT: Final = 10


@dataclass(frozen=True, slots=True)
class PageVisits:
    """The counts of a page, or of the whole site.

    Attributes:
        views, visitors: within the window.
        lifetime: all views ever, except those of authors.
        readers: distinct visitors ever, except authors; None if they are not counted.
    """

    views: int
    visitors: int
    lifetime: int
    readers: int | None = None


class VisitorIds:
    """Ids of visitors that do not contain their addresses, and that change every day.

    An id is a hash with a random salt, which all processes share for a day (UTC) and which is deleted after two days
    (or later, if sessions take later visits). From then on an id cannot be traced to a visitor, nor two ids of
    different days to the same visitor.

    Args:
        db: a database of either store, with the configured queue of salts.
        visits: the name of the visits.
    """

    def __init__(self, db: Database, visits: str) -> None:
        self._db, self._salts = db, cq.CombineQueue[str, bytes](f"{visits}.salts")
        self._known: dict[str, bytes] = {}

    def of(self, visitor: str, at: float | None = None) -> str:
        """Return the id of a visitor, such as an address with a browser, for the day of a time.

        It reads the store once a day and process, in a transaction of its own.

        Args:
            visitor: what tells visitors apart.
            at: seconds since 1970; default: now.
        """
        time = datetime.fromtimestamp(runtime.time() if at is None else at, UTC)
        salt = self._salt(f"{time:%Y-%m-%d}")
        digest = blake2b(visitor.encode("utf-8", "surrogatepass"), key=salt, digest_size=_ID_BYTES).digest()
        return urlsafe_b64encode(digest).decode()

    def _salt(self, day: str) -> bytes:
        while (salt := self._known.get(day)) is None:
            # Of the salts that several processes add, the first one counts for all.
            stored = transact(self._db, lambda tr: self._salts.get(tr.snapshot, day, pending=True))
            if stored is None:
                new = {day: runtime.token_bytes(_SALT_BYTES)}
                transact(self._db, lambda tr: self._salts.add(tr, new))  # noqa: B023
            else:
                self._known = dict([*self._known.items(), (day, stored)][-_SALTS_KEPT:])
        return salt


class Visits:
    """Counts visits of pages, and of the whole site.

    Pages and visitors are str, and pages are not empty. A handle without state, see `cq.CombineQueue`.

    Args:
        name: beginning of the queues' names.
        readers: whether to count distinct visitors of all time, too: each pair of page and visitor then has a value
            that is never removed.
        sessions: whether to count sessions, too.

    Attributes:
        sessions: the sessions of visitors on all pages, which count the visits of authors, too.
    """

    def __init__(self, name: str = "visits", *, readers: bool = False, sessions: bool = False) -> None:
        self.name = name
        self.views = Window(f"{name}.views")
        self.seen = Window(f"{name}.seen")
        self.visitors = cq.CombineQueue(f"{name}.visitors")
        self.lifetime = cq.CombineQueue(f"{name}.lifetime")
        self.readers = cq.CombineQueue(f"{name}.readers") if readers else None
        self.read = cq.CombineQueue(f"{name}.read")
        self.salts = cq.CombineQueue[str, bytes](f"{name}.salts")
        self.sessions = Sessions(f"{name}.sessions")
        self.has_sessions = sessions
        # The queue with the pairs of page and visitor in the window.
        self._inside = LevelPart.WINDOW.queue_of(self.seen.name)

    @classmethod
    def stored(cls, db: Database, name: str) -> Visits | None:
        """Return the visits of a name with the queues that the store has; None if there are none."""
        made = cls(name)
        names = made.views.name, made.read.name, made.sessions.visitors.name
        views, read, sessions = transact(
            db, lambda tr: [tr.get(queue_entry(each)).value is not None for each in names]
        )
        return cls(name, readers=read, sessions=sessions) if views else None

    @property
    def queues(self) -> list[str]:
        """Return the names of all queues."""
        ever = [] if self.readers is None else [self.readers.name, self.read.name]
        ever += self.sessions.queues if self.has_sessions else []
        return [
            each.name for each in (self.views, self.seen, self.visitors, self.lifetime, self.salts)
        ] + ever

    def configure(
        self,
        db: Database,
        *,
        window: WindowSetting = (600, 10),
        buckets: int | None = None,
        gap: Span = "30m",
        late: Span = "1d",
    ) -> None:
        """Configure the queues; raises `ConfigurationConflict` if they exist with other settings.

        `window` is the one of `cq.configure`; it can be changed. `gap` and `late` are those of `Sessions.configure`.
        """
        spec = WindowSpec.parse(window)
        if not spec:
            raise InvalidConfiguration("expected the width and slice of a window, such as 10m/10s")
        for counted in (self.visitors, self.lifetime, self.readers):
            if counted is not None:
                cq.configure(db, counted.name, key=str, value=int, combiner="sum", buckets=buckets)
        cq.configure(
            # As long as sessions take visits of a day, these need the ids that earlier ones have.
            db,
            self.salts.name,
            key=str,
            value=bytes,
            combiner="first",
            expire=DAY + seconds_of(late),
            buckets=1,
        )
        if self.has_sessions:
            self.sessions.configure(db, gap=gap, late=late, buckets=buckets)
        cq.configure(db, self.views.name, key=str, window=window, buckets=buckets)
        # Only its window is read: pairs that have left it are deleted.
        left = -(-(spec.width + spec.slice) // 1000)
        cq.configure(db, self.seen.name, key=_PAIR, window=window, expire=left, buckets=buckets)
        put_observer(db, self._inside, distinct(self.visitors.name))
        if self.readers is not None:
            counts = [distinct(self.readers.name)]
            change(db, self.read.name, requested(key=_PAIR, buckets=buckets, put=counts))

    def ids(self, db: Database) -> VisitorIds:
        """Return the ids of visitors, the same for all processes; call it once in each process."""
        return VisitorIds(db, self.name)

    def count(
        self,
        tr: Transaction,
        page: str,
        visitor: str,
        *,
        author: str | None = None,
        at: float | None = None,
        once: str | bytes | None = None,
    ) -> str:
        """Count a visit as a part of the transaction; blind, so it conflicts with no other visit.

        Args:
            tr: a transaction of either store.
            page: the page.
            visitor: its visitor.
            author: author of the page: the author's visits count within the window, and not in the lifetime's counts.
            at: time of the visit, in seconds since 1970; default: now.
            once: an operation id, if the transaction may run again after a commit of unknown result.

        Returns:
            The result of `Window.add`: whether the visit is in the window. The lifetime's counts include it anyway, and
            so do sessions unless it is later than they take visits.
        """
        time = runtime.time() if at is None else at
        authors = {} if author is None else {page: author}
        return self._count(tr, Counter([(page, visitor, time)]), authors, once)[time]

    def count_each(
        self, tr: Transaction, visits: Iterable[tuple[str, str, float]], *, once: str | bytes | None = None
    ) -> int:
        """Count visits of different times, as triples of page, visitor and time in seconds since 1970.

        Returns the number of visits that are not in the window, because of their time. They count all the same in the
        lifetime's counts, and in sessions, as for `count`. Raises `OneShotIterable` for an iterator of visits, which
        would be empty when the transaction is retried.
        """
        found = Counter(repeatable(visits, "visits"))
        judged = self._count(tr, found, {}, once)
        return sum(number for (_, _, at), number in found.items() if judged[at] != TAKEN)

    def _count(
        self,
        tr: Transaction,
        found: Mapping[tuple[str, str, float], int],
        authors: Mapping[str, str],
        once: str | bytes | None,
    ) -> dict[float, str]:
        """Count visits; returns for each time whether it is in the window, as `Window.add` does."""
        now = runtime.time()
        views: Counter[tuple[str, float]] = Counter()
        seen: Counter[tuple[str, str, float]] = Counter()
        ever: Counter[str] = Counter()
        read: Counter[tuple[str, str]] = Counter()
        for (page, visitor, at), number in found.items():
            for each in _with_site(page):
                views[each, at] += number
                seen[each, visitor, at] += number
                if authors.get(page) != visitor:
                    ever[each] += number
                    read[each, visitor] += number
        # One `now` for both windows: each visit is in both, or in none.
        timed = [(page, number, at) for (page, at), number in views.items()]
        judged = self.views.add_each(tr, timed, once, now=now)
        pairs = [((page, visitor), number, at) for (page, visitor, at), number in seen.items()]
        self.seen.add_each(tr, pairs, once, now=now)
        self.lifetime.add(tr, ever, once)
        if self.readers is not None:
            self.read.add(tr, read, once)
        if self.has_sessions:
            visited = [(visitor, at) for (_, visitor, at), number in found.items() for _ in range(number)]
            self.sessions.add(tr, visited, once, now=now)
        return {at: each for (_, _, at), each in zip(timed, judged, strict=True)}

    def site(self, tr: TransactionRead, *, pending: bool = False, now: float | None = None) -> PageVisits:
        """Return the counts of the whole site: all views, and visitors of any page, each counted once. See `get`."""
        return self.get(tr, _SITE, pending=pending, now=now)

    def get(
        self, tr: TransactionRead, page: str, *, pending: bool = False, now: float | None = None
    ) -> PageVisits:
        """Return the counts of a page: a read for each count, and one of the slices that have left.

        Each is the last combined value. With `pending` they are exact at the transaction's read version, even if no
        worker runs; this reads all queued updates. `now` is the end of the window, as for `Window.get`, whose errors it
        raises.
        """
        return PageVisits(
            self.views.get(tr, page, pending=pending, now=now) or 0,
            self._distinct(tr, self.visitors, self._inside, page, pending=pending, now=now),
            self.lifetime.get(tr, page, pending=pending) or 0,
            None
            if self.readers is None
            else self._distinct(tr, self.readers, self.read.name, page, pending=pending, now=now),
        )

    def _distinct(
        self,
        tr: TransactionRead,
        counts: cq.CombineQueue,
        source: str,
        page: str,
        *,
        pending: bool,
        now: float | None,
    ) -> int:
        found: int = counts.get(tr, page) or 0
        if pending:
            found += count_now(snapshot_of(tr), source, counts.name, 1, milliseconds(now)).get(page, 0)
        return found

    def within(self, tr: TransactionRead, *, now: float | None = None) -> dict[str, tuple[int, int]]:
        """Return {page: (views, distinct visitors)} of the window, exact at the transaction's read version.

        Of pages, without the whole site. It includes queued updates and excludes what has left the window, even if no
        worker runs. The number of pages is limited by what one transaction can read. Raises `BacklogTooDeep` if more
        than 1 MB is queued or expired.
        """
        snapshot, present = snapshot_of(tr), milliseconds(now)
        views = _all(snapshot, self.views, now=present / 1000, pending=True)
        visitors = Counter(_all(snapshot, self.visitors))
        visitors.update(count_now(snapshot, self._inside, self.visitors.name, 1, present))
        pages = sorted(page for page in {*views, *visitors} - {_SITE} if views.get(page) or visitors[page])
        return {page: (views.get(page, 0), visitors[page]) for page in pages}


class VisitLog:
    """Counts the visits in the lines of an access log: call it with lines in a transaction, as `LogFollower` does.

    An address and, if the log names it, a browser are a visitor.

    Args:
        visits: counts them.
        ids: gives visitors other names, see `Visits.ids`; None: their addresses are stored.
        log_format: the format of the lines; by default common or combined format.
        bots: visits of browsers do not count if this regular expression matches their name anywhere, in upper or lower
            case; None: all count.

    Raises:
        InvalidConfiguration: `bots` is not a regular expression.
    """

    def __init__(
        self,
        visits: Visits,
        log_format: AccessLogFormat | None = None,
        *,
        bots: str | None = BOTS,
        ids: VisitorIds | None = None,
    ) -> None:
        self._visits, self._ids = visits, ids
        self._format = AccessLogFormat() if log_format is None else log_format
        self._bots = bot_pattern(bots)
        self._fits = False  # whether a line was in the format

    def follow(self, db: Database, path: str | os.PathLike[str], *, name: str | None = None) -> LogFollower:
        """Return the follower of the log at a path; `name` and errors are those of `cq.intake.LogFollower`."""
        return LogFollower(db, self._visits.views.name, Path(path), name)

    def __call__(
        self, tr: Transaction, lines: Sequence[bytes], once: str | bytes | None = None
    ) -> AddedLines:
        """Count the visits of lines as a part of the transaction, and skip those that have another format.

        Raises `InvalidData` if the first lines, ten or more, all have another format: the format is likely wrong, and
        lines that are skipped are not read again.
        """
        found, skipped, problem = list[Visit](), 0, ""
        for line in lines:
            try:
                visit = self._format.parse(line)
            except InvalidData as error:
                skipped, problem = skipped + 1, problem or str(error)
                continue
            if visit is not None and not (self._bots and self._bots.search(visit.agent)):
                found.append(visit)
        if not self._fits and skipped == len(lines) >= _MIN_UNFIT:
            raise InvalidData(
                f"none of the first {skipped:,} lines can be read, so none is counted: {problem}; give the format of "
                "the log, `--log-format` in the command line"
            )
        self._fits |= skipped < len(lines)
        visits = [(each.page, self._visitor(each), each.time) for each in found]
        outside = self._visits.count_each(tr, visits, once=once)
        return AddedLines(len(lines), len(found), skipped=skipped, problem=problem, outside=outside)

    def _visitor(self, visit: Visit) -> str:
        return visit.visitor if self._ids is None else self._ids.of(visit.visitor, visit.time)


class VisitEmitter:
    """Counts visits outside of the application's transactions, many in each transaction of its own.

    It has an emitter for each queue, see `cq.Emitter` for the arguments. Make one in each process, after forking, and
    close it at the end, or use it as a context manager. Each emitter commits in transactions of its own: for a moment,
    or if the process dies, a visit may count in one queue and not in another.
    """

    def __init__(self, visits: Visits, db: Database, **settings: Any) -> None:
        self._views, self._seen, self._lifetime = (
            cq.Emitter(queue, db, **settings) for queue in (visits.views, visits.seen, visits.lifetime)
        )
        self._read = cq.Emitter(visits.read, db, **settings) if visits.readers is not None else None
        self._visitors = cq.Emitter(visits.sessions.visitors, db, **settings) if visits.has_sessions else None
        if visits.has_sessions:
            self._gap = transact(db, lambda tr: visits.sessions.rules(tr.snapshot)).gap
        some = self._views, self._seen, self._lifetime, self._read, self._visitors
        self._emitters = [each for each in some if each is not None]

    def __enter__(self) -> VisitEmitter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count(self, page: str, visitor: str, *, author: str | None = None) -> None:
        """Count a visit now; waits for room and raises as `cq.Emitter.emit`."""
        for each in _with_site(page):
            self._views.emit(each)
            self._seen.emit((each, visitor))
            if visitor != author:
                self._lifetime.emit(each)
                if self._read is not None:
                    self._read.emit((each, visitor))
        if self._visitors is not None:
            self._visitors.emit(*interval(visitor, int(runtime.time()), self._gap))

    def flush(self) -> None:
        """Flush all emitters, see `cq.Emitter.flush`."""
        for emitter in self._emitters:
            emitter.flush()

    def close(self) -> None:
        """Commit the buffered visits, and refuse later ones; raises `FlushFailed` after all emitters are closed."""
        with ExitStack() as closing:
            for emitter in self._emitters:
                closing.callback(emitter.close)


def _with_site(page: str) -> tuple[str, str]:
    """The page and the site; raises `InvalidData` for an empty page, whose key is that of the site."""
    if page == _SITE:
        raise InvalidData(f"expected a page of at least one character, got: {page!r}")
    return page, _SITE


def _all(tr: TransactionRead, queue: cq.CombineQueue | Window, **given: Any) -> dict[Any, Any]:
    """Return all items, read in one transaction."""
    page = queue.items(tr, **given)
    found = dict(page.items)
    while page.continuation is not None:
        page = queue.items(tr, after=page.continuation, **given)
        found.update(page.items)
    return found


def bot_pattern(bots: str | None) -> re.Pattern[str] | None:
    """Return the compiled `bots` of a `VisitLog`; raises `InvalidConfiguration`."""
    try:
        return None if bots is None else re.compile(bots, re.IGNORECASE)
    except re.error as error:
        raise InvalidConfiguration(
            f"expected a regular expression of bots, got: {bots!r} ({error})"
        ) from None
