"""Errors of exports.

CqError
├── CannotExport      some entries can never be exported: the worker sets them aside and exports the others
├── ExportFailed      the batch could not be exported now: the worker retries it after a pause
├── OutdatedBatch     another worker was faster: the worker reads the bucket again
└── ExportStopped     continuing would lose or mix up data: the operator must decide what to do
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.errors import CqError


class CannotExport(CqError):
    """Entries that can never be exported as they are; raised by exporters.

    An exporter that knows the faulty entries names them in `entries`, as {sequence: error}. Otherwise the worker finds
    them by exporting ever smaller halves of the batch.
    """

    def __init__(self, message: str, entries: Mapping[bytes, str] | None = None) -> None:
        super().__init__(message)
        self.entries: dict[bytes, str] = dict(entries or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.entries)


class ExportFailed(CqError):
    """A batch could not be exported, for reasons that may pass; the worker retries it after a pause."""


class OutdatedBatch(CqError):
    """The batch was read before another worker exported it, or before a rebuild or rebase; the worker reads again."""


class ExportStopped(CqError):
    """Continuing the export would lose or mix up data; the message says what to do."""
