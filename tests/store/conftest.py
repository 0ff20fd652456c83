"""Databases to test FoundationDB's semantics on: the embedded store, and a cluster if there is one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cq.store.embedded import Database

CLUSTER_FILE = os.environ.get("CQ_TEST_CLUSTER_FILE")


@pytest.fixture(params=["embedded", pytest.param("cluster", marks=pytest.mark.cluster)])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database with the binding's methods."""
    if request.param == "embedded":
        with Database(tmp_path / "store.db", power_safe=False) as database:
            yield database
    elif CLUSTER_FILE:
        yield open_cluster(CLUSTER_FILE)
    else:
        pytest.skip("CQ_TEST_CLUSTER_FILE names no cluster file")


@pytest.fixture
def space(db: Any) -> Iterator[bytes]:
    """A key prefix that nobody else uses; what lies under it is cleared afterwards."""
    prefix = b"cq-test/" + uuid.uuid4().bytes + b"/"
    yield prefix
    db.clear_range(prefix, prefix + b"\xff")


def open_cluster(cluster_file: str) -> Any:
    import fdb

    if not fdb.is_api_version_selected():
        fdb.api_version(730)
    return fdb.open(cluster_file)
