"""The features that a queue's configuration needs, so that a process of another version does not misread it.

Format 1 is the configuration that every version of cq reads. A configuration that needs a feature which some versions
lack has format 2 and lists the names of these features: a process that lacks one of them refuses the queue. Versions
that know format 1 only refuse format 2. A queue that needs no feature keeps format 1, which all versions read.

Absence of the list means that the configuration needs nothing beyond format 1. Builds before 0.1.0 also stored windows
and audits in format 1; such a configuration is read, and gets its list with the next change of it.

A feature goes into `FEATURES` when a process that does not know it would do harm: would add or combine without
what the feature needs, for example. Observers need no entry: a worker leaves alone a queue with an observer that it
does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cq.encoding import codec
from cq.errors import CodeMismatch, CorruptData

FEATURES: Final = ("audit", "window")
"""The names of those that this version has."""
_FIRST_FORMAT: Final = 1
_FORMAT: Final = 2
_MOST_NAMED: Final = 5


def stored_features(needed: Sequence[str]) -> dict[str, Any]:
    """The part of a stored configuration that says which features it needs."""
    if not needed:
        return {"format": _FIRST_FORMAT}
    return {"format": _FORMAT, "features": list(needed)}


def check_features(name: str, stored: object) -> None:
    """Raises `CodeMismatch` for a decoded configuration that this version cannot use, and `CorruptData`."""
    if not isinstance(stored, dict) or type(stored.get("format")) is not int:
        raise CorruptData(f"the configuration of queue {name!r} is not one that cq wrote: it has no format")
    found, needed = stored["format"], stored.get("features", [])
    if found < _FIRST_FORMAT:
        raise CorruptData(f"the configuration of queue {name!r} is not one that cq wrote: its format")
    if found > _FORMAT:
        raise CodeMismatch(
            f"queue {name!r} was configured by a newer version of cq (format {codec.brief(found)}, "
            f"this version knows {_FORMAT}): upgrade cq"
        )
    if type(needed) is not list or not all(type(feature) is str for feature in needed):
        raise CorruptData(f"the configuration of queue {name!r} is not one that cq wrote: its features")
    if lacking := [feature for feature in needed if feature not in FEATURES]:
        raise CodeMismatch(
            f"queue {name!r} needs features that this version of cq lacks "
            f"({', '.join(codec.brief(feature) for feature in lacking[:_MOST_NAMED])}): upgrade cq"
        )
