"""Exit statuses of commands: docs/cli.md has their table."""

from __future__ import annotations

from typing import Final

from cq.errors import CqError

FAILED: Final = 1
"""An error, or an unhealthy system."""
WRONG_USAGE: Final = 2
"""An option, argument, setting or input that cq does not accept."""
NO_VALUE: Final = 3
"""A key without a value."""
DIFFERENT: Final = 4
"""Data that differ from what they must be."""


class FoundDifference(CqError):
    """A check has found data that differ from what they must be."""


def status_of(error: CqError) -> int:
    """The exit status for an error."""
    if isinstance(error, FoundDifference):
        return DIFFERENT
    # As in Python, a ValueError is the caller's mistake, and a LookupError asks for an object that does not exist.
    return WRONG_USAGE if isinstance(error, ValueError) and not isinstance(error, LookupError) else FAILED
