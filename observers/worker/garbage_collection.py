"""Python's collector of cycles, in a process that does nothing but work on queues.

A pass holds a list for each of its keys, and lets go of all of them at its end. The collector would look at these again
and again, and at all else that the process holds: up to a fifth of a pass. What is in cycles is little.
"""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 50_000
"""So many objects more than were freed, before the youngest are looked at; Python's own figure is 700."""


def tune_garbage_collection() -> None:
    """Have the collector look seldom, and never at what there is already; to be called when all code is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
