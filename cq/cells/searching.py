"""Searches in all cells at once, in pages that merge what the cells have found, in order."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from cq.arguments import check_limit
from cq.cells.ask_all import gather
from cq.cells.cells import Cells
from cq.durations import Span
from cq.encoding import codec
from cq.errors import CqError, InvalidData
from cq.keys import after as following
from cq.keys import cell as keys
from cq.store.api import Transaction

T = TypeVar("T")

Find = Callable[[Transaction, Any, int], Sequence[tuple[Any, T]]]
_MAX_TOKEN: Final = 10_000


@dataclass(frozen=True)
class SearchPage(Generic[T]):
    """A page of a search.

    Attributes:
        items: the items, in order.
        token: for the next page; None: there are no more items in the cells that have answered.
        missing: {cell: error} of the cells that have not answered: their items are not on this page. The same search
            again, with the token of the page before, may have them.
    """

    items: list[T]
    token: str | None
    missing: dict[str, str]


class FoundEntry(NamedTuple):
    """An entry of an index: see `cq.cells.UserData.put_entry`."""

    user: Any
    text: str
    value: Any


def search(
    cells: Cells, find: Find[T], *, limit: int = 20, token: str | None = None, timeout: Span = 2.0
) -> SearchPage[T]:
    """Ask all cells at once, and return a page of what they find, in order.

    Args:
        cells: the cells.
        find: finds items in a cell: `entries(...)`, or a function `find(tr, after, limit)` of your own. It returns the
            first `limit` pairs (place, item) after the place `after`, or from the beginning if that is None. A place is
            a str, int or bytes. Items of two cells with one place are one item.
        limit: maximum number of items of a page.
        token: the token of the page before; None: the first page.
        timeout: time limit; cells that take longer are named in the page.

    Raises:
        InvalidData: the token is not one of such a page, or one of another index; or an error of `find`; or the limit
            is not an int from 1 on.
        FDBError: the directory cannot be read.
    """
    check_limit(limit)
    after = None if token is None else _place(token)

    def ask(tr: Transaction) -> list[tuple[Any, T]] | InvalidData:
        try:
            return sorted(find(tr, after, limit + 1), key=itemgetter(0))
        except InvalidData as error:  # of the caller, not of the cell
            return error

    found = gather(cells, ask, timeout=timeout)
    answers = []
    for answer in found.answers.values():
        if isinstance(answer, InvalidData):
            raise answer
        answers.append(answer)
    merged = heapq.merge(*answers, key=itemgetter(0))
    pairs = [next(same) for _, same in groupby(merged, key=itemgetter(0))]
    page = pairs[:limit]
    more = base64.urlsafe_b64encode(codec.encode(page[-1][0])).decode() if len(pairs) > limit else None
    return SearchPage([item for _, item in page], more, found.missing)


def _place(token: str) -> Any:
    try:
        place = codec.decode(base64.b64decode(token[:_MAX_TOKEN], b"-_", validate=True))
    except (TypeError, ValueError, CqError):
        place = None
    if type(place) not in (str, int, bytes):
        raise InvalidData("the token is not one that a search has returned: begin with the first page")
    return place


def entries(index: str, prefix: str = "") -> Find[FoundEntry]:
    """Return a function for `search` that finds the entries of an index, by their texts.

    Args:
        index: name of the index, as in `UserData.put_entry`.
        prefix: finds the entries that begin with this text only.

    Raises:
        InvalidConfiguration: the index has no valid name.
        InvalidData, TooLarge: no entry can begin so: the prefix is no valid text, or too long.
    """
    begin, end = keys.listed_entries(index, prefix)

    def find(tr: Transaction, after: Any, limit: int) -> list[tuple[bytes, FoundEntry]]:
        if after is not None and not (type(after) is bytes and begin <= after < end):
            raise InvalidData("the token is one of another search: begin with the first page")
        start = begin if after is None else following(after)
        found: list[tuple[bytes, FoundEntry]] = []
        while len(found) < limit and start < end:
            rows = tr.snapshot.get_range(start, end, limit=limit).to_list()
            parts = [keys.parts_of_entry(row.key) for row in rows]
            # The user's own entry counts: the other one may be left from a copy that was discarded.
            own = [tr.snapshot.get(keys.own_entry(user, name)) for name, user in parts]
            for row, (name, user), value in zip(rows, parts, own, strict=True):
                if value.value is not None:
                    text = name.partition(b"/")[2].decode()
                    found.append((row.key, FoundEntry(codec.decode(user), text, codec.decode(value.value))))
            start = following(rows[-1].key) if len(rows) == limit else end
        return found[:limit]

    return find
