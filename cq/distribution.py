"""The distribution that contains cq: its name for pip, its version, the command of an extra, addresses of its pages."""

from __future__ import annotations

from functools import cache
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
    """The address of a page of the documentation, such as `operate/problems.md#limits`.

    It is on the site that the metadata of the distribution names as `Documentation`, and else the path in the source.
    """
    site = _site()
    return f"{site}/{page.replace('.md', '.html', 1)}" if site else f"docs/{page}"


@cache
def _site() -> str:
    """The URL of the documentation, without a slash at the end; empty if the metadata name none."""
    from importlib import metadata  # late: as in `version`

    try:
        urls = metadata.metadata(NAME).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    named = dict(url.split(", ", 1) for url in urls)
    return str(named.get("Documentation", "")).rstrip("/")
