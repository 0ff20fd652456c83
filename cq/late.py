"""Late imports of public names: a package imports the module of a name when the name is used.

Other late imports are import statements in the functions that need them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late(package: str, places: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are imported when they are used.

    Type checkers need the same names as imports below `if TYPE_CHECKING`.

    Args:
        package: the full name of the package.
        places: {module: its names}.
    """
    modules = {name: module for module, names in places.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)  # the next use finds it without this function
        return found

    return get
