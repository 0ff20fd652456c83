"""What a benchmark can be asked for by name: apart, so that nobody needs the benchmark itself to say it."""

from __future__ import annotations

from typing import Final

AGAINST: Final = ("read-modify-write", "atomic-add", "postgres-upsert", "postgres-rollup", "redis")
"""What cq can be compared with."""
REPORTING: Final = ("sqlite", "postgresql")
"""Kinds of databases to export to."""
KEYS: Final = "keys"
SPARSE: Final = "sparse"
BACKLOG: Final = "backlog"
GROWING: Final = (KEYS, SPARSE, BACKLOG)
"""What can grow."""
