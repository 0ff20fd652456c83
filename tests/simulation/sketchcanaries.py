"""Canaries of sketches, see `canary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cq.encoding.sketches import Distinct, Frequent
from tests.simulation.canary import Canaries

sketches = Canaries("sketches")


@sketches.replaces("cq.encoding.sketches.Distinct.merge")
def forgets_all_sketches_but_the_first(merge: Any, values: Sequence[Any], size: int) -> Any:
    """The current value counts, and a fold that was staged or written again does not."""
    found = [value for value in values if isinstance(value, Distinct)]
    return merge([value for value in values if value not in found[1:]], size)


@sketches.replaces("cq.encoding.sketches.Frequent.merge")
def keeps_the_larger_sketch(merge: Any, values: Sequence[Any], size: int) -> Any:
    """Of two sketches, the one of more texts wins."""
    found = sorted((value for value in values if isinstance(value, Frequent)), key=lambda each: each.total)
    return merge([*found[-1:], *(value for value in values if not isinstance(value, Frequent))], size)
