"""An application whose decider numbers the requests of a key, up to a cap: for worker processes."""

from __future__ import annotations

from typing import Any, Final

import cq

QUEUE: Final = "tickets"
CAP: Final = 60


def number(key: str, state: dict[str, Any] | None, request: int) -> tuple[Any, Any]:
    """The state has the requests that were granted; the answer is the number of the request, or -1."""
    granted = (state or {"granted": []})["granted"]
    if len(granted) >= CAP:
        return state, -1
    return {"granted": [*granted, request]}, len(granted)


app = cq.App()
queue = app.queue(QUEUE, key=str, value=dict, buckets=2, decider=cq.Decider("numbers", 1, number))
