"""The reader of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Reader
from tests.kit.prepared import client, prepared


@pytest.fixture(scope="session")
def command() -> Iterator[str]:
    """The executable file `cq`."""
    with prepared() as path:
        yield client(path)


@pytest.fixture
def reader(tmp_path: Path, command: str) -> Reader:
    """A reader with an empty folder."""
    return Reader(tmp_path, command)
