"""Sketches: small summaries of many items, in the serialised formats of Apache DataSketches.

A sketch is stored as its bytes under a tag of CBOR, and decoded as an object of its class. DataSketches' own readers
are in C++ and trust the numbers in the bytes that they read, so damaged bytes can end the process. For this reason
every sketch is checked in Python, completely, before the package receives it.

The room may import `cq.errors`. It imports the package `datasketches` when a sketch is combined or read, not before.
"""

from __future__ import annotations

from typing import Any, Final, TypeGuard

from cq.encoding.sketches.distinct import Distinct
from cq.encoding.sketches.frequent import Frequent, FrequentItem
from cq.encoding.sketches.quantiles import Quantiles
from cq.encoding.sketches.sketch import BATCHES, ItemCount, Sketch
from cq.encoding.sketches.theta import Theta

__all__ = [
    "BATCHES",
    "KINDS",
    "TAG",
    "Distinct",
    "Frequent",
    "FrequentItem",
    "ItemCount",
    "Quantiles",
    "Sketch",
    "Theta",
]

KINDS: Final[dict[str, type[Sketch]]] = {each.KIND: each for each in (Distinct, Quantiles, Frequent, Theta)}
"""{name of a combiner and a value type: class of its sketches}."""
TAG: Final = 0x736B6574
"""The tag of a sketch in CBOR; its content is the serialised sketch, whose third byte tells its kind."""
_CLASSES: Final = frozenset(KINDS.values())
_BY_FAMILY: Final = {each.FAMILY: each for each in KINDS.values()}


def is_from_tag(value: Any) -> TypeGuard[Sketch]:
    """Whether a value is a sketch that `from_tag` returns equal for the sketch's bytes."""
    if type(value) not in _CLASSES:
        return False
    return len(value.data) >= 3 and value.data[2] == value.FAMILY


def from_tag(content: Any, is_member: bool) -> Sketch:
    """The sketch with this content of its tag, unchecked; for decoders of CBOR."""
    if type(content) is not bytes or len(content) < 3 or content[2] not in _BY_FAMILY:
        raise ValueError("no sketch of a known kind")
    return _BY_FAMILY[content[2]](content)
