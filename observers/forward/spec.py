"""The settings of a forward in the queue's configuration: the receiving queue, and the URL's environment variable."""

from __future__ import annotations

from typing import Any, Final

from cq.keys import check_name
from cq.observer import ObserverSpec
from cq.observers.export.spec import checked_env

NAME: Final = "forward"
"""The observer's name."""
VERSION: Final = 1
DEFAULT_ENV: Final = "CQ_FORWARD_URL"
"""The default environment variable of the receiving store's URL."""


def forward_spec(into: str | None = None, *, url_env: str = DEFAULT_ENV) -> ObserverSpec:
    """The observer that forwards a queue into a queue of another store, for `cq.configure(..., observers=[...])`.

    Args:
        into: the name of the receiving queue; None: the queue's own name.
        url_env: the environment variable in which workers find the URL of the receiving store.

    Raises `InvalidConfiguration`.
    """
    settings: dict[str, Any] = {"url_env": checked_env(url_env, DEFAULT_ENV)}
    if into is not None:
        settings["into"] = check_name(into)
    return ObserverSpec(NAME, VERSION, settings)
