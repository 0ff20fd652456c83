"""A store in a directory of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cq.store.embedded import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    with Database(path, power_safe=False) as database:
        yield database
