"""The cache of configurations, which lets a transaction know one without a round trip.

Configurations are cached, per database, under the value of `\\xff/metadataVersion`, which comes with a transaction's
read version and so costs nothing to read. Each change of a configuration sets that key and writes the configuration's
own key in one commit. A transaction reads the former by a snapshot read and adds a read conflict on the latter: it
fails when the configuration that it relies on changes before it commits, and no change by another queue or another
layer aborts it. After such a foreign change the next transaction reads the configuration again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from cq.errors import WritesUnreadable
from cq.keys import CHANGED, INCOMPLETE_VERSIONSTAMP
from cq.store.api import (
    ACCESSED_UNREADABLE,
    METADATA_VERSION,
    Transaction,
    TransactionRead,
    error_code,
    snapshot_of,
)

T = TypeVar("T")


class ConfigCache(Generic[T]):
    """The configurations of one kind that the transactions of each database have read, by name.

    Args:
        key: returns the key under which the configuration of a name is stored. Each transaction that changes the
            configuration must write this key and call `invalidate_configs`.
        parse: makes a configuration of a name and the stored bytes; raises when the bytes are None.
    """

    def __init__(self, key: Callable[[str], bytes], parse: Callable[[str, bytes | None], T]) -> None:
        self._key, self._parse = key, parse
        self._known: WeakKeyDictionary[Any, tuple[bytes | None, dict[str, tuple[bytes, T]]]]
        self._known = WeakKeyDictionary()

    def get(self, tr: TransactionRead, name: str) -> T:
        """The configuration at the transaction's read version; raises what `parse` does.

        Through a transaction it adds a read conflict on the configuration's key, so that the transaction fails when
        the configuration changes before the commit; through `tr.snapshot` it adds none.
        """
        snapshot = snapshot_of(tr)
        try:
            version = snapshot.get(METADATA_VERSION).value
        except Exception as error:
            if error_code(error) != ACCESSED_UNREADABLE:
                raise
            # No other read would help: a transaction with a read that has failed cannot be committed.
            raise WritesUnreadable(
                f"the transaction has written {METADATA_VERSION!r}, which cq reads to know the configuration of "
                f"{name!r}: call cq before that write"
            ) from error
        known = self._known.get(tr.db)
        if known is None or known[0] != version:
            if not _is_committed(snapshot, version):
                return self._parse(name, tr.get(self._key(name)).value)
            known = self._known[tr.db] = version, {}
        found = known[1].get(name)
        key = self._key(name) if found is None else found[0]
        if snapshot is not tr:
            writing: Any = tr  # `cast` is a call
            writing.add_read_conflict_key(key)
        if found is None:
            # As for the metadata version, by a snapshot read: if that does not see writes of the transaction, this one
            # must not either. A configuration that is not committed must not get into the cache.
            found = known[1][name] = key, self._parse(name, snapshot.get(key).value)
        return found[1]


def _is_committed(snapshot: TransactionRead, version: bytes | None) -> bool:
    """Whether a metadata version was committed before the transaction's read version.

    With the option `bypass_unreadable` a transaction that has written the key reads its own placeholder instead: two
    transactions may read the same, although the configuration has changed between them.
    """
    if version is None:
        return True
    return 0 < int.from_bytes(version[:8], "big") <= snapshot.get_read_version().wait()


def invalidate_configs(tr: Transaction) -> None:
    """Invalidate every cached configuration, and have workers read theirs again.

    For a transaction that also writes the key of the configuration that it changes.
    """
    tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)
    tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)
