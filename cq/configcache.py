"""What is configured of a store, as every process knows it without a round trip.

Configurations are cached, per database, under the value of `\\xff/metadataVersion`, which comes with a transaction's
read version and so costs nothing to read. Whoever changes one sets that key; who relies on one reads it for real, so
nothing commits under an outdated one. Other layers may set the key too: then the configuration is read again, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from cq.keys import CHANGED, INCOMPLETE_VERSIONSTAMP
from cq.store.api import METADATA_VERSION, Transaction, TransactionRead

T = TypeVar("T")


class ConfigCache(Generic[T]):
    """The configurations of one kind that the transactions of each database have read, by name.

    Args:
        read: reads one that is not known yet, and raises when there is none.
    """

    def __init__(self, read: Callable[[TransactionRead, str], T]) -> None:
        self._read = read
        self._known: WeakKeyDictionary[Any, tuple[bytes | None, dict[str, T]]] = WeakKeyDictionary()

    def get(self, tr: TransactionRead, name: str) -> T:
        """The configuration at the transaction's read version; raises what `read` does.

        Through a transaction it adds a read conflict on the metadata version, so that the transaction fails when
        anything configured changes under it; through `tr.snapshot` it adds none.
        """
        version = tr.get(METADATA_VERSION).value
        known = self._known.get(tr.db)
        if known is None or known[0] != version:
            known = self._known[tr.db] = version, {}
        config = known[1].get(name)
        if config is None:
            config = known[1][name] = self._read(tr, name)
        return config


def tell_change(tr: Transaction) -> None:
    """Have nothing commit under what was configured before, and workers look at what is now."""
    tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)
    tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)
