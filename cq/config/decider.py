"""The decider of a queue, as stored in its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cq.config.parts import require
from cq.deciders import KEEP_SECONDS, KIND, MAX_KEEP_SECONDS, Decider
from cq.durations import seconds_of
from cq.encoding.codec import brief

_OBSERVED: Final = "observed"


class DeciderConfig(NamedTuple):
    """The decider of a queue.

    Attributes:
        name, version: as in `cq.Decider`.
        keep: seconds for which answers can be read.
        settings: of a decider of `cq.deciders`; empty for others. With an observer, it needs code of the application.
    """

    name: str
    version: int
    keep: int
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, decider: Decider) -> DeciderConfig:
        """As it is stored for this decider."""
        settings = dict(decider.settings)
        if settings and decider.observer is not None:
            settings[_OBSERVED] = True
        return cls(decider.name, decider.version, seconds_of(decider.keep), settings)

    @property
    def kind(self) -> str:
        """The kind of a decider of `cq.deciders`; empty for others."""
        return str(self.settings.get(KIND, ""))

    @property
    def is_built_in(self) -> bool:
        """Whether workers can make it from its settings."""
        return bool(self.settings) and _OBSERVED not in self.settings

    @classmethod
    def from_stored(cls, stored: Any) -> DeciderConfig | None:
        """The stored decider; None: there is none. Raises `TypeError` or `ValueError` if cq did not write it."""
        if stored is None:
            return None
        found = cls(*stored)
        require(tuple(map(type, found)) == (str, int, int, dict))
        require(0 <= found.version < 1 << 63 and 1 <= found.keep <= MAX_KEEP_SECONDS)
        require(all(type(what) is str for what in found.settings))
        return found

    def __str__(self) -> str:
        given = {**self.settings, **({} if self.keep == KEEP_SECONDS else {"keep": self.keep})}
        settings = ", ".join(
            f"{what}={brief(value)}" for what, value in sorted(given.items()) if what != KIND
        )
        return f"{self.name}@{self.version}" + (f"({settings})" if settings else "")
