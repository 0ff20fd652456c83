"""Sketches: distinct counts, quantiles and frequent items of many updates, in a few kilobytes for each key.

A queue with a combiner of sketches takes raw items, batches of items (a list, tuple or set), and sketches of its kind.
Its values are sketches, in the formats of Apache DataSketches (https://datasketches.apache.org), with estimates and the
bounds of their errors:

- `distinct` counts different items: `Distinct` has `estimate`, `lower` and `upper`.
- `theta` counts them, too, less exactly, and also estimates intersections and differences: `Theta`.
- `quantiles` keeps the distribution of numbers: `Quantiles` has `quantile(0.99)`, `rank(x)`, `count`.
- `frequent` finds the most frequent texts: `Frequent` has `top(n)`.

The functions here return combiners of other sizes. Every process knows their names, such as `distinct(lg_k=14)`, so
workers need no `App`. The size of a queue is fixed. Combining and reading need the package `datasketches` (except of
`frequent`): `pip install "combine-queue[sketches]"`. Adding raw items does not.
"""

from __future__ import annotations

from cq.combiners import BUILT_IN, Combiner, of_sketches
from cq.encoding.sketches import Distinct, Frequent, FrequentItem, Quantiles, Sketch, Theta
from cq.errors import InvalidConfiguration

__all__ = [
    "Distinct",
    "Frequent",
    "FrequentItem",
    "Quantiles",
    "Sketch",
    "Theta",
    "distinct",
    "frequent",
    "quantiles",
    "theta",
]


def distinct(*, lg_k: int = Distinct.SIZE) -> Combiner:
    """The combiner of distinct counts with 2**lg_k registers, 7 to 16; default: 12, the combiner `distinct`.

    A value takes up to 2**lg_k + 40 bytes. The standard error is 1.04 / sqrt(2**lg_k): 0.8 percent in 16 kB for 14.
    Raises `InvalidConfiguration`.
    """
    return _combiner(Distinct, lg_k)


def theta(*, lg_k: int = Theta.SIZE) -> Combiner:
    """The combiner of distinct counts with set operations that keeps 2**lg_k hashes, 5 to 13; default: 10, `theta`.

    A value takes up to 8 * 2**lg_k + 24 bytes. The standard error is 1 / sqrt(2**lg_k): 1.6 percent in 33 kB for 12.
    Raises `InvalidConfiguration`.
    """
    return _combiner(Theta, lg_k)


def quantiles(*, k: int = Quantiles.SIZE) -> Combiner:
    """The combiner of quantiles with a size of `k`, 8 to 2,000; default: 200, the combiner `quantiles`.

    A value takes up to about 25 * k bytes. The rank error is about 2.3 / k**0.97: 0.35 percent in 19 kB for 800.
    Raises `InvalidConfiguration`.
    """
    return _combiner(Quantiles, k)


def frequent(*, lg_max_k: int = Frequent.SIZE) -> Combiner:
    """The combiner of frequent texts that counts 3/4 of 2**lg_max_k texts, 3 to 11; default: 8, `frequent`.

    A value takes 12 bytes and its text for each of them. Estimates exceed true counts by at most 2.7 / 2**lg_max_k of
    the total: 0.26 percent for 10. If the texts do not fit into 90 kB, which is possible above 8, it counts fewer, and
    the error is larger. `Frequent.error` is the bound that holds for a value. Raises `InvalidConfiguration`.
    """
    return _combiner(Frequent, lg_max_k)


def _combiner(kind: type[Sketch], size: int) -> Combiner:
    if type(size) is not int or size not in kind.SIZES:
        raise InvalidConfiguration(
            f"expected {kind.PARAMETER} of {kind.KIND!r} to be {kind.SIZES[0]} to {kind.SIZES[-1]:,}, "
            f"got: {size!r:.80}"
        )
    return BUILT_IN[kind.KIND] if size == kind.SIZE else of_sketches(kind, size)
