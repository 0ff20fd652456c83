"""Checks of `cq doctor` for a FoundationDB cluster, and for this machine's access to it.

A cluster publishes a status document about itself, in JSON below the key `STATUS`. Its checks take the part `cluster`
of it, and return a finding in one line, or raise `StoreError` with what to do. A part may be absent, for example during
a recovery.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from cq.errors import ClientLibraryError, StoreError, StoreUnreachable
from cq.keys import QueueKeys
from cq.plain_text import size
from cq.store import OpenDatabase
from cq.store.api import Database
from cq.store.foundationdb import (
    INSTALL_BINDING,
    check_cluster_file,
    client_version,
    default_cluster_file,
    open_cluster,
)
from cq.store.space import Space
from cq.store.transact import transact

ANSWER_SECONDS: Final = 3.0
"""Time limit of the cluster's first answer."""

STATUS: Final = b"\xff\xff/status/json"
_SHARDS: Final = b"\xff\xff/metrics/data_distribution_stats/"
LEAST_FREE_BYTES: Final = 500_000_000
"""Free space, beyond the reserve of the servers, below which writes will soon be limited."""
HOT_BYTES_PER_SECOND: Final = 5_000_000
"""Bytes that are written to one range in a second, from which it is worth to spread them over more servers."""
_ADVICE: Final = {
    "storage_server": "add storage processes, and give busy queues more buckets with `cq rebucket`",
    "log_server": "give the log processes faster disks, or add some",
}
Cluster = Mapping[str, Any]
"""The part `cluster` of the status document."""


class ClusterStore:
    """A cluster to check; `db` is set by `open`."""

    db: OpenDatabase

    def __init__(self, path: str) -> None:
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
        checks = {name: partial(self._checked, check) for name, check in status_checks().items()}
        return {"versions": self._versions, **checks}

    def of_queue(self, name: str, space: Space) -> dict[str, Callable[[], str]]:
        """The checks of a queue that only a cluster has."""
        begin, end = map(space.key, QueueKeys(name).all_rows())
        return {f"shards of {name}": lambda: shards(self.db, begin, end)}

    def _checked(self, check: Callable[[Cluster], str]) -> str:
        return check(self._cluster)

    @cached_property
    def _cluster(self) -> Cluster:
        return read_cluster(self.db)

    def _cluster_file(self) -> str:
        check_cluster_file(self._path)
        folder = Path(os.path.realpath(self._path)).parent
        if not (os.access(self._path, os.W_OK) and os.access(folder, os.W_OK)):
            raise StoreUnreachable(
                f"{self._path} or its folder cannot be written: change that, as the client rewrites the file when the "
                "cluster's coordinators change"
            )
        return self._path

    def _versions(self) -> str:
        client, servers = client_version(), server_versions(self._cluster)
        found = (
            f"the cluster is of version {', '.join(servers) or 'unknown'}, and the client library of {client}"
        )
        if {line_of(server) for server in servers} - {line_of(client)}:
            raise StoreError(
                f"{found}: unless an upgrade is under way, install the package `foundationdb-clients` of the "
                "cluster's version"
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


def read_cluster(db: Database) -> Cluster:
    """The part `cluster` of the status document; empty if the cluster has none."""
    document = transact(db, lambda tr: tr.snapshot.get(STATUS).value)
    found: Cluster = json.loads(document or b"{}").get("cluster", {})
    return found


def redundancy(cluster: Cluster) -> str:
    """Storage engine, redundancy, and whether all copies of the data exist."""
    configuration, data = cluster.get("configuration", {}), cluster.get("data", {}).get("state", {})
    mode = configuration.get("redundancy_mode", "unknown")
    found = f"storage engine {configuration.get('storage_engine', 'unknown')}, redundancy {mode}"
    if mode == "single":
        found += " (one lost disk loses data: `configure double` in fdbcli keeps two copies)"
    if not data.get("healthy", True):
        state = data.get("description") or data.get("name", "unknown")
        raise StoreError(f"{found}, but the data are not healthy: {state}; see `status details` in fdbcli")
    return found


def free_space(cluster: Cluster) -> str:
    """The free space of the fullest storage server and of the fullest log server."""
    data = cluster.get("data", {})
    least = {
        role: data[name]
        for role in ("storage", "log")
        if (name := f"least_operating_space_bytes_{role}_server") in data
    }
    found = ", ".join(f"{role} servers: {size(free)}" for role, free in least.items()) or "unknown"
    if any(free < LEAST_FREE_BYTES for free in least.values()):
        raise StoreError(f"free, {found}: add disks or processes before the cluster limits all transactions")
    return f"free, {found}"


def throttling(cluster: Cluster) -> str:
    """Whether Ratekeeper limits transactions, and why."""
    qos = cluster.get("qos", {})
    limited = qos.get("performance_limited_by", {})
    tags = sum(each.get("count", 0) for each in qos.get("throttled_tags", {}).values())
    rate = qos.get("transactions_per_second_limit", 0)
    if limited.get("name", "workload") != "workload":
        reason = limited["name"]
        advice = next(
            (_ADVICE[role] for role in _ADVICE if reason.startswith(role)), "see `status` in fdbcli"
        )
        raise StoreError(
            f"the cluster starts at most {rate:,.0f} transactions a second: {_sentence(limited)}; {advice}"
        )
    if tags:
        raise StoreError(f"the cluster throttles {tags} transaction tags: see `throttle list` in fdbcli")
    return "the cluster is not saturated"


def clients(cluster: Cluster, client: str) -> str:
    """The versions of the connected clients; `client` is that of this process."""
    versions = cluster.get("clients", {}).get("supported_versions", ())
    found = {each["client_version"]: _using(each) for each in versions if _using(each)}
    shown = ", ".join(f"{number} of {version}" for version, number in sorted(found.items())) or "unknown"
    lines = {line_of(version) for version in found}
    others = len(lines - {line_of(client)})
    return f"connected, {shown}" + (": bring all to one version when an upgrade is over" if others else "")


def messages(cluster: Cluster) -> str:
    """Whether the cluster reports problems of its own."""
    found = [_sentence(each) for each in cluster.get("messages", ())]
    if found:
        raise StoreError(f"the cluster reports: {'; '.join(found)}; see `status details` in fdbcli")
    return "none"


def shards(db: Database, begin: bytes, end: bytes) -> str:
    """The shards, ranges that FoundationDB places on servers, of the keys in a range of the store, and the hottest."""
    rows = transact(db, lambda tr: tr.snapshot.get_range(_SHARDS + begin, _SHARDS + end).to_list())
    found = [json.loads(row.value) for row in rows]
    rate = max((each.get("shard_bytes_per_ksecond", 0) / 1_000 for each in found), default=0.0)
    shown = f"shards of queued updates: {max(1, len(found))}, the hottest with {size(rate)}/s of writes"
    if rate > HOT_BYTES_PER_SECOND:
        raise StoreError(f"{shown}: spread them over more servers with `cq rebucket`")
    return shown


def line_of(release: str) -> str:
    """Major and minor version of a release.

    >>> line_of("7.3.43")
    '7.3'
    """
    return ".".join(release.split(".")[:2])


def status_checks() -> dict[str, Callable[[Cluster], str]]:
    """The checks of the status document by name."""
    return {
        "redundancy": redundancy,
        "space": free_space,
        "throttling": throttling,
        "clients": lambda cluster: clients(cluster, client_version()),
        "messages": messages,
    }


def server_versions(cluster: Cluster) -> list[str]:
    """The versions of the processes, sorted."""
    return sorted({each["version"] for each in cluster.get("processes", {}).values() if "version" in each})


def _using(version: Mapping[str, Any]) -> int:
    """The number of clients that use this version; others have loaded it, too, but use a newer one."""
    return int(version.get("max_protocol_count", version.get("count", 0)))


def _sentence(reason: Mapping[str, Any]) -> str:
    return str(reason.get("description") or reason.get("name", "unknown")).rstrip(".")
