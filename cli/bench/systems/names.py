"""Names of systems and measurements, in a small module: `cq bench --help` must not import the benchmark."""

from __future__ import annotations

from typing import Final

AGAINST: Final = ("read-modify-write", "atomic-add", "postgres-upsert", "postgres-rollup", "redis")
"""Systems that cq can be compared with."""
REPORTING: Final = ("sqlite", "postgresql")
"""Kinds of reporting databases."""
KEYS: Final = "keys"
SPARSE: Final = "sparse"
BACKLOG: Final = "backlog"
GROWING: Final = (KEYS, SPARSE, BACKLOG)
"""Kinds of growth that can be measured."""
