"""Exit statuses of commands: docs/cli.md has their table."""

from __future__ import annotations

from typing import Final

from cq.errors import CqError

FAILED: Final = 1
"""An error, or an unhealthy system."""
WRONG_USAGE: Final = 2
"""An option, argument, setting or input that cq does not accept, or a package that is not installed."""
NO_VALUE: Final = 3
"""A key without a value."""
DIFFERENT: Final = 4
"""Data that differ from what they must be."""
LEFT: Final = 5
"""Work that a drain has left undone."""


class FoundDifference(CqError):
    """A check has found data that differ from what they must be."""


def status_of(error: CqError) -> int:
    """The exit status for an error."""
    if isinstance(error, FoundDifference):
        return DIFFERENT
    # As in Python, a ValueError is the caller's mistake. A LookupError asks for an object that does not exist, so the
    # words of the command are right. Without a package it does not help to try again, as with a wrong setting.
    is_wrong = isinstance(error, ValueError | ImportError) and not isinstance(error, LookupError)
    return WRONG_USAGE if is_wrong else FAILED
