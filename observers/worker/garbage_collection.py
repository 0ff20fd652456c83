"""Settings of Python's garbage collector for a process that only runs a worker.

A pass allocates a list for each of its keys and frees all of them at its end. By default the collector would traverse
these lists, and all other objects of the process, several times in a pass, for up to a fifth of its time. Few objects
are in cycles, so rare collections suffice.
"""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 50_000
"""Allocations, minus deallocations, that start a collection of the youngest generation; Python's default is 700."""


def tune_garbage_collection() -> None:
    """Make collections rare, and exempt all present objects; call it once all code is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
