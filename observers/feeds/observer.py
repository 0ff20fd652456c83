"""The observer that appends a queue's changes to a feed, so that services follow the queue at their own pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cq.config.queue import QueueConfig
from cq.errors import TooLarge
from cq.feeds.config import read_feed_config
from cq.feeds.messages import encode_message, put_messages
from cq.keys import check_name
from cq.keys.feed import FeedKeys, check_feed_name, encode_name
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.store.api import Transaction

NAME: Final = "feed"
"""The observer's name."""
VERSION: Final = 1


def feed_spec(feed: str, receiver: str | None = None) -> ObserverSpec:
    """Return the observer that appends each change of a queue to a feed: for `cq.configure(..., observers=[...])`.

    A message is [key, old, new], with None for no value; or [key] alone, if the three together exceed the size limit of
    messages. The changes of a key are complete and in commit order: each old value is the new value of the message
    before. All messages have one receiver, so a service needs one position.

    Args:
        feed: name of a configured feed; configuring the queue raises `FeedNotConfigured` if there is none. While it is
            deleted, workers do not combine the queue.
        receiver: name of the receiver; None: the queue's name.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    settings = {"feed": check_feed_name(feed)}
    if receiver is not None:
        settings["receiver"] = check_name(receiver)
    return ObserverSpec(NAME, VERSION, settings, check=lambda tr, config: read_feed_config(tr, feed))


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """Return the function of a `feed_spec` observer, as passes call it."""
    feed = settings["feed"]
    keys, receiver = FeedKeys(feed), encode_name("receiver", settings.get("receiver", config.name))

    def append(tr: Transaction, changes: list[Change]) -> None:
        messages = [_message(change) for change in changes]
        put_messages(tr, read_feed_config(tr, feed), keys, receiver, messages)

    return append


def _message(change: Change) -> bytes:
    try:
        return encode_message([change.key, change.old, change.new])
    except TooLarge:
        return encode_message([change.key])  # the service reads the value itself
