"""The features that a queue's configuration needs, so that processes of other versions do not misread it.

All versions of cq read format 1. A configuration with a feature that some versions lack has format 2 and lists the
names of its features: a process that lacks one of them refuses the queue, and versions that know only format 1 refuse
format 2. A queue without such features keeps format 1.

A configuration without the list needs no features.

Add a feature to `FEATURES` if a process that does not know it would do harm, for example by adding or combining without
the work that the feature needs. Observers need no entry: a worker skips a queue with an observer that it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cq.encoding import codec
from cq.errors import CodeMismatch, CorruptData

FEATURES: Final = ("audit", "expiry", "sketches", "levels", "conversion", "decisions")
"""The names of the features of this version."""
_FIRST_FORMAT: Final = 1
_FORMAT: Final = 2
_MAX_NAMED: Final = 5  # features in a message


def stored_features(needed: Sequence[str]) -> dict[str, Any]:
    """The format and the needed features, as a part of a stored configuration."""
    if not needed:
        return {"format": _FIRST_FORMAT}
    return {"format": _FORMAT, "features": list(needed)}


def check_features(name: str, stored: object) -> None:
    """Raises `CodeMismatch` if this version cannot use a decoded configuration, or `CorruptData` if it is not cq's."""
    if not isinstance(stored, dict) or type(stored.get("format")) is not int:
        raise CorruptData(f"the configuration of queue {name!r} is not one that cq wrote: it has no format")
    found, needed = stored["format"], stored.get("features", [])
    if found < _FIRST_FORMAT:
        raise CorruptData(
            f"the configuration of queue {name!r} is not one that cq wrote: its format is invalid"
        )
    if found > _FORMAT:
        raise CodeMismatch(
            f"queue {name!r} was configured by a newer version of cq (format {codec.brief(found)}, "
            f"this version knows {_FORMAT}): upgrade cq"
        )
    if type(needed) is not list or not all(type(feature) is str for feature in needed):
        raise CorruptData(
            f"the configuration of queue {name!r} is not one that cq wrote: its features are invalid"
        )
    if lacking := [feature for feature in needed if feature not in FEATURES]:
        raise CodeMismatch(
            f"queue {name!r} needs features that this version of cq lacks "
            f"({', '.join(codec.brief(feature) for feature in lacking[:_MAX_NAMED])}): use the version of cq that "
            "configured it"
        )
