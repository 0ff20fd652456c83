"""What a benchmark raises."""

from __future__ import annotations

from cq.errors import CqError


class CannotMeasure(CqError):
    """A benchmark cannot be run as it is asked for; the message says what to do."""


class Unavailable(CannotMeasure):
    """A system that is to be measured is not there: a driver or a server is missing."""


class WrongSum(CqError):
    """A system has lost updates or counted some twice: its times mean nothing."""
