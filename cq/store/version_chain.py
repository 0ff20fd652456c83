"""Chains of transactions that begin at one version: a process that writes often needs no request for a read version.

A commit waits for a read version, also that of a transaction that reads nothing. But the version at which a transaction
has committed is a valid read version, too, and the client of a cluster then knows the metadata version without a
request. So transactions of cq begin at a version at which their process has committed. All that they read is of that
version, and they fail if anything that they have read with a conflict has changed since, as any transaction does: an
add still fails if the configuration of its queue changes before it commits. The first of them that needs the metadata
version reads it for all: even a read without a request suspends a thread, and lets others run meanwhile.

A chained transaction does not see all commits that had returned before it began. So only transactions that do not
return what they have read are chained. An error of cq, such as `QueueNotConfigured`, may be outdated, too:
then the transaction begins again at a requested version. Without chains, adds of 5 updates to a cluster reach 0.6 to
0.7 of their rate.

A chain ends a second after its requested version, and at each error. The cluster delays requested versions when
it is overloaded; processes with chains that never ended would not be delayed.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from cq import runtime
from cq.store.api import METADATA_VERSION, TransactionRead, is_local

CHAIN_SECONDS: Final = 1.0
"""Seconds for which a process begins transactions at versions of its own commits."""


class ChainedVersion:
    """A version at which transactions begin.

    Attributes:
        version: at which the process has committed.
        until: when no further transaction begins at it, by `runtime.monotonic`.
        metadata: the metadata version at this version, once `is_read`.
    """

    __slots__ = ("is_read", "metadata", "until", "version")

    def __init__(self, version: int, until: float) -> None:
        self.version = version
        self.until = until
        self.metadata: bytes | None = None
        self.is_read = False

    def keep(self, metadata: bytes | None) -> None:
        """Keep the metadata version for further transactions at this version."""
        self.metadata = metadata
        self.is_read = True  # only now, as other threads read both

    def end(self) -> None:
        """Begin no further transactions at this version."""
        self.until = 0.0


class VersionChain:
    """The version at which a process begins transactions of a database. Thread-safe.

    If a thread replaces the version of another one, both are valid.
    """

    def __init__(self) -> None:
        self._present = ChainedVersion(0, 0.0)

    def begin(self, tr: Any) -> tuple[float, bool]:
        """Set the read version of a new transaction, if the chain has one.

        Returns when the chain then ends, by `runtime.monotonic`, and whether it has set the version.
        """
        now, present = runtime.monotonic(), self._present
        if now >= present.until:
            return now + CHAIN_SECONDS, False
        tr.set_read_version(present.version)
        tr.cq_chained = present
        return present.until, True

    def end(self, tr: Any) -> float:
        """End the chain after an error of a transaction; returns the end of a chain that begins with its next try."""
        self._present.end()
        tr.cq_chained = None
        return runtime.monotonic() + CHAIN_SECONDS

    def start(self, version: int, until: float) -> None:
        """Let transactions begin at the version of a commit until then; -1: of a transaction without writes."""
        if version > self._present.version:
            self._present = ChainedVersion(version, until)


def chained_version(tr: Any) -> ChainedVersion | None:
    """The version of its process's chain at which a transaction has begun; None for a requested version."""
    found: ChainedVersion | None = getattr(tr, "cq_chained", None)
    return found


def metadata_version(snapshot: TransactionRead, chained: ChainedVersion | None) -> bytes | None:
    """The metadata version at the read version of a transaction: as kept for its chain, or else by a read."""
    if chained is not None and chained.is_read:
        return chained.metadata
    if chained is None and not is_local(snapshot.db):
        # The client of a locked cluster never answers a read of the metadata version: only the request for the read
        # version, whose reply has both, fails and lets the transaction begin again.
        version, found = snapshot.get_read_version(), snapshot.get(METADATA_VERSION)
        version.wait()
        return found.value
    return snapshot.get(METADATA_VERSION).value


_chains: WeakKeyDictionary[Any, VersionChain | None] = WeakKeyDictionary()


def chain_of(db: Any) -> VersionChain | None:
    """The chain of this process's transactions of a database; None for a file, whose read versions cost nothing."""
    try:
        return _chains[db]
    except KeyError:
        return _chains.setdefault(db, None if is_local(db) else VersionChain())
