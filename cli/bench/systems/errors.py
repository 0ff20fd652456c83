"""The errors of a benchmark."""

from __future__ import annotations

from cq.errors import CqError


class CannotMeasure(CqError):
    """A benchmark cannot be run as requested; the message says what to do."""


class Unavailable(CannotMeasure):
    """A system cannot be measured, because a driver or a server is missing."""


class WrongSum(CqError):
    """A system has lost updates, or counted some twice: its figures are invalid."""
