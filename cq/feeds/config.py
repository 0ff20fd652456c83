"""The configuration of a feed: its settings, its stored form, and the cache of each process.

As with queues, every process caches it under the store's metadata version, see `cq.config.queue.ConfigCache`. So an
append needs no other read, and conflicts with a change of its feed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cq.config.queue import MAX_SUGGESTED, ConfigCache, invalidate_configs
from cq.encoding import codec
from cq.errors import CorruptData, FeedNotConfigured, InvalidConfiguration
from cq.keys import below
from cq.keys.feed import FeedKeys, feed_entries, feed_entry, feed_of_entry
from cq.store.api import Transaction, TransactionRead

_FORMAT: Final = 1
_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class FeedConfig:
    """A feed's configuration.

    Attributes:
        name: name of the feed.
        numbers: whether messages get numbers; never changes.
        keep_seconds: workers remove older messages; None: no limit.
        keep_last: number of messages kept for each receiver; None: no limit. Needs numbers.
        unread: whether unread messages are counted; never changes.
    """

    name: str
    numbers: bool = False
    keep_seconds: float | None = None
    keep_last: int | None = None
    unread: bool = False

    @property
    def removes(self) -> bool:
        """Whether workers remove messages."""
        return self.keep_seconds is not None or self.keep_last is not None

    @property
    def shares(self) -> bool:
        """Whether large texts to groups are stored once: without an age, nothing removes a text that has no copies."""
        return self.keep_seconds is not None or self.keep_last is None

    def checked(self) -> FeedConfig:
        """Return the configuration; raises `InvalidConfiguration` if its settings are invalid."""
        if self.keep_last is not None and not (type(self.keep_last) is int and 0 < self.keep_last < _MOST):
            raise InvalidConfiguration(
                f"expected a number of messages to keep, got: {codec.brief(self.keep_last)}"
            )
        if self.keep_last is not None and not self.numbers:
            raise InvalidConfiguration(
                f"feed {self.name!r} gives no numbers, and keep_last counts messages by them: "
                "keep messages by time, or make another feed with numbers"
            )
        return self

    def to_bytes(self) -> bytes:
        """Encode the configuration for the store."""
        return codec.encode([_FORMAT, self.numbers, self.keep_seconds, self.keep_last, self.unread])

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> FeedConfig:
        """Decode a stored configuration; raises `CorruptData`."""
        what = f"the configuration of feed {name!r}"
        types = (int, bool, float | int | None, int | None, bool)
        format_, *settings = codec.decode_list(data, types, what)
        if format_ != _FORMAT:
            # A version that cannot know all settings must not append or remove messages.
            raise CorruptData(f"{what} is of another version of cq: upgrade cq")
        try:
            return cls(name, *settings).checked()
        except InvalidConfiguration as error:
            raise CorruptData(f"{what} is not one that cq wrote: {error}") from None


def read_feed_config(tr: TransactionRead, name: str) -> FeedConfig:
    """Return the feed's configuration at the transaction's read version; raises `FeedNotConfigured`.

    Costs no round trip while no configuration in the store changes. Through a transaction it adds a read conflict on
    the feed's `config` key, through `tr.snapshot` none.
    """
    return _known.get(tr, name)


def usable_feed_config(tr: TransactionRead, name: str) -> FeedConfig | None:
    """Return the same; None if the feed was deleted, or if its configuration cannot be read."""
    try:
        return read_feed_config(tr, name)
    except (FeedNotConfigured, CorruptData):
        return None


def write_feed_config(tr: Transaction, config: FeedConfig) -> None:
    """Store a configuration, and notify workers of it."""
    tr.set(FeedKeys(config.name).config, config.to_bytes())
    tr.set(feed_entry(config.name), b"")
    invalidate_configs(tr)


def clear_feed(tr: Transaction, name: str) -> None:
    """Remove a feed with all its data."""
    tr.clear_range(*below(FeedKeys(name).prefix))
    tr.clear(feed_entry(name))
    invalidate_configs(tr)


def feed_names(tr: TransactionRead, limit: int = 0) -> list[str]:
    """Return the names of all configured feeds, or of the first `limit`, sorted."""
    rows = tr.get_range(*feed_entries(), limit=limit)
    return [name for row in rows if (name := feed_of_entry(row.key)) is not None]


_known: Final = ConfigCache(
    lambda name: FeedKeys(name).config,
    FeedConfig.from_bytes,
    FeedNotConfigured,
    lambda tr: feed_names(tr, MAX_SUGGESTED),
)


def is_feed(tr: TransactionRead, name: str) -> bool:
    """Whether a feed of this name is configured."""
    return tr.get(feed_entry(name)).present()
