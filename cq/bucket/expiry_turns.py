"""The turns of expiry: which passes over a bucket look for due keys, and which delete them before they combine rows."""

from __future__ import annotations

from typing import Final

from cq import runtime
from cq.expiry.due import BucketExpiry

_LOOK_SECONDS: Final = 1.0
"""The pause between two searches of a bucket with queued rows and without due keys."""
_BETWEEN: Final = 2
"""Passes with other work between two that delete due keys, if rows are queued: one of them may be a backfill."""


class ExpiryTurns:
    """The turns of one bucket of a queue with an expiry. A pass without queued rows always looks for due keys."""

    def __init__(self) -> None:
        self._may_be_due = True
        self._looked_at = 0.0
        self._others = _BETWEEN

    @property
    def checks_due(self) -> bool:
        """Whether the next pass looks for due keys although rows are queued."""
        return self._may_be_due or runtime.monotonic() - self._looked_at >= _LOOK_SECONDS

    @property
    def expires_first(self) -> bool:
        """Whether the next pass deletes due keys before it combines rows."""
        return self._others >= _BETWEEN

    def committed(self, expiry: BucketExpiry, *, has_expired: bool) -> None:
        """Note a committed pass, and whether it has deleted due keys."""
        self._others = 0 if has_expired else self._others + 1
        if expiry.has_looked:
            self._may_be_due = expiry.may_be_due
            self._looked_at = runtime.monotonic()
