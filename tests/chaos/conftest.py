"""Fixtures of the tests of crashes, for those of a cluster."""

from __future__ import annotations

from tests.crash.conftest import cli as cli
from tests.crash.conftest import postgres as postgres
from tests.crash.conftest import seed as seed
