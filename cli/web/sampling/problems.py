"""What pages and streams say about errors."""

from __future__ import annotations

from typer import BadParameter

from cq.errors import CqError
from cq.plain_text import printable
from cq.store.api import error_code


def problem_of(error: BaseException) -> str:
    """The text about an error of cq, of the store or of a form's field; empty for any other one: a bug."""
    if isinstance(error, CqError | BadParameter):
        return printable(str(error))
    return "" if error_code(error) is None else printable(f"the store does not answer: {error}")
