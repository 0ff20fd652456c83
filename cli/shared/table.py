"""Tables that fit their terminal: they break no number and omit no text.

In a narrow terminal, texts continue on further lines of their column, and a long first cell, such as the name of a
queue, has a line of its own above the other cells, as in `df`. In a very narrow one each row becomes a block of lines
"name of the column, cell". Without a terminal each row is one line of any width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from cq.plain_text import printable

NO_VALUE: Final = "-"
"""A cell without a value."""
GAP: Final = "  "
_LEAST: Final = 10  # cells of a column with text; a table with narrower columns is shown as blocks


class ShownColumn(NamedTuple):
    """A column: its name, its cell for an object, and whether a narrow terminal shows it, too."""

    name: str
    cell: Callable[[Any], object]
    is_essential: bool = False
    is_number: bool = True


class FittedTable:
    """A table, laid out for the width of the console that prints it.

    Args:
        columns: their names.
        rows: a cell for each column; strings are made printable.
        right: the columns with numbers.
    """

    def __init__(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()
    ) -> None:
        self._numbers = [column in right for column in columns]
        self._heads = [Text().append(column, "bold") for column in columns]
        self._rows = [[_as_text(cell) for cell in row] for row in rows]
        self._widths: list[int] = [
            max(cell.cell_len for cell in column) for column in zip(self._heads, *self._rows, strict=True)
        ]

    @classmethod
    def of(cls, columns: Sequence[ShownColumn], items: Iterable[Any]) -> FittedTable:
        """The table of these objects, a row for each."""
        rows = [[column.cell(item) for column in columns] for item in items]
        return cls([each.name for each in columns], rows, [each.name for each in columns if each.is_number])

    @property
    def width(self) -> int:
        """The cells of its longest line if nothing is broken."""
        return sum(self._widths) + len(GAP) * (len(self._widths) - 1)

    def fits(self, width: int) -> bool:
        """Whether no cell is broken in a terminal of this width; long first cells have lines of their own."""
        widths = self._fitted(width)
        return widths is not None and widths[1:] == self._widths[1:]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, for rich; of any width without a terminal."""
        width = options.max_width if console.is_terminal else self.width
        widths = self._fitted(width)
        for cells in (self._heads, *self._rows) if widths else ():
            yield from self._row(cells, widths or [], width, console)
        for cells in self._rows if widths is None else ():
            yield from self._block(cells, width, console)

    def _fitted(self, width: int) -> list[int] | None:
        """The widths of the columns, the widest texts shortened first; None if that makes a column too narrow."""
        widths = list(self._widths)
        texts = sorted(
            (at for at, is_number in enumerate(self._numbers) if not is_number), key=widths.__getitem__
        )
        left = width - (self.width - sum(widths[at] for at in texts))
        for done, at in enumerate(texts):
            share = left // (len(texts) - done)
            if share < min(widths[at], _LEAST):
                return None
            widths[at] = min(widths[at], share)
            left -= widths[at]
        return widths if left >= 0 else None

    def _row(
        self, cells: Sequence[Text], widths: Sequence[int], width: int, console: Console
    ) -> Iterator[Text]:
        first = cells[0]
        if first.cell_len > widths[0]:
            yield from _wrapped(first, width, console)
            first = Text()
        columns = [
            _wrapped(cell, size, console) for cell, size in zip((first, *cells[1:]), widths, strict=True)
        ]
        for parts in zip_longest(*columns, fillvalue=Text()):
            line = Text()
            for number, (part, size, is_number) in enumerate(zip(parts, widths, self._numbers, strict=True)):
                space = " " * (size - part.cell_len)
                line.append(GAP if number else "").append(space if is_number else "").append_text(part)
                line.append("" if is_number else space)
            line.rstrip()
            yield line

    def _block(self, cells: Sequence[Text], width: int, console: Console) -> Iterator[Text]:
        indent = min(max(head.cell_len for head in self._heads) + len(GAP), width // 2)
        for head, cell in zip(self._heads, cells, strict=True):
            name = head.copy()
            name.truncate(indent, pad=True)
            for part in _wrapped(cell, width - indent, console):
                yield name.append_text(part)
                name = Text(" " * indent)
        yield Text()


def table_of(
    columns: Sequence[ShownColumn], shown: Iterable[Any], width: int | None, *, wide: bool = False
) -> FittedTable:
    """The table of these objects with the columns that fit `width`, in their order; with all columns for None.

    The essential columns are always shown. Columns without any content are shown with `wide` only, or for None.
    """
    items = list(shown)
    chosen = [column for column in columns if wide or width is None or column.is_essential]
    for column in columns:
        if column not in chosen and any(str(column.cell(item)) != NO_VALUE for item in items):
            more = [each for each in columns if each is column or each in chosen]
            if width is not None and FittedTable.of(more, items).width <= width:
                chosen = more
    return FittedTable.of(chosen, items)


def _wrapped(text: Text, width: int, console: Console) -> list[Text]:
    """The text in lines of at most `width` cells."""
    return [text] if text.cell_len <= width else [*text.wrap(console, width, overflow="fold")]


def _as_text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(str(cell)))
