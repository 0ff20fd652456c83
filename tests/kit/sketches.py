"""Whether sketches can be tested: their package has no wheels for Python 3.14 and newer."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import pytest

HAS_SKETCHES: Final = find_spec("datasketches") is not None
needs_sketches: Final = pytest.mark.skipif(
    not HAS_SKETCHES, reason="the package datasketches is not installed"
)
