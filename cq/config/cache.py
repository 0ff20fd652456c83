"""The cache of configurations, which gives a transaction a configuration without a round trip.

The cache of a database is valid for one value of `\\xff/metadataVersion`. The store returns this value with the read
version, so reading it costs no round trip. Each change of a configuration writes that key and the configuration's own
key in one commit. A transaction reads the metadata version in a snapshot and adds a read conflict on the own key of the
configuration: it fails if the configuration changes before it commits, but changes by other queues and other layers do
not abort it. After such a change, the next transaction reads the configuration again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from cq.errors import WritesUnreadable
from cq.keys import CHANGED, INCOMPLETE_VERSIONSTAMP
from cq.nearest import nearest
from cq.store.api import ACCESSED_UNREADABLE, METADATA_VERSION, Transaction, TransactionRead, error_code
from cq.store.mistakes import refuse_unless_transaction
from cq.store.own_writes import note_writes, recorded
from cq.store.reads import snapshot_of

T = TypeVar("T")

MAX_SUGGESTED: Final = 1_000
"""Number of names that the error for an unknown name compares with it."""


class ConfigCache(Generic[T]):
    """The configurations of one kind that the transactions of each database have read, by name.

    Args:
        key: returns the key under which the configuration of a name is stored. Each transaction that changes the
            configuration must write this key and call `invalidate_configs`.
        parse: returns the configuration for a name and the stored bytes.
        missing: the error for a name without a configuration, and the nearest name that has one or None.
        names: returns configured names, for this error.
    """

    def __init__(
        self,
        key: Callable[[str], bytes],
        parse: Callable[[str, bytes], T],
        missing: Callable[[str, str | None], Exception],
        names: Callable[[TransactionRead], list[str]],
    ) -> None:
        self._key, self._from_bytes, self._missing, self._names = key, parse, missing, names
        self._known: WeakKeyDictionary[Any, tuple[bytes | None, dict[str, tuple[bytes, T]]]]
        self._known = WeakKeyDictionary()

    def get(self, tr: TransactionRead, name: str) -> T:
        """The configuration at the transaction's read version; raises what `parse` does, or the error of `missing`.

        Raises `TypeError` for a database instead of a transaction.

        With a transaction, it adds a read conflict on the configuration's key, so that the transaction fails if the
        configuration changes before the commit. With `tr.snapshot`, it adds no conflict.
        """
        snapshot = snapshot_of(tr)
        if METADATA_VERSION in recorded(tr):  # `invalidate_configs` has made it unreadable
            return self._parse(snapshot, name, tr.get(self._key(name)).value)
        try:
            version = snapshot.get(METADATA_VERSION).value
        except Exception as error:
            if error_code(error) != ACCESSED_UNREADABLE:
                refuse_unless_transaction(tr)
                raise
            # Reading the configuration itself would not help: a transaction with a failed read cannot be committed.
            raise WritesUnreadable(
                f"the transaction has written {METADATA_VERSION!r}, which cq must read to validate the configuration "
                f"of {name!r}: call cq before that write"
            ) from error
        known = self._known.get(tr.db)
        if known is None or known[0] != version:
            if not _is_committed(snapshot, version):
                return self._parse(snapshot, name, tr.get(self._key(name)).value)
            known = self._known[tr.db] = version, {}
        found = known[1].get(name)
        key = self._key(name) if found is None else found[0]
        if snapshot is not tr:
            writing: Any = tr  # `cast` is a call
            writing.add_read_conflict_key(key)
        if found is None:
            # A snapshot read, like that of the metadata version: both see the transaction's own writes, or neither.
            # Otherwise an uncommitted configuration could get into the cache.
            found = known[1][name] = key, self._parse(snapshot, name, snapshot.get(key).value)
        return found[1]

    def _parse(self, snapshot: TransactionRead, name: str, stored: bytes | None) -> T:
        if stored is None:
            raise self._missing(name, nearest(name, self._names(snapshot)))
        return self._from_bytes(name, stored)


def _is_committed(snapshot: TransactionRead, version: bytes | None) -> bool:
    """Whether a metadata version was committed before the transaction's read version.

    With the option `bypass_unreadable`, a transaction reads the placeholder that it has written to the key. Two
    transactions can read equal placeholders, although the configuration has changed between them.
    """
    if version is None:
        return True
    return 0 < int.from_bytes(version[:8], "big") <= snapshot.get_read_version().wait()


def invalidate_configs(tr: Transaction) -> None:
    """Invalidate all cached configurations, and wake workers so that they read theirs again.

    The caller writes the key of the changed configuration in the same transaction.
    """
    note_writes(tr, METADATA_VERSION)
    tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)
    tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)
