"""Opening FoundationDB clusters with the official binding, which is imported only when a cluster is opened.

Errors before the first transaction are reported in one line: no binding, no client library, incompatible versions of
the two, an invalid cluster file, a cluster that does not answer. The native client does not report an invalid file
until a transaction fails, and then without the reason, so cq checks the file before the client opens it.

Opening a database starts the client's network thread, which runs until the process ends. The client does not work
after a fork: open the database after forking, or use the start method `spawn`. In a forked child the thread is missing,
so nothing would end a wait, and no timeout either: there each wait raises `StoreError`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from cq import runtime
from cq.distribution import install_command
from cq.errors import ClientLibraryError, StoreError, StoreUnreachable
from cq.plain_text import message_of
from cq.store.api import error_code
from cq.store.transact import transact

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


API_VERSION = 730
API_VERSION_LEAST = 710

TRANSACTION_TIMEOUT = 30.0
"""Seconds after which a transaction of an opened cluster fails with 1031 (`transaction_timed_out`).

The time counts from the creation or `reset()` of the transaction, including retries and their delays, and covers all
waiting up to the end of the commit: reads, `on_error` and the commit itself. A watch has no limit after its transaction
has committed. 1031 is not retried, and a commit that fails with it may have committed. `tr.options.set_timeout(ms)`
sets another limit for one transaction; 0 means no limit.
"""

WATCH_KNOB = "future_version_retry_delay=0.001"
"""The client library's pause, in seconds, before it asks again whether the change that fired a watch is committed.

A storage server often fires a watch before the commit is complete. With the library's own pause of 10 ms, an update of
an idle queue is combined after 15 ms (median) instead of 5 ms: a worker waits for the update's watch, and a reader for
the value's. It is set only if cq is the first to use the binding: an application that starts it keeps its settings.
"""

ANSWER_WITHIN = 10.0
"""Seconds within which a cluster must return a read version when it is opened."""

TLS_VARIABLES = ("FDB_TLS_CERTIFICATE_FILE", "FDB_TLS_KEY_FILE", "FDB_TLS_CA_FILE")
"""Environment variables of the client library; the binding has network options of the same names."""

INSTALL_BINDING = install_command("fdb")
SHORT_CALLS = (
    "transaction_set",
    "transaction_clear",
    "transaction_clear_range",
    "transaction_atomic_op",
    "transaction_get",
    "transaction_get_range",
    "transaction_get_read_version",
    "transaction_commit",
    "transaction_add_conflict_range",
    "transaction_set_option",
    "transaction_set_read_version",
    "transaction_get_committed_version",
    "transaction_destroy",
    "future_is_ready",
    "future_get_error",
    "future_get_int64",
    "future_get_value",
    "future_get_keyvalue_array",
    "future_release_memory",
    "future_destroy",
)
"""Functions of the client library that never wait: they copy memory, or leave a step to its network thread."""

FORKED = (
    "a cluster was open when this process was forked, and the client gets no answers here: start processes with spawn, "
    "or open the cluster only after the fork"
)

_TIMED_OUT = 1031
_LOCKED = 1038
_BINDINGS_WAIT = "Future.block_until_ready"

# The binding's api_version() is not thread-safe.
_selecting = threading.Lock()


def open_cluster(cluster_file: str | None = None, *, answer_within: float = ANSWER_WITHIN) -> Any:
    """Open the cluster of `cluster_file`, or of the default one, as an `fdb.Database`.

    The database belongs to cq: its transaction timeout does not apply to the database that `fdb.open` returns to the
    application for the same cluster. It has the method `transact` in addition to the binding's methods.

    Raises `StoreUnreachable` if the cluster file cannot be used or the cluster does not answer within `answer_within`
    seconds, `ClientLibraryError` if the binding or the client library is missing or incompatible, and `StoreError` in
    a process that was forked when its parent had opened a cluster.
    """
    path = default_cluster_file() if cluster_file is None else cluster_file
    check_cluster_file(path)
    fdb = _binding()
    replace_wait()
    keep_lock_in_short_calls()
    try:
        fdb.open(path)  # starts the network; the binding keeps this database for the application
        db = fdb.impl.create_database(path)
        db.options.set_transaction_timeout(int(TRANSACTION_TIMEOUT * 1000))
        tr = db.create_transaction()
        tr.options.set_timeout(max(1, int(answer_within * 1000)))
        tr.get_read_version().wait()  # a cheap request that only a working cluster answers
    except Exception as error:
        code = error_code(error)
        if code is None:
            raise
        raise StoreUnreachable(_unreachable(path, error, code, answer_within)) from error
    db.transact = functools.partial(transact, db)
    return db


def replace_wait() -> None:
    """Replace the binding's waits for futures: tasks of event loops are suspended, threads wait in the client library.

    All waits of the binding go through one method, so no wait can block an event loop: neither of ranges nor of values
    that are used like bytes. A wait that the binding itself has replaced, for gevent or to debug, stays.

    The main thread waits as the binding does, by a callback and a semaphore, so that it still handles signals. For each
    such wait, the client's network thread must acquire the interpreter lock to run the callback, and no request or
    reply of the process advances meanwhile. If all threads waited so, a process with 8 threads would add 5 updates per
    transaction at 0.65 to 0.85 of the rate, and each add would take 1.2 to 1.6 times the processor time.
    """
    future = _binding().impl.Future
    wait_by_callback = future.block_until_ready
    if wait_by_callback.__qualname__ != _BINDINGS_WAIT:  # replaced by this function, or by the binding
        return

    def block_until_ready(self: Any) -> None:
        if runtime.suspend(self):
            return
        if threading.current_thread() is threading.main_thread():
            wait_by_callback(self)
        elif not self.is_ready():
            self.capi.fdb_future_block_until_ready(self.fpointer)

    future.block_until_ready = block_until_ready


def _refuse_wait(_: Any) -> None:
    raise StoreError(FORKED)


def _after_fork() -> None:
    """In a forked child: if the parent used the client, let no future wait for an answer."""
    impl: Any = sys.modules.get("fdb.impl")
    if getattr(impl, "_network_thread", None) is not None:
        impl.Future.block_until_ready = _refuse_wait


os.register_at_fork(after_in_child=_after_fork)


def keep_lock_in_short_calls() -> None:
    """Make those calls of the client library that take about a microsecond keep the interpreter lock.

    The binding releases the lock in every call, so each key that is read or written may let another thread run, for up
    to 5 ms. This costs a worker with several passes at once, and a process with several threads that add, about a
    quarter of their rate.

    No such call waits for the client's network thread, which needs the lock for the binding's callbacks: that thread
    holds none of the client's own locks while a callback runs.
    """
    calls = _binding().impl._capi
    if not isinstance(calls, ctypes.CDLL):  # not loaded as by the present bindings
        return
    library = ctypes.PyDLL(calls._name, handle=calls._handle)
    for name in SHORT_CALLS:
        released = getattr(calls, f"fdb_{name}")
        kept = getattr(library, f"fdb_{name}")
        kept.argtypes, kept.restype = released.argtypes, released.restype
        if (check := getattr(released, "errcheck", None)) is not None:
            kept.errcheck = check
        setattr(calls, kept.__name__, kept)


def client_version() -> str:
    """The version of the native client library; loads it if needed. Raises `ClientLibraryError`."""
    get_version = _binding().impl._capi.fdb_get_client_version
    get_version.restype = ctypes.c_char_p
    # Followed by the source version and the protocol version.
    version, _, _ = get_version().decode().partition(",")
    return str(version)


def _unreachable(path: str, error: Exception, code: int, seconds: float) -> str:
    if code == _TIMED_OUT:
        found = f"no answer from the cluster in {path} within {seconds:g} s: "
        if uses_tls(path):
            return f"{found}it uses TLS: are {', '.join(TLS_VARIABLES)} set, and are its certificates valid?"
        return f"{found}is it running, and is the client library of the cluster's version?"
    if code == _LOCKED:
        return (
            f"the cluster in {path} is locked, as by a restore: when it may be used again, run `unlock` in `fdbcli` "
            "with the id that `lock` has printed"
        )
    return f"the cluster in {path} cannot be used: {message_of(error)}"


def _binding() -> Any:
    """The binding, with an API version selected."""
    try:
        import fdb
    except ImportError as error:
        raise ClientLibraryError(
            f"FoundationDB's Python binding is not installed: run `{INSTALL_BINDING}`"
        ) from error
    if not hasattr(fdb, "api_version"):
        raise ClientLibraryError(
            "the installed module `fdb` is another project's (Firebird's): "
            f"run `pip uninstall fdb`, then `{INSTALL_BINDING}`"
        )
    with _selecting:
        if not fdb.is_api_version_selected():
            _select_api_version(fdb)
        elif (selected := fdb.get_api_version()) < API_VERSION_LEAST:
            raise ClientLibraryError(
                f"this application selected FoundationDB's API version {selected}, and cq needs "
                f"{API_VERSION_LEAST} or newer: call `fdb.api_version({API_VERSION})`, or let cq select it"
            )
    return fdb


def _select_api_version(fdb: Any) -> None:
    # The bindings of 7.1 have no `LATEST_API_VERSION`.
    offered = getattr(fdb, "LATEST_API_VERSION", API_VERSION_LEAST)
    wanted = min(API_VERSION, offered)
    if offered < API_VERSION_LEAST:
        raise ClientLibraryError(
            f"FoundationDB's Python binding offers API version {offered}, and cq needs "
            f"{API_VERSION_LEAST} or newer: run `{INSTALL_BINDING}`"
        )
    try:
        fdb.api_version(wanted)
    except RuntimeError as error:
        raise ClientLibraryError(_version_mismatch(error)) from error
    except Exception as error:  # bare ones of the binding if it finds no library, and those of ctypes
        raise ClientLibraryError(
            "FoundationDB's client library cannot be loaded: install the package `foundationdb-clients` of "
            f"your cluster's version ({_one_line(error)})"
        ) from error
    with suppress(fdb.FDBError):  # a client without this knob works, with later watches
        fdb.options.set_knob(WATCH_KNOB)


def _version_mismatch(error: RuntimeError) -> str:
    """A message with the remedy for incompatible versions of the binding and the client library."""
    newest = re.search(r"maximum version of (\d+)", str(error))
    if newest is None:
        return (
            "FoundationDB's client library is not compatible with its Python binding: install both in your "
            f"cluster's version ({_one_line(error)})"
        )
    version = int(newest[1])
    fitting = f"{version // 100}.{version // 10 % 10}"
    return (
        "FoundationDB's Python binding is newer than the installed client library, which is of version "
        f"{fitting}: run `pip install 'foundationdb=={fitting}.*'`, or install a newer client library"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
