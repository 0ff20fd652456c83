"""A site of three cells on each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cq.cells import Cells
from tests.conftest import cluster_url
from tests.kit.sites import Site, urls_below, urls_in


@pytest.fixture(params=["embedded", pytest.param("cluster", marks=pytest.mark.cluster)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A directory and three cells."""
    made = Site(urls_below(cluster_url()) if request.param == "cluster" else urls_in(tmp_path), 3)
    yield made
    made.close()


@pytest.fixture
def cells(site: Site) -> Cells:
    """The cells of the site: cell0, cell1 and cell2."""
    return site.own
