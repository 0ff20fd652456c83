"""Chains of read versions: a process that writes often needs no request for a read version.

A commit waits for a read version, also that of a transaction that reads nothing. But the version at which a transaction
has committed is a valid read version, too, and the client of a cluster then knows the metadata version without a
request. So a transaction of cq begins at the latest version at which its process has committed. All that it reads is
of that version, and it fails if anything that it has read with a conflict has changed since, as any transaction does:
an add still fails if the configuration of its queue changes before it commits.

A chained transaction does not see all commits that had returned before it began. So only transactions that do not
return what they have read are chained. An error of cq, such as `QueueNotConfigured`, may be outdated, too:
then the transaction begins again at a requested version. Without chains, adds of 5 updates to a cluster reach 0.7 to
0.8 of their rate.

A chain ends a second after its latest requested version, and at each error. The cluster delays requested versions when
it is overloaded; processes with chains that never ended would not be delayed.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from cq import runtime
from cq.store.api import is_local

CHAIN_SECONDS: Final = 1.0
"""Seconds for which a process begins transactions at versions of its own commits."""


class VersionChain:
    """The latest version at which a process has committed to a database. Thread-safe.

    Its state is replaced as a whole. If a thread overwrites that of another one, the chain is shorter.
    """

    def __init__(self) -> None:
        self._latest = (0, 0.0)

    def begin(self, tr: Any) -> tuple[float, bool]:
        """Set the read version of a new transaction, if the chain has one.

        Returns when the chain then ends, by `runtime.monotonic`, and whether it has set the version.
        """
        now = runtime.monotonic()
        version, until = self._latest
        if now >= until:
            return now + CHAIN_SECONDS, False
        tr.set_read_version(version)
        return until, True

    def end(self) -> float:
        """End the chain after an error; returns the end of a chain that begins with the next try."""
        self._latest = (0, 0.0)
        return runtime.monotonic() + CHAIN_SECONDS

    def extend(self, version: int, until: float) -> None:
        """Record the version of a commit, -1 for none, and the end of the chain that its transaction was a part of."""
        latest, ends = self._latest
        if version > 0:
            self._latest = max(version, latest), max(until, ends)


_chains: WeakKeyDictionary[Any, VersionChain | None] = WeakKeyDictionary()


def chain_of(db: Any) -> VersionChain | None:
    """The chain of this process's transactions of a database; None for a file, whose read versions cost nothing."""
    try:
        return _chains[db]
    except KeyError:
        return _chains.setdefault(db, None if is_local(db) else VersionChain())
