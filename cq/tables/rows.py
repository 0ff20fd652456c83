"""Values of queues and tops as rows of tables, page by page: for files, and for Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from cq.config.queue import read_config
from cq.durations import Span
from cq.encoding.codec import ValueType
from cq.encoding.columns import Field, Row
from cq.observers.top.ranking import Ranking, current_settings
from cq.observers.top.trending import trending
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, TransactionRead
from cq.store.bounded_reads import pages
from cq.store.transact import transact
from cq.windows.window import reader_of

PAGE_ROWS: Final = 10_000
"""Maximum rows of a page, which one transaction reads."""


class TableRows(NamedTuple):
    """Rows of a table: its fields, and an iterator of pages. Each page is a list of rows."""

    fields: list[Field]
    pages: Iterable[Sequence[Row]]


def queue_rows(db: Database, queue: CombineQueue[Any, Any], limit: int | None = None) -> TableRows:
    """The keys and last reported values of a queue, at most `limit`, in pages of up to 10,000 keys or about 1 MB.

    Of the keys in a window, such as `hits.window`, their totals now; if slices are merged, this needs the queue's
    combiner.

    Each page is read in its own transaction, as by `CombineQueue.scan`. Raises `QueueNotConfigured`.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue.name))
    source = reader_of(config, queue.combiner)
    read = pages(db, lambda tr, after: source.items(tr.snapshot, limit=_page_rows(limit), after=after))
    return TableRows([Field("key", config.key), Field("value", config.value)], _first(read, limit))


def top_rows(
    db: Database,
    ranking: Ranking[Any, Any],
    limit: int | None = None,
    *,
    group: str | None = None,
    bottom: bool = False,
) -> TableRows:
    """The keys and scores of a top, at most `limit`, the highest score first, or the lowest with `bottom`.

    A score has the type of the queue's values (int for sketches), or float if the application has a function for
    scores. Each page of up
    to 10,000 entries is read in its own transaction, as by `Ranking.scan`. Raises the errors of `Ranking`.
    """
    read = pages(
        db,
        lambda tr, after: ranking.page(
            tr.snapshot, _page_rows(limit), group=group, bottom=bottom, after=after
        ),
    )
    rows = ([(entry.key, entry.score) for entry in page] for page in read)
    fields = transact(db, lambda tr: _entry_fields(tr.snapshot, ranking.name))
    return TableRows(fields, _first(rows, limit))


def group_rows(db: Database, ranking: Ranking[Any, Any], limit: int) -> TableRows:
    """The first `limit` groups of a top, and the number of keys of each. Raises the errors of `Ranking`."""
    rows: list[Row] = [*transact(db, lambda tr: ranking.groups(tr.snapshot, limit))]
    return TableRows([Field("group", ValueType("str")), Field("count", ValueType("int"))], [rows])


def trending_rows(db: Database, queue: str, by: Span, at: float | None, limit: int) -> TableRows:
    """The keys, scores, ranks and former ranks of `trending`, in one transaction; raises its errors."""
    rows: list[Row] = [
        *transact(db, lambda tr: trending(tr.snapshot, queue, by=by, at=at, limit=limit)),
    ]
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    rank = ValueType("int")
    score = _score_type(config.value)
    fields = [Field("key", config.key), Field("score", score), Field("rank", rank), Field("before", rank)]
    return TableRows(fields, [rows])


def _entry_fields(tr: TransactionRead, name: str) -> list[Field]:
    config = read_config(tr, name)
    settings, _ = current_settings(tr, config)
    is_value = bool(settings) and not settings.get("score")
    return [
        Field("key", config.key),
        Field("score", _score_type(config.value) if is_value else ValueType("float")),
    ]


def _score_type(value: ValueType) -> ValueType:
    """The type of the scores of values of this type, without a function for scores."""
    if value.sketch is not None:
        return ValueType("int")
    return ValueType("float") if value.name == "any" else value


def _page_rows(limit: int | None) -> int:
    return PAGE_ROWS if limit is None else max(1, min(limit, PAGE_ROWS))


def _first(read: Iterable[Sequence[Row]], limit: int | None) -> Iterator[Sequence[Row]]:
    """The pages up to the first `limit` rows."""
    left = limit
    for page in read if limit != 0 else ():
        yield page[:left]
        if left is not None:
            left -= len(page)
            if left <= 0:
                return
