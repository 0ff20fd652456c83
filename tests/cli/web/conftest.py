"""The stores of the dashboard's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.store.embedded import Database


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    """An empty embedded store."""
    with Database(tmp_path / "web.db", power_safe=False) as database:
        yield cq.Space("cq").database(database)
