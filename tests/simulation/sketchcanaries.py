"""Variants of sketches that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from unittest.mock import patch

from cq.encoding.sketches import Distinct, Frequent


def forgets_all_sketches_but_the_first() -> Any:
    """The current value counts, and a fold that was staged or written again does not."""
    merge = Distinct.merge

    def forget(values: Sequence[Any], size: int) -> Distinct:
        sketches = [value for value in values if isinstance(value, Distinct)]
        return merge([value for value in values if value not in sketches[1:]], size)

    return patch.object(Distinct, "merge", forget)


def keeps_the_larger_sketch() -> Any:
    """Of two sketches, the one of more texts wins."""
    merge = Frequent.merge

    def keep(values: Sequence[Any], size: int) -> Frequent:
        sketches = sorted(
            (value for value in values if isinstance(value, Frequent)), key=lambda each: each.total
        )
        return merge([*sketches[-1:], *(value for value in values if not isinstance(value, Frequent))], size)

    return patch.object(Frequent, "merge", keep)


SKETCHING: Final[dict[Callable[[], Any], int]] = {
    forgets_all_sketches_but_the_first: 20,
    keeps_the_larger_sketch: 20,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
