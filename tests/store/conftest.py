"""Databases to test FoundationDB's semantics on: the embedded store, and a cluster if there is one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cq.store.embedded import Database
from cq.store.space import Space

CLUSTER_FILE = os.environ.get("CQ_TEST_CLUSTER_FILE")


_ON_A_CLUSTER = pytest.mark.cluster


@pytest.fixture(
    params=[
        "embedded",
        "embedded, in a space",
        pytest.param("cluster", marks=_ON_A_CLUSTER),
        pytest.param("cluster, in a space", marks=_ON_A_CLUSTER),
    ]
)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database with the binding's methods, or a view of one."""
    # A prefix must not begin with b"\xff".
    space = Space(b"test" + uuid.uuid4().bytes if "space" in request.param else "cq")
    if request.param.startswith("embedded"):
        with Database(tmp_path / "store.db", power_safe=False) as database:
            yield space.database(database)
    elif CLUSTER_FILE:
        yield space.database(open_cluster(CLUSTER_FILE))
    else:
        pytest.skip("CQ_TEST_CLUSTER_FILE names no cluster file")


@pytest.fixture
def space(db: Any) -> Iterator[bytes]:
    """A key prefix that nobody else uses, below `cq/`: so a view moves it. What lies under it is cleared afterwards."""
    prefix = b"cq/test/" + uuid.uuid4().bytes + b"/"
    yield prefix
    db.clear_range(prefix, prefix + b"\xff")


def open_cluster(cluster_file: str) -> Any:
    import fdb

    if not fdb.is_api_version_selected():
        fdb.api_version(730)
    return fdb.open(cluster_file)
