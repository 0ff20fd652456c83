"""The page of the cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.cli.web.pages.bounded import first_of
from cq.cli.web.pages.verdict import verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.reads import CellsReading
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot, Topic

_CELLS = Topic("cells")


def cells_page() -> WebPage:
    """The page of the cells."""
    return WebPage("/cells", "Cells", "/cells", (OVERVIEW, _CELLS), (Part("verdict"), Part("cells")), _view)


def _view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    found = snapshot.value(_CELLS, CellsReading)
    return {
        "verdict": verdict(snapshot),
        "cells": found and first_of(found.cells),
        "moves": found and first_of(found.moves),
        "problem": snapshot.error(_CELLS),
    }
