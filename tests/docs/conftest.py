"""The reader of the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Reader


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A reader with an empty folder."""
    return Reader(tmp_path)
