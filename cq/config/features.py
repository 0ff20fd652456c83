"""The features that a queue's configuration needs, so that processes of other versions do not misread it.

A configuration has format 2, and lists the names of its features: a process that lacks one of them refuses the queue,
and versions that know only format 1, which has no list, refuse format 2.

Add a feature to `FEATURES` if a process that does not know it would do harm, for example by adding or combining without
the work that the feature needs. Observers need no entry: a worker skips a queue with an observer that it lacks.
"""

from __future__ import annotations

from typing import Final

from cq.encoding import codec
from cq.errors import CodeMismatch, CorruptData

FEATURES: Final = ("audit", "expiry", "sketches", "levels", "conversion", "decisions")
"""The names of the features of this version."""
FORMAT: Final = 2
_MAX_NAMED: Final = 5  # features in a message


def check_features(name: str, stored: object) -> None:
    """Raises `CodeMismatch` if this version cannot use a decoded configuration, or `CorruptData` if it is not cq's."""
    found = stored.get("format") if isinstance(stored, dict) else None
    if not isinstance(stored, dict) or type(found) is not int or found < 1:
        raise CorruptData(f"the configuration of queue {name!r} is not one that cq wrote: it has no format")
    needed = stored.get("features", [])
    if found > FORMAT:
        raise CodeMismatch(
            f"queue {name!r} was configured by a newer version of cq (format {codec.brief(found)}, "
            f"this version knows {FORMAT}): upgrade cq"
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
