"""Which versions of a published cloud the publisher keeps, and for how long.

A window has only the present. So the totals of a window, which have no groups, keep the versions of at least one width:
`trending` compares the top with that of one width ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cq.admin.purging import count_purging
from cq.config.queue import QueueConfig, read_config
from cq.config.window import SLICES, WindowSpec
from cq.durations import Span, duration, seconds_of
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.store.api import Transaction, TransactionRead

_LEAST_STEP_MS: Final = 1_000


class KeptClouds(NamedTuple):
    """How long versions are kept after their replacement, and the steps of time that keep one version each.

    Both in milliseconds. Without a step (0) every version is kept.
    """

    keep: int
    step: int = 0

    def __str__(self) -> str:
        return "/".join(duration(length // 1000) for length in self if length)

    @classmethod
    def parse(cls, given: Span) -> KeptClouds:
        """From a duration such as `"30d"`, or with a step, `"30d/1h"`; raises `InvalidConfiguration`.

        >>> print(KeptClouds.parse("60m/10s")), KeptClouds.parse(90)
        1h/10s
        (None, KeptClouds(keep=90000, step=0))
        """
        keep, slash, step = given.partition("/") if isinstance(given, str) else (given, "", "")
        found = cls(1000 * seconds_of(keep), 1000 * seconds_of(step) if slash else 0)
        if found.step > found.keep:
            raise InvalidConfiguration(
                f"expected clouds to be kept for at least one step, as in 30d/1h, got: {brief(given)}"
            )
        return found

    @classmethod
    def of(cls, tr: Transaction, config: QueueConfig, settings: Mapping[str, Any]) -> KeptClouds | None:
        """What a queue's top keeps now; None: nothing, also during a purge, which deletes the keys of the cloud.

        Reads the configuration with a conflict: the mark of a purge clears all kept versions, and a concurrent
        publication then keeps none.
        """
        keep, step = cls.parse(settings["keep"]) if settings.get("keep") else (0, 0)
        window = None if settings["group"] else window_of_totals(tr, config)
        if window is not None:
            least = step_of(window)
            keep, step = max(keep, window.width + least), min(step, least) if keep else least
        if not keep or count_purging(tr.snapshot, read_config(tr, config.name)):
            return None
        return cls(keep, step)


def window_of_totals(tr: TransactionRead, config: QueueConfig) -> WindowSpec | None:
    """The window whose totals a queue has; None for other queues."""
    level_of = config.level_of
    return read_config(tr, level_of.queue).window if level_of and level_of.is_window else None


def step_of(window: WindowSpec) -> int:
    """The milliseconds of a step in a window: whole slices, at least a second and a 60th of the width.

    >>> step_of(WindowSpec(600_000, 10_000)), step_of(WindowSpec(2_000, 300))
    (10000, 1200)
    """
    least = max(_LEAST_STEP_MS, window.width // SLICES)
    return -(-least // window.slice) * window.slice
