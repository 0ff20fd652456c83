"""Deciders of requests: the type, and those that are built in.

It may import `cq.combiners`, `cq.observer` and what they import.
"""

from cq.deciders.built_in import (
    bounded,
    bucket,
    budget,
    claim,
    clamped,
    clamped_value,
    raise_cap,
    release,
    release_name,
    reserve,
    settle,
    take,
    unique,
)
from cq.deciders.decider import Decided, Decider

__all__ = [
    "Decided",
    "Decider",
    "bounded",
    "bucket",
    "budget",
    "claim",
    "clamped",
    "clamped_value",
    "raise_cap",
    "release",
    "release_name",
    "reserve",
    "settle",
    "take",
    "unique",
]
