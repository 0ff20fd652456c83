"""Charts of one line of text, from eight heights of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-:=+*#"


def sparkline(numbers: Sequence[float | None], *, is_ascii: bool = False) -> str:
    """A block for each number, from 0 to the largest one; a space for None.

    >>> sparkline([0, 1, None, 2, 4])
    '▁▃ ▅█'
    """
    blocks = _ASCII if is_ascii else _BLOCKS
    most = max((number for number in numbers if number is not None), default=0) or 1
    heights = [None if number is None else number / most * (len(blocks) - 1) for number in numbers]
    return "".join(" " if height is None else blocks[int(height + 0.5)] for height in heights)
