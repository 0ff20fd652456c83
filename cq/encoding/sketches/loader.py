"""The package `datasketches`, imported at its first use: that takes a tenth of a second, as it brings numpy."""

from __future__ import annotations

from typing import Any

from cq.distribution import install_command
from cq.errors import MissingPackage


def library() -> Any:
    """The module `datasketches`; raises `MissingPackage`."""
    try:
        import datasketches
    except ImportError as error:
        raise MissingPackage(
            f"sketches need the package datasketches: run `{install_command('sketches')}`"
        ) from error
    return datasketches
