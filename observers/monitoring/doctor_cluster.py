"""Checks of `cq doctor` for a FoundationDB cluster, and for this machine's access to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from cq import runtime
from cq.admin.queue_status import current_version
from cq.errors import ClientLibraryError, StoreError, StoreUnreachable
from cq.keys import QueueKeys
from cq.observers.monitoring.cluster_status import (
    Cluster,
    line_of,
    read_cluster,
    server_versions,
    shards,
    status_checks,
)
from cq.store import OpenDatabase
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.foundationdb import (
    INSTALL_BINDING,
    check_cluster_file,
    client_version,
    default_cluster_file,
    open_cluster,
)
from cq.store.space import Space

ANSWER_SECONDS: Final = 3.0
"""Time limit of the cluster's first answer."""
CLOCK_SECONDS: Final = 1.0
"""Time over which the rate of the cluster's versions is measured."""


class ClusterStore:
    """A cluster to check; `db` is set by `open`."""

    db: OpenDatabase

    def __init__(self, path: str) -> None:
        self._given = path
        self._path = path or default_cluster_file()

    def before(self) -> dict[str, Callable[[], str]]:
        """The checks that need no cluster."""
        return {"binding": binding, "client library": client_library, "cluster file": self._cluster_file}

    def exists(self) -> bool:
        """Whether a store can be opened; True, since the check of the cluster file has passed."""
        return True

    def open(self) -> OpenDatabase:
        """Connect to the cluster, within `ANSWER_SECONDS`."""
        self.db = open_cluster(self._path, answer_within=ANSWER_SECONDS)
        return self.db

    def close(self) -> None:
        """Do nothing: a cluster's client is not closed."""

    def after(self) -> dict[str, Callable[[], str]]:
        """The checks of the open cluster."""
        checks = {name: self._checked(check) for name, check in status_checks(client_version).items()}
        return {"versions": self._versions, **checks, "clock": self._clock}

    def of_queue(self, name: str, space: Space) -> dict[str, Callable[[], str]]:
        """The checks of a queue that only a cluster has."""
        begin, end = map(space.key, QueueKeys(name).all_rows())
        return {f"shards of {name}": lambda: shards(self.db, begin, end)}

    def _checked(self, check: Callable[[Cluster], str]) -> Callable[[], str]:
        return lambda: check(read_cluster(self.db))

    def _cluster_file(self) -> str:
        check_cluster_file(self._path)
        folder = Path(self._path).resolve().parent
        if not (os.access(self._path, os.W_OK) and os.access(folder, os.W_OK)):
            raise StoreUnreachable(
                f"{self._path} or its folder cannot be written: change that, as the client rewrites the file when the "
                "cluster's coordinators change"
            )
        return f"{self._path}, {self._found()}"

    def _found(self) -> str:
        if self._given:
            return "named by the store's URL"
        if os.environ.get("FDB_CLUSTER_FILE"):
            return "named by $FDB_CLUSTER_FILE"
        return "found in the current folder" if self._path == "fdb.cluster" else "the system's"

    def _versions(self) -> str:
        client, servers = client_version(), server_versions(read_cluster(self.db))
        found = (
            f"the cluster is of version {', '.join(servers) or 'unknown'}, and the client library of {client}"
        )
        if {line_of(server) for server in servers} - {line_of(client)}:
            raise StoreError(
                f"{found}: unless an upgrade is under way, install the package `foundationdb-clients` of the "
                "cluster's version"
            )
        return found

    def _clock(self) -> str:
        first, started = current_version(self.db), runtime.time()
        runtime.sleep(CLOCK_SECONDS)
        advanced = (current_version(self.db) - first) / VERSIONS_PER_SECOND
        passed = runtime.time() - started
        found = f"versions advanced by {advanced:.2f} s in {passed:.2f} s of this machine's clock"
        if not passed / 2 < advanced < passed * 2:
            raise StoreError(
                f"{found}, so ages are wrong: run this again, and if it stays, repair the clock or the cluster"
            )
        return found


def binding() -> str:
    """The version of the Python binding; raises `ClientLibraryError`."""
    try:
        return version("foundationdb")
    except PackageNotFoundError:
        raise ClientLibraryError(
            f"FoundationDB's Python binding is not installed: run `{INSTALL_BINDING}`"
        ) from None


def client_library() -> str:
    """The version of the native library, if the binding can use it; raises `ClientLibraryError`."""
    return f"{client_version()}, which this binding can use"
