"""A program that reads damaged sketches: it must neither crash nor raise any error but `InvalidData`.

    python tests/sketches/damage.py SEED NUMBER

It prints how many sketches were refused and how many were read. A crash of the C++ code ends only this process.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import cq
from cq.combiners import BUILT_IN
from cq.encoding.sketches import KINDS
from cq.encoding.sketches.sketch import library

SIZES = (0, 1, 2, 7, 8, 40, 400, 2_000, 20_000)
_EDGES = (0, 1, 2, 127, 128, 254, 255)


def whole(size: int) -> dict[str, list[bytes]]:
    """{kind: sketches of `size` items, written by DataSketches itself in each of its formats}."""
    datasketches = library()
    hll = datasketches.hll_union(12)
    kll = datasketches.kll_doubles_sketch(200)
    theta = datasketches.update_theta_sketch(10)
    frequent = datasketches.frequent_strings_sketch(8)
    for number in range(size):
        hll.update(f"item {number}")
        kll.update(float(number * 7919 % 1000))
        theta.update(f"item {number}")
        frequent.update(f"item {number % 300}")
    kinds = (datasketches.HLL_4, datasketches.HLL_6, datasketches.HLL_8)
    results = [hll.get_result(kind) for kind in kinds]
    return {
        "distinct": [f() for each in results for f in (each.serialize_compact, each.serialize_updatable)],
        "quantiles": [kll.serialize()],
        "frequent": [frequent.serialize()],
        "theta": [theta.compact(True).serialize(), theta.compact(False).serialize()],
    }


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """The bytes with a few changes, most of them in the numbers at their beginning."""
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not data:
            break
        at = chance.randrange(min(len(data), chance.choice((8, 16, 48, len(data)))))
        match chance.randrange(6):
            case 0:
                data[at] = chance.choice(_EDGES)
            case 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                data[at : at + 8] = chance.randbytes(chance.choice((4, 8)))
            case 3:
                del data[at:]
            case 4:
                data += chance.randbytes(chance.randrange(40))
            case _:
                data[at] = chance.randrange(256)
    return bytes(data)


def read(kind: str, data: bytes, other: Any) -> bool:
    """Whether the sketch is read and merged; False if it is refused."""
    sketch = KINDS[kind](data)
    try:
        sketch.figures()
        sketch.columns()
        merged = BUILT_IN[kind].combine("key", [other, sketch, sketch])
        merged.check()
        BUILT_IN[kind].combine("key", [sketch, merged]).figures()
        if isinstance(sketch, cq.sketches.Theta):
            assert isinstance(other, cq.sketches.Theta)
            sketch.intersection(other).figures()
            sketch.difference(other).figures()
    except cq.InvalidData:
        return False
    return True


def main(seed: int, number: int) -> None:
    """Damage `number` sketches of each kind, and read them."""
    chance = random.Random(seed)
    originals = [whole(size) for size in SIZES]
    counts = {}
    for kind in KINDS:
        sketches = [each for found in originals for each in found[kind]]
        other = KINDS[kind](originals[3][kind][0])
        assert all(read(kind, each, other) for each in sketches)
        counts[kind] = sum(read(kind, damaged(chance.choice(sketches), chance), other) for _ in range(number))
    sys.stdout.write(f"{counts}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
