"""`Feed`: messages to receivers, each with an id greater than the ids of all earlier messages of the receiver.

An id begins with the versionstamp of its commit. A sequence assigns its numbers before the commit: a message with a
lower number can appear after a reader has passed a higher one, and the reader misses it. The commit itself assigns a
versionstamp: a read at some version sees all messages with lower ids, and no message appears between them later. So a
terminal has to keep only the id of the last message that it has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Generic

from cq import runtime
from cq.arguments import check_limit, repeatable
from cq.durations import Span, positive_seconds, span_of
from cq.encoding import codec
from cq.errors import FeedNotConfigured, InvalidConfiguration, InvalidData, PendingUnreadable
from cq.feeds.config import FeedConfig, clear_feed, read_feed_config, write_feed_config
from cq.feeds.groups import by_user, events_in, is_member, put_event
from cq.feeds.messages import (
    COUNT_BYTES,
    MAX_MESSAGE_BYTES,
    FeedPage,
    Message,
    change_group_message,
    change_message,
    encode_body,
    encode_message,
    is_quiet,
    now,
    put_group_message,
    put_messages,
    put_text_once,
    put_with_copy,
    read_messages,
    take,
)
from cq.keys.feed import (
    ID_BYTES,
    FeedKeys,
    check_id,
    decode_name,
    encode_name,
    first_id_at,
    id_of,
    split_mark,
    split_removed,
    versionstamp_of_id,
)
from cq.store.api import ACCESSED_UNREADABLE, Database, Transaction, TransactionRead, Void, error_code
from cq.store.own_writes import hides_writes, makes_unreadable, recorded
from cq.store.reads import snapshot_of
from cq.store.transact import transact, transact_removal
from cq.store.watch import wait_until
from cq.type_variables import M

__all__ = ["MAX_MESSAGE_BYTES", "Feed", "FeedConfig", "FeedPage", "Message"]

LIMIT: Final = 100
"""Default limit of messages in a page."""
SHARED_BYTES: Final = 1_000
"""From this size on, the text of a message to a group is stored once: copies would cost more than the reads of it."""
_UNUSED_BYTES: Final = 16
_AFTER_APPEND: Final = "messages cannot be read or forgotten after an append for their receiver"
_AFTER_JOIN: Final = "members of a group cannot be read after a join or leave"
_MOST_SECONDS: Final = 1e9  # that a terminal is online without another call


class Feed(Generic[M]):
    """Messages by receiver; a handle without state, for any thread, and databases and transactions of either store.

    Names of receivers, groups and terminals are str, int, bytes, or a tuple of these, not empty, of up to 1,000 bytes.
    There may be any number of them, and they need no creation. Every method except `configure` raises
    `FeedNotConfigured`. For type checkers, `Feed[str]` has messages of str.

    Args:
        name: 1 to 100 letters, digits, `_`, `.` or `-`; raises `InvalidConfiguration`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys = FeedKeys(name)

    def __repr__(self) -> str:
        return f"Feed({self.name!r})"

    # The feed as a whole

    def configure(
        self,
        db: Database,
        *,
        numbers: bool | None = None,
        unread: bool | None = None,
        keep: Span | None = None,
        keep_last: int | None = None,
    ) -> FeedConfig:
        """Create the feed, or change its retention; omitted settings stay as they are.

        Args:
            db: a database of either store.
            numbers: whether workers give each receiver's messages the numbers 1, 2, 3 ...; False for a new feed. It
                cannot be changed later.
            unread: whether the feed counts unread messages, see `unread`; False for a new feed. It cannot be changed
                later.
            keep: workers remove messages that were committed longer ago, by the store's versions, such as `"30d"`. 0
                (default of a new feed): no limit.
            keep_last: workers keep the last `keep_last` numbered messages of each receiver. 0 (default of a new feed):
                no limit.

        Raises:
            InvalidConfiguration: a setting is invalid, or `numbers` or `unread` differs from that of the existing feed.
        """

        seconds = 0.0 if keep in (None, 0) else positive_seconds(keep)

        def change(tr: Transaction) -> FeedConfig:
            try:
                before = read_feed_config(tr, self.name)
            except FeedNotConfigured:
                before = None
            found = before or FeedConfig(self.name, bool(numbers), unread=bool(unread))
            for what, given, has in (
                ("numbers", numbers, found.numbers),
                ("unread", unread, found.unread),
            ):
                if given is not None and given != has:
                    raise InvalidConfiguration(
                        f"feed {self.name!r} was made with {what}={has}, which cannot change: make another feed, or "
                        f"omit `{what}`"
                    )
            if keep is not None:
                found = replace(found, keep_seconds=seconds or None)
            if keep_last is not None:
                found = replace(found, keep_last=keep_last or None)
            # A change sets the metadata version, which empties the caches of all processes: only if it is one.
            if found.checked() != before:
                write_feed_config(tr, found)
            return found

        return transact(db, change)

    def delete(self, db: Database) -> None:
        """Remove the feed with all its messages, positions and groups."""

        def delete(tr: Transaction) -> None:
            read_feed_config(tr, self.name)
            clear_feed(tr, self.name)

        transact_removal(db, delete, FeedNotConfigured)

    # Messages

    def append(self, tr: Transaction, receiver: Any, message: M, *, sender: Any = None) -> bytes:
        """Write a message after all others of the receiver, as a part of the transaction.

        Blind: it reads only the metadata version that arrived with the read version, and conflicts with no other
        append, no reader and no worker. A transaction that is retried after `commit_unknown_result` may write the
        message again, under another id.

        Args:
            tr: a transaction of either store.
            receiver: name of the receiver.
            message: any value that CBOR can encode, up to 90,000 bytes.
            sender: name of the sender, who can `edit` and `recall` the message later; None: nobody can.

        Returns:
            The last 8 bytes of the message's id; the first 10 are the versionstamp of the commit
            (`tr.get_versionstamp()`).

        Raises:
            InvalidData: CBOR cannot encode the message, or the name is invalid; nothing is written.
            TooLarge: the message or the name is too large; nothing is written.
        """
        config = read_feed_config(tr, self.name)
        encoded = encode_name("receiver", receiver)
        return put_messages(tr, config, self.keys, encoded, [encode_message(message, sender)])[0]

    def send(self, tr: Transaction, sender: Any, receiver: Any, message: M) -> bytes:
        """`append` a message, and a copy for the sender's own terminals, in the sender's inbox under the same id.

        The copy has the receiver in `to`, and never counts as unread. `edit` and `recall` change both.
        """
        return put_with_copy(tr, read_feed_config(tr, self.name), sender, receiver, message)[0]

    def append_many(self, tr: Transaction, receiver: Any, messages: Collection[M]) -> list[bytes]:
        """`append` for several messages to one receiver, in this order; raises `OneShotIterable` for an iterator."""
        config = read_feed_config(tr, self.name)
        encoded = encode_name("receiver", receiver)
        return put_messages(
            tr,
            config,
            self.keys,
            encoded,
            [encode_message(each) for each in repeatable(messages, "messages")],
        )

    def append_now(
        self, db: Database, receiver: Any, message: M, *, sender: Any = None, to_group: bool = False
    ) -> bytes:
        """Append a message in a transaction of its own, and return its id once it is committed.

        If the store does not know whether a commit has happened, it is repeated: the message may be there twice.

        Args:
            db: a database of either store.
            receiver: name of the receiver, or of the group.
            message: as of `append`.
            sender: as of `append`.
            to_group: append it to the group of this name; the id is then the `origin` of the members' messages.

        Raises:
            InvalidData, TooLarge: as `append`; nothing is written.
        """
        append: Any = self.append_to_group if to_group else self.append
        # The versionstamp is known after the commit, as long as the transaction exists.
        _, end, stamp = transact(
            db, lambda tr: (tr, append(tr, receiver, message, sender=sender), tr.get_versionstamp())
        )
        found: bytes = stamp.value + end
        return found

    def edit(
        self, tr: Transaction, receiver: Any, id_: bytes, message: M, *, sender: Any, to_group: bool = False
    ) -> bool:
        """Replace a message by another one, and append an event for those who have read past it.

        Later readers see only the new message. The event is a message whose `changes` is the id, or the origin, of this
        one. It reaches the receiver, or those who have been members of the group since the message without a break.
        It never counts as unread.

        Args:
            tr: a transaction of either store; it conflicts with other changes and the removal of the message.
            receiver: name of the receiver, or of the group.
            id_: id of the message; in a group its `origin`.
            message: as of `append`.
            sender: the sender that the message was appended with. cq knows no users: your program says who it is.
            to_group: the receiver is a group.

        Returns:
            Whether the message was there: not recalled, and not removed by retention.

        Raises:
            InvalidData: the message has another sender, or none, or was sent to another receiver; nothing is written.
            TooLarge: the message is too large; nothing is written.
            PendingUnreadable: after an append for the receiver or the sender in the same transaction.
        """
        return self._change(tr, receiver, id_, encode_body(message), sender=sender, to_group=to_group)

    def recall(
        self, tr: Transaction, receiver: Any, id_: bytes, *, sender: Any, to_group: bool = False
    ) -> bool:
        """Delete the body of a message, and append an event for those who have read past it; otherwise as `edit`.

        Later readers see that there was a message (`recalled`), so it still counts as unread until they have read it.
        """
        return self._change(tr, receiver, id_, None, sender=sender, to_group=to_group)

    def _change(
        self, tr: Transaction, receiver: Any, id_: bytes, body: bytes | None, *, sender: Any, to_group: bool
    ) -> bool:
        config = read_feed_config(tr, self.name)
        if len(check_id(id_)) != ID_BYTES:
            raise InvalidData("expected the id of the message to change, got none")
        with self._readable():
            if to_group:
                return change_group_message(tr, self.keys, receiver, id_, sender, body)
            for what, name in (("receiver", receiver), ("sender", sender)):
                self._refuse_after_append(tr, encode_name(what, name))
            return change_message(tr, config, receiver, id_, sender, body)

    def read(self, tr: TransactionRead, receiver: Any, after: bytes = b"", limit: int = LIMIT) -> FeedPage[M]:
        """Return the receiver's messages after an id, in the order of their ids: at most `limit`, or about 1 MB.

        Args:
            tr: a transaction, or its `.snapshot` for a read that must not conflict with appends.
            receiver: name of the receiver.
            after: id of the last message read; empty: begin with the oldest stored message.
            limit: of messages, at least 1.

        Raises:
            InvalidData: `after` is not an id.
            PendingUnreadable: after an append for this receiver in the same transaction.
        """
        read_feed_config(snapshot_of(tr), self.name)
        check_limit(limit)
        return self._page(tr, encode_name("receiver", receiver), check_id(after), limit)

    def read_numbered(
        self, tr: TransactionRead, receiver: Any, after: int = 0, limit: int = LIMIT
    ) -> FeedPage[M]:
        """Return the receiver's numbered messages after a number, in order; otherwise as `read`.

        The page's messages have consecutive numbers; the first has `after + 1`, unless `missed` reports that it was
        removed. Numbers are in the order of ids and never change. Raises `InvalidConfiguration` for a feed without
        numbers, and `InvalidData`.
        """
        if not read_feed_config(snapshot_of(tr), self.name).numbers:
            raise InvalidConfiguration(
                f"feed {self.name!r} gives no numbers: read by ids, or make another feed"
            )
        if type(after) is not int or after < 0 or not codec.is_int64(after):
            raise InvalidData(f"expected the number of a message, or 0, got: {codec.shown(after)}")
        check_limit(limit)
        encoded = encode_name("receiver", receiver)
        stored = tr.get(self.keys.numbered(encoded)), tr.get(self.keys.removed(encoded))
        last, numbered = split_mark(stored[0].value)
        _, removed, _ = split_removed(stored[1].value)
        # A transaction reads `numbered` and `removed` with a conflict: a concurrent numbering or removal aborts it.
        number = max(after, removed) + 1
        if number > numbered:
            return FeedPage((), b"", False, after < removed)
        first = tr.get(self.keys.number(encoded, number)).value or b""
        begin = self.keys.message(encoded, first)
        end = self.keys.messages_through(encoded, last)[1]  # later messages have no numbers yet
        rows, more = take(tr.get_range(begin, end, limit=limit + 1), limit)
        messages, is_all = read_messages(tr, self.keys, encoded, rows, number)
        last_id = messages[-1].id if messages else b""
        return FeedPage(messages, last_id, more or not is_all, after < removed)

    def wait(
        self,
        db: Database,
        receiver: Any,
        after: bytes = b"",
        limit: int = LIMIT,
        timeout: Span | None = None,
    ) -> FeedPage[M]:
        """Wait until the receiver has messages after an id, and return them, as `read` does.

        It does not poll: a watch fires within milliseconds of the commit. Each wait uses one of the 10,000 watches that
        a connection to a cluster can have, and two until the receiver has got its first message.

        Args:
            db: a database; the wait is outside of any transaction.
            receiver: as for `read`.
            after: as for `read`.
            limit: as for `read`.
            timeout: None: no limit.

        Returns:
            A page of messages; an empty one after `timeout`.
        """
        encoded, after = encode_name("receiver", receiver), check_id(after)
        check_limit(limit)
        return wait_until(db, lambda tr: self._read_or_watch(tr, encoded, after, limit), timeout)

    def latest(self, tr: TransactionRead, receiver: Any) -> bytes:
        """Return the id of the receiver's last message, for readers of later ones only; empty if there is none.

        Raises `PendingUnreadable` after an append for the receiver in the same transaction.
        """
        read_feed_config(snapshot_of(tr), self.name)
        encoded = encode_name("receiver", receiver)
        self._refuse_after_append(tr, encoded)
        begin, end = self.keys.messages(encoded)
        for row in tr.get_range(begin, end, limit=1, reverse=True):
            return id_of(row.key)
        return b""

    def forget(self, tr: Transaction, receiver: Any) -> None:
        """Remove the receiver's messages, numbers (which begin again at 1) and positions; blind.

        It stays a member of its groups, and still gets their undelivered messages. Raises `PendingUnreadable` after an
        append for the receiver in the same transaction: that message would stay, without a number and a count.
        """
        read_feed_config(tr, self.name)
        encoded = encode_name("receiver", receiver)
        self._refuse_after_append(tr, encoded)
        for begin, end in self.keys.of_receiver(encoded):
            tr.clear_range(begin, end)

    # Positions

    def advance(self, tr: Transaction, receiver: Any, terminal: Any, position: bytes) -> None:
        """Store that a terminal of the receiver has read up to the id `position`; never decreases.

        It conflicts with no other transaction, except `forget` in a feed with unread counts. It reads no keys, except
        in such a feed: there it counts the messages from the terminal's position to the new one, which it reads; if the
        new one is the last message, it reads only this.

        Raises:
            InvalidData: `position` is not an id, or is one of later transactions only, for which the terminal would
                miss all messages until then. Whether it is the id of a message is not checked: it may be removed.
            PendingUnreadable: after an append for the receiver in the same transaction, in a feed with unread counts.
        """
        config = read_feed_config(tr, self.name)
        encoded, key = encode_name("receiver", receiver), self._position(receiver, terminal)
        if check_id(position):
            if first_id_at(tr.get_read_version().wait() + 1) <= position:
                raise InvalidData(
                    "expected the id of a message that this transaction can read, got a later one: "
                    f"{position.hex()}"
                )
            count = self._count_through(tr, encoded, key, position) if config.unread else b""
            # Ids compare in commit order, so the greater one of two late calls wins. The count depends on the id.
            tr.byte_max(key, position + count)

    def position(self, tr: TransactionRead, receiver: Any, terminal: Any) -> bytes:
        """Return the id up to which a terminal has read, empty at first: the `after` of its next `read`."""
        read_feed_config(snapshot_of(tr), self.name)
        return (tr.get(self._position(receiver, terminal)).value or b"")[:ID_BYTES]

    def unread(self, tr: TransactionRead, receiver: Any, terminal: Any) -> int:
        """Return how many messages of the receiver a terminal has not read, without those that were removed.

        Three reads, whatever the number. Appends and positions change what it reads in their own transactions, so the
        count is exact at the version of the read. Group messages count from their delivery.

        Args:
            tr: a transaction, or its `.snapshot` for a read that must not conflict with appends.
            receiver: name of the receiver.
            terminal: name of the terminal. Terminals that share a position may use one name, such as the user's.

        Raises:
            InvalidConfiguration: the feed has no unread counts.
        """
        if not read_feed_config(snapshot_of(tr), self.name).unread:
            raise InvalidConfiguration(
                f"feed {self.name!r} does not count unread messages: make another feed, with `unread=True`"
            )
        encoded = encode_name("receiver", receiver)
        appended, position, removed = (
            tr.get(key)
            for key in (
                self.keys.appended(encoded),
                self._position(receiver, terminal),
                self.keys.removed(encoded),
            )
        )
        read = max(split_mark(position.value)[1], split_removed(removed.value)[2])
        return int.from_bytes(appended.value or b"", "little") - read

    def set_online(self, tr: Transaction, receiver: Any, terminal: Any, duration: Span = 60.0) -> None:
        """Record that a terminal is online for the next `duration`, by the caller's clock; blind.

        Call it again before this time ends, such as in each third of it; 0: the terminal is offline now.
        """
        read_feed_config(tr, self.name)
        key = self.keys.lease(encode_name("receiver", receiver), encode_name("terminal", terminal))
        seconds = span_of(duration)
        if not 0 <= seconds < _MOST_SECONDS:
            raise InvalidData(
                f"expected the seconds or duration that a terminal is online, got: {codec.shown(duration)}"
            )
        if seconds:
            tr.set(key, (now() + int(seconds * 1000)).to_bytes(8, "big"))
        else:
            tr.clear(key)

    def online(self, tr: TransactionRead, receiver: Any) -> list[Any]:
        """Return the names of the receiver's terminals that are online: whose time of `set_online` has not ended."""
        read_feed_config(snapshot_of(tr), self.name)
        begin, end = self.keys.leases(encode_name("receiver", receiver))
        rows = tr.get_range(begin, end)
        at = now().to_bytes(8, "big")
        return [decode_name(row.key[len(begin) :]) for row in rows if row.value > at]

    def _count_through(self, tr: Transaction, receiver: bytes, key: bytes, position: bytes) -> bytes:
        """The number of messages up to a position that the receiver has ever got, as stored after the position.

        All by snapshot reads: no message appears at or before a position later, so the number never changes.
        """
        self._refuse_after_append(tr, receiver)
        # Only `forget` writes this key, by the range that it clears: the count must not outlive what it counts.
        tr.add_read_conflict_key(self.keys.position(receiver, b""))
        snapshot = tr.snapshot
        position_before, removed = snapshot.get(key), snapshot.get(self.keys.removed(receiver))
        appended = snapshot.get(self.keys.appended(receiver))
        last = snapshot.get_range(*self.keys.messages(receiver), limit=1, reverse=True)
        last_removed, _, counted = split_removed(removed.value)
        begin, count = max(split_mark(position_before.value), (last_removed, counted))
        if all(id_of(row.key) <= position for row in last):
            count = int.from_bytes(appended.value or b"", "little")
        elif begin < position:
            first = self.keys.messages(receiver, begin)[0]
            end = self.keys.messages_through(receiver, position)[1]
            count += sum(not is_quiet(row.value) for row in snapshot.get_range(first, end))
        return count.to_bytes(COUNT_BYTES, "big")

    # Groups

    def join(self, tr: Transaction, group: Any, user: Any) -> None:
        """Make a receiver a member of a group from this commit on, messages of this transaction included; blind."""
        read_feed_config(tr, self.name)
        put_event(tr, self.keys, encode_name("group", group), encode_name("user", user), joined=True)

    def leave(self, tr: Transaction, group: Any, user: Any) -> None:
        """End a receiver's membership in a group from this commit on; blind."""
        read_feed_config(tr, self.name)
        put_event(tr, self.keys, encode_name("group", group), encode_name("user", user), joined=False)

    def append_to_group(self, tr: Transaction, group: Any, message: M, *, sender: Any = None) -> bytes:
        """Write a message to all members of the group as of the commit; blind, as `append`.

        Workers write it to each member exactly once, in bounded transactions; each member gets the messages of a group
        in commit order. With a `sender`, who can `edit` and `recall` it by its `origin`, and from 1,000 bytes on, the
        text is stored once, and the copies of the members refer to it. Returns and raises as `append`; members see the
        id as `origin`.
        """
        config = read_feed_config(tr, self.name)
        encoded, stored = encode_name("group", group), encode_message(message, sender)
        if sender is not None or (config.shares and len(stored) >= SHARED_BYTES):
            counter = put_text_once(tr, self.keys, encoded, stored, sender)
        else:
            counter = put_group_message(tr, self.keys, encoded, stored)
        return counter.to_bytes(8, "big")

    def is_member(self, tr: TransactionRead, group: Any, user: Any) -> bool:
        """Whether a receiver is a member of a group.

        Raises `PendingUnreadable` after its `join` or `leave` in the same transaction.
        """
        read_feed_config(snapshot_of(tr), self.name)
        bounds = self.keys.events_of(encode_name("group", group), encode_name("user", user))
        with self._readable(_AFTER_JOIN):
            return is_member(events_in(tr.get_range(*bounds)))

    def members(self, tr: TransactionRead, group: Any, after: Any = None, limit: int = 1000) -> list[Any]:
        """Return at most `limit` members of a group, in a stable order, after the member `after` (None: the first).

        Raises `PendingUnreadable` after a `join` or `leave` of the group in the same transaction.
        """
        read_feed_config(snapshot_of(tr), self.name)
        check_limit(limit)
        encoded = encode_name("group", group)
        behind = b"" if after is None else encode_name("user", after)
        found = []
        with self._readable(_AFTER_JOIN):
            for user, events in by_user(self.keys, encoded, tr.get_range(*self.keys.events(encoded, behind))):
                if is_member(events):
                    found.append(decode_name(user))
                    if len(found) >= limit:
                        break
        return found

    # Internals

    def _position(self, receiver: Any, terminal: Any) -> bytes:
        return self.keys.position(encode_name("receiver", receiver), encode_name("terminal", terminal))

    def _page(self, tr: TransactionRead, receiver: bytes, after: bytes, limit: int) -> FeedPage[M]:
        self._refuse_after_append(tr, receiver)
        mark = tr.get(self.keys.removed(receiver))  # a future: both reads are under way at once
        found = tr.get_range(*self.keys.messages(receiver, after), limit=limit + 1)
        with self._readable():
            rows, more = take(found, limit)
            messages, is_all = read_messages(tr, self.keys, receiver, rows)
        position = messages[-1].id if messages else after
        return FeedPage(messages, position, more or not is_all, after < split_removed(mark.value)[0])

    def _refuse_after_append(self, tr: TransactionRead, receiver: bytes) -> None:
        """Raise `PendingUnreadable` before the read that would fail: the transaction can still commit.

        With `bypass_unreadable` only the read itself shows it.
        """
        appended = self.keys.messages(receiver)[0]
        if appended not in recorded(tr):
            return
        unused = self.keys.latest(runtime.token_bytes(_UNUSED_BYTES))
        is_hidden = hides_writes(tr, appended, unused)
        if not is_hidden and makes_unreadable(tr, appended, self.keys.after_messages(receiver)):
            raise self._unreadable()

    @contextmanager
    def _readable(self, what: str = _AFTER_APPEND) -> Iterator[None]:
        """A context that raises `PendingUnreadable` for the store's error about the transaction's own writes."""
        try:
            yield
        except Exception as error:
            if error_code(error) != ACCESSED_UNREADABLE:
                raise
            raise self._unreadable(what) from error

    def _unreadable(self, what: str = _AFTER_APPEND) -> PendingUnreadable:
        return PendingUnreadable(
            f"in feed {self.name!r} {what} in the same transaction, which has no id before the commit: do so first, "
            "or in another transaction"
        )

    def _read_or_watch(
        self, tr: Transaction, receiver: bytes, after: bytes, limit: int
    ) -> tuple[FeedPage[M], *tuple[Void | None, ...]]:
        """Return the messages after an id, or an empty page and watches for the next message."""
        read_feed_config(tr.snapshot, self.name)
        key = self.keys.latest(receiver)
        # The watch belongs to the read version of this read, so a message between the two fires it.
        latest = tr.snapshot.get(key).value
        # An equal versionstamp: later messages of the same transaction may follow the one with this id.
        if latest is None:  # the deletion of the feed would not fire the watch
            return FeedPage((), after, False, False), tr.watch(key), tr.watch(self.keys.config)
        if latest < versionstamp_of_id(after):
            return FeedPage((), after, False, False), tr.watch(key)
        page = self._page(tr.snapshot, receiver, after, limit)
        return page, None if page.messages else tr.watch(key)
