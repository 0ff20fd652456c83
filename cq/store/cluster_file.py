"""Finding and checking the cluster file.

The native client does not report an invalid file until a transaction fails, and then without the reason. So cq checks
the file before the client opens it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from cq.errors import StoreUnreachable

_SIZE_MAX = 100_000
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)"
_ADDRESS = rf"{_HOST}:[0-9]{{1,5}}(?::tls)?(?:\(fromHostname\))?"
_CONNECTION = re.compile(rf"[A-Za-z0-9_]+:[A-Za-z0-9]+@{_ADDRESS}(?:,{_ADDRESS})*")


def default_cluster_file() -> str:
    """The file that FoundationDB's tools use: `$FDB_CLUSTER_FILE`, else `./fdb.cluster`, else the system's file."""
    if named := os.environ.get("FDB_CLUSTER_FILE"):
        return named
    if Path("fdb.cluster").exists():
        return "fdb.cluster"
    return (
        "/usr/local/etc/foundationdb/fdb.cluster"
        if sys.platform == "darwin"
        else "/etc/foundationdb/fdb.cluster"
    )


def check_cluster_file(path: str) -> None:
    """Raise `StoreUnreachable` unless `path` can be read and holds `description:id@host:port[,...]`.

    Comments (`#` to the end of the line) and white space are ignored; `:tls` may follow a port.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_SIZE_MAX)
    except (OSError, ValueError) as error:  # ValueError: the path contains NUL
        why = error.strerror if isinstance(error, OSError) else error
        raise StoreUnreachable(
            f"cannot read the cluster file {path}: {why}; copy it from a server of the cluster, "
            "or name another one: fdb:/path/to/fdb.cluster"
        ) from error
    if not is_connection_string(content.decode("utf-8", "replace")):
        raise StoreUnreachable(
            f"{path} is not a cluster file: expected one line description:id@host:port,host:port, as in "
            "the file fdb.cluster of the cluster's servers"
        )


def is_connection_string(content: str) -> bool:
    """Whether the content of a cluster file is a connection string.

    >>> is_connection_string("# our cluster\\ntest:Xq3@10.0.0.1:4500,10.0.0.2:4500:tls\\n")
    True
    >>> is_connection_string("10.0.0.1:4500")
    False
    """
    without_comments = re.sub(r"#.*", "", content)
    return _CONNECTION.fullmatch("".join(without_comments.split())) is not None


def uses_tls(path: str) -> bool:
    """Whether a cluster file names servers that take only connections with TLS."""
    return re.search(r":[0-9]+:tls", Path(path).read_text("utf-8", "replace")) is not None
