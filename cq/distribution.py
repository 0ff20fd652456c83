"""The distribution that contains cq: its name for pip, its version, the command of an extra, addresses of its pages."""

from __future__ import annotations

from typing import Final

NAME: Final = "combine-queue"
"""The name for pip."""


def version() -> str:
    """The installed version; "unknown" if Python imports cq from a clone that is not installed."""
    from importlib import metadata  # late: it takes longer to import than the rest of a short command

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "unknown"


def install_command(extra: str) -> str:
    """The command that adds the packages of an extra to an installed cq, for messages."""
    return f"pip install '{NAME}[{extra}]'"


def page_address(page: str) -> str:
    """The address of a page of the documentation, such as `operate/problems.md#limits`: its path in the source."""
    return f"docs/{page}"
