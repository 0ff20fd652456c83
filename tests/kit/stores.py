"""The store of tests for which its kind does not matter: `from tests.kit.stores import db as db`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cq


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    """An embedded store of the test's own, in the file `test.db`, which other processes can open."""
    database: Any = cq.open(f"embedded:{tmp_path / 'test.db'}")
    yield database
    database.close()
