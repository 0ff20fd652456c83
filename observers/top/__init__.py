"""The top of a queue: an index of its keys by score, the reader of the index, and the clouds published from it.

The room may import scheduling, telemetry and the rooms of `cq`.
"""

from cq.observers.top.cloud import (
    Cloud,
    CloudChange,
    CloudEntry,
    CloudReader,
)
from cq.observers.top.decay import (
    HalfLife,
)
from cq.observers.top.follower import (
    CloudFollower,
)
from cq.observers.top.html import (
    cloud_list,
    cloud_style,
    to_animation,
    to_html,
)
from cq.observers.top.index import (
    top,
)
from cq.observers.top.ranking import (
    Ranking,
    TopPage,
)

__all__ = [
    "Cloud",
    "CloudChange",
    "CloudEntry",
    "CloudFollower",
    "CloudReader",
    "HalfLife",
    "Ranking",
    "TopPage",
    "cloud_list",
    "cloud_style",
    "to_animation",
    "to_html",
    "top",
]
