"""The changelog of a queue: its changes in a feed, read from positions that are checked.

A position is the id of the last change that a reader has received. Positions outlive feeds and stores: so a position
counts only if its message is still stored, or is the last one that was removed. After a removal of later messages, a
deletion of the feed, or a restore of the store to an earlier state, it does not, and the reader must begin again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cq.config.queue import QueueConfig, read_config
from cq.errors import InvalidConfiguration, InvalidData, NotInStore
from cq.feeds.config import read_feed_config
from cq.feeds.messages import Message, decode_message, take
from cq.keys.feed import ID_BYTES, FeedKeys, encode_name, id_of, split_removed
from cq.observer import Change
from cq.observers.feeds.observer import NAME
from cq.store.api import Transaction, TransactionRead, Void

BEGIN: Final = bytes(ID_BYTES)
"""The position before the first change of a feed from which no change was removed."""


@dataclass(frozen=True, slots=True)
class ChangelogPage:
    """Some changes of a queue, in commit order.

    Attributes:
        begin: the position that the page begins after. It differs from the given position if changes may be missing
            between the two.
        messages: the messages after it; `change_of` returns the change in each.
        more: whether there were more messages at the read version.
    """

    begin: bytes
    messages: tuple[Message[Any], ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Changelog:
    """The place of a queue's changes: a receiver of a feed.

    Attributes:
        feed: name of the feed.
        receiver: its encoded name.
    """

    feed: str
    receiver: bytes

    @property
    def keys(self) -> FeedKeys:
        """The keys of the feed."""
        return FeedKeys(self.feed)

    def read(self, tr: TransactionRead, after: bytes, limit: int, max_bytes: int) -> ChangelogPage:
        """Return the changes after a position: at most `limit`, and about `max_bytes` in the store.

        If the position does not count any more, the page begins with the oldest stored change.

        Args:
            tr: a transaction's snapshot reads.
            after: a position, as `check_position` returns it.
            limit: of changes.
            max_bytes: limit of stored bytes; exceeded only by a single change.

        Raises:
            FeedNotConfigured: the feed was deleted.
        """
        read_feed_config(tr, self.feed)
        stored = tr.get(self.keys.message(self.receiver, after))  # under way at once with the next read
        removed = self._removed(tr)
        counts = after == removed or (after > removed and stored.present())
        begin = after if counts else removed
        found = tr.get_range(*self.keys.messages(self.receiver, begin), limit=limit + 1)
        rows, more = take(found, limit, max_bytes)
        return ChangelogPage(begin, tuple(map(decode_message, rows)), more)

    def begin(self, tr: TransactionRead) -> bytes:
        """Return the position before the oldest stored change; raises `FeedNotConfigured`."""
        read_feed_config(tr, self.feed)
        return self._removed(tr)

    def end(self, tr: TransactionRead) -> bytes:
        """Return the position after the latest change; raises `FeedNotConfigured`."""
        for row in tr.get_range(*self.keys.messages(self.receiver), limit=1, reverse=True):
            return id_of(row.key)
        return self.begin(tr)

    def watch(self, tr: Transaction) -> Void:
        """Return a watch that fires at the next change after the transaction's read version."""
        return tr.watch(self.keys.latest(self.receiver))

    def _removed(self, tr: TransactionRead) -> bytes:
        """Return the id of the last removed message; `BEGIN` if none was removed."""
        return split_removed(tr.get(self.keys.removed(self.receiver)).value)[0] or BEGIN


def changelog_of(config: QueueConfig) -> Changelog | None:
    """Return the changelog of a queue; None if the queue reports to no feed."""
    observer = next((each for each in config.observers if each.is_built_in and each.name == NAME), None)
    if observer is None:
        return None
    return Changelog(
        observer.settings["feed"], encode_name("receiver", observer.settings.get("receiver", config.name))
    )


def read_changelog(tr: TransactionRead, queue: str) -> Changelog:
    """Return the changelog of a queue with a receiver of its own.

    Raises:
        QueueNotConfigured: there is no such queue.
        NotInStore: the queue reports to no feed.
        InvalidConfiguration: the receiver has another name than the queue, so other queues may report to it, and their
            changes of equal keys would mix.
    """
    found = changelog_of(read_config(tr, queue))
    if found is None:
        raise NotInStore(
            f"queue {queue!r} has no changelog, as it reports to no feed: run `cq feed configure NAME --keep 7d` and "
            f"`cq configure {queue} --feed NAME`"
        )
    if found.receiver != encode_name("receiver", queue):
        raise InvalidConfiguration(
            f"queue {queue!r} has no changelog of its own, as it reports to another receiver than its name: omit "
            "`receiver` in `feed_spec`"
        )
    return found


def check_position(text: str) -> bytes:
    """Return the position in a text of hexadecimal digits; raises `InvalidData`."""
    try:
        position = bytes.fromhex(text)
    except ValueError:
        position = b""
    if len(position) != ID_BYTES:
        raise InvalidData(f"expected a position of {2 * ID_BYTES} hexadecimal digits, got: {text[:80]!r}")
    return position


def change_of(message: Message[Any]) -> Change[Any, Any] | None:
    """Return the change in a message, with tuples as lists; None if it is not one that an observer wrote.

    Old and new value are both None if the change was too large for a message.
    """
    match message.body:
        case [key, old, new] if message.group is None:
            return Change(key, old, new)
        case [key] if message.group is None:
            return Change(key, None, None)
    return None
