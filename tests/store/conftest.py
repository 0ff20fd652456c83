"""Databases to test FoundationDB's semantics on: the embedded store, and a cluster if there is one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.store.embedded import Database
from cq.store.space import Space
from tests.conftest import cluster_url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run on the whole of a cluster only the tests that keep to `space`: others may use the cluster."""
    if "db" not in metafunc.fixturenames or metafunc.definition.path.parent != Path(__file__).parent:
        return
    of_clusters = ["cluster, in a space", *(["cluster"] if "space" in metafunc.fixturenames else [])]
    marked = [pytest.param(each, marks=pytest.mark.cluster) for each in of_clusters]
    metafunc.parametrize("db", ["embedded", "embedded, in a space", *marked], indirect=True)


@pytest.fixture
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database with the binding's methods, or a view of one."""
    if request.param.startswith("embedded"):
        # A prefix must not begin with b"\xff".
        space = Space(b"test" + uuid.uuid4().bytes if "space" in request.param else "cq")
        with Database(tmp_path / "store.db", power_safe=False) as database:
            yield space.database(database)
    elif "space" in request.param:
        yield cq.open(cluster_url())
    else:
        yield open_cluster(os.environ["CQ_TEST_CLUSTER_FILE"])


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
