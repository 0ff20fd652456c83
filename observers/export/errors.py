"""What can go wrong with an export.

CqError
├── CannotExport      some entries can never be exported: they are set aside, the others go on
├── ExportFailed      the batch could not be exported now: it is tried again after a pause
├── OutdatedBatch     another worker was faster: read again
└── ExportStopped     going on would lose or mix up data: somebody has to decide what to do
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.errors import CqError


class CannotExport(CqError):
    """Entries that can never be exported as they are.

    Raised by exporters. Whoever knows which entries are to blame names them in `entries`, as {sequence: error};
    otherwise they are found by halving the batch.
    """

    def __init__(self, message: str, entries: Mapping[bytes, str] | None = None) -> None:
        super().__init__(message)
        self.entries: dict[bytes, str] = dict(entries or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.entries)


class ExportFailed(CqError):
    """A batch could not be exported, for reasons that may pass: it is tried again after a pause."""


class OutdatedBatch(CqError):
    """The batch was read before another worker exported it, or before a rebase: it must be read again."""


class ExportStopped(CqError):
    """The export would lose or mix up data if it went on; the message says what to do."""
