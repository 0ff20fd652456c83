"""Opening clusters: each thing that can be wrong gives one line that says what to do.

Machines without the native library, or with one of another version, are simulated by a stand-in for the
binding, so that these tests say the same everywhere. Tests marked `cluster` use a real one.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cq.errors import ClientLibraryError, StoreError, StoreUnreachable
from cq.store import foundationdb
from cq.store.api import error_code
from cq.store.foundationdb import (
    FORKED,
    WATCH_KNOB,
    check_cluster_file,
    client_version,
    default_cluster_file,
    is_connection_string,
    open_cluster,
)
from tests.kit.processes import run_program
from tests.store.binding import Binding, FDBError, Future, StandIn


@pytest.fixture
def cluster_file(tmp_path: Path) -> str:
    """A well-formed file of a cluster that is not there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = tmp_path / "fdb.cluster"
    file.write_text(f"# nobody listens\ntest:abc@127.0.0.1:{port}\n")
    return str(file)


Install = Callable[[ModuleType | None], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make `import fdb` find this module, or none."""
    return lambda module: monkeypatch.setitem(sys.modules, "fdb", module)


def refusal(error: type[StoreError], cluster_file: str) -> str:
    with pytest.raises(error) as caught:
        open_cluster(cluster_file)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_opened_cluster_has_timeouts_and_transact(install: Install, cluster_file: str) -> None:
    binding = Binding()
    install(binding)

    db = open_cluster(cluster_file, answer_within=2)

    assert binding.selected == 730
    assert db is binding.db
    assert db.log == ["every transaction 30000 ms", "this transaction 2000 ms", "read version"]
    assert db.transact(lambda tr: tr.log.pop()) == "read version"
    assert db.log[-1] == "commit"


def test_a_database_that_the_application_has_open_keeps_its_own_options(
    install: Install, cluster_file: str
) -> None:
    binding = Binding()
    mine = StandIn()
    binding.open = lambda path: mine  # type: ignore[method-assign]
    install(binding)

    open_cluster(cluster_file)

    assert mine.log == []


@pytest.mark.parametrize(
    ("latest", "selected"), [(None, 710), (710, 710), (720, 720), (730, 730), (800, 730)]
)
def test_the_newest_api_version_up_to_730_is_selected(
    install: Install, cluster_file: str, latest: int | None, selected: int
) -> None:
    binding = Binding(latest)
    install(binding)

    open_cluster(cluster_file)

    assert binding.selected == selected
    assert binding.knobs == [WATCH_KNOB]


def test_a_client_without_the_knob_for_watches_works(install: Install, cluster_file: str) -> None:
    binding = Binding()
    binding.lacks_knobs = True
    install(binding)

    assert open_cluster(cluster_file) is binding.db


def test_a_wait_that_the_binding_has_replaced_for_an_event_loop_stays(
    install: Install, cluster_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_in_loop(self: Future) -> None:
        raise NotImplementedError

    monkeypatch.setattr(Future, "block_until_ready", wait_in_loop)
    install(Binding())

    open_cluster(cluster_file)

    assert Future.block_until_ready is wait_in_loop


@pytest.mark.parametrize("selected", [710, 730, 800])
def test_an_api_version_that_the_application_selected_stays(
    install: Install, cluster_file: str, selected: int
) -> None:
    binding = Binding(800, selected)
    install(binding)

    open_cluster(cluster_file)

    assert binding.selected == selected
    assert binding.knobs == []


TOO_NEW = (
    "This version of the FoundationDB Python binding is not supported by the installed FoundationDB C library. The "
    "binding requires a library that supports API version 800, but the installed library supports a maximum version "
    "of 730."
)


@pytest.mark.parametrize(
    ("binding", "messages"),
    [
        (None, ["run `pip install 'combine-queue[fdb]'`"]),
        (ModuleType("fdb"), ["run `pip uninstall fdb`, then `pip install"]),  # another project of this name
        (Binding(630), ["offers API version 630, and cq needs 710"]),
        (Binding(730, 620), ["selected FoundationDB's API version 620, and cq needs 710 or newer"]),
        (
            Binding(refusal=Exception("Unable to locate the FoundationDB API shared library!")),
            ["install the package `foundationdb-clients` of your cluster's version", "Unable to locate the"],
        ),
        (
            Binding(refusal=OSError("libfdb_c.so: invalid ELF header\nand more")),
            ["install the package `foundationdb-clients` of", "libfdb_c.so: invalid ELF header"],
        ),
        (
            Binding(800, refusal=RuntimeError(TOO_NEW)),
            [
                "binding is newer than the installed client library, which is of version 7.3",
                "run `pip install 'foundationdb==7.3.*'`",
            ],
        ),
        (
            Binding(refusal=RuntimeError("FoundationDB API error")),
            ["is not compatible with its Python binding", "FoundationDB API error"],
        ),
    ],
)
def test_a_binding_or_a_library_that_cannot_be_used_is_named(
    install: Install, cluster_file: str, binding: ModuleType | None, messages: list[str]
) -> None:
    install(binding)

    found = refusal(ClientLibraryError, cluster_file)

    assert [each for each in messages if each not in found] == []


def test_the_client_library_tells_its_version(install: Install) -> None:
    binding = Binding()
    binding._capi = SimpleNamespace(fdb_get_client_version=lambda: b"7.3.43,c0ffee,fdb00b073000000")
    install(binding)

    assert client_version() == "7.3.43"


def test_a_cluster_that_does_not_answer_is_unreachable(install: Install, cluster_file: str) -> None:
    binding = Binding()
    binding.db = StandIn(FDBError(1031))
    install(binding)

    message = refusal(StoreUnreachable, cluster_file)

    assert f"no answer from the cluster in {cluster_file} within 10 s: is it running" in message


def test_a_cluster_that_answers_with_an_error_is_quoted(install: Install, cluster_file: str) -> None:
    binding = Binding()
    binding.db = StandIn(FDBError(2104))
    install(binding)

    assert f"the cluster in {cluster_file} cannot be used: Described (2104)" == refusal(
        StoreUnreachable, cluster_file
    )


def test_a_locked_cluster_is_named(install: Install, cluster_file: str) -> None:
    binding = Binding()
    binding.db = StandIn(FDBError(1038))
    install(binding)

    assert f"the cluster in {cluster_file} is locked" in refusal(StoreUnreachable, cluster_file)


def test_on_this_machine_opening_a_cluster_that_is_not_there_fails_in_time(cluster_file: str) -> None:
    """With the binding and library that are installed here, whichever they are."""
    with pytest.raises((ClientLibraryError, StoreUnreachable)) as caught:
        open_cluster(cluster_file, answer_within=0.5)

    assert "\n" not in str(caught.value)


def test_a_cluster_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match=r"cannot read the cluster file .*no.cluster: No such file"):
        open_cluster(str(tmp_path / "no.cluster"))
    with pytest.raises(StoreUnreachable, match=r"cannot read the cluster file .*: Is a directory"):
        open_cluster(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"\x00\xff" * 10, b"SQLite format 3\x00"])
def test_what_is_no_cluster_file_is_refused_before_the_client_sees_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_bytes(content)

    with pytest.raises(
        StoreUnreachable, match=r"fdb.cluster is not a cluster file: expected .*:id@host:port"
    ):
        check_cluster_file(str(file))


@pytest.mark.parametrize(
    "content",
    [
        "docker:docker@127.0.0.1:4500",
        "a_1:Xy9@10.0.0.1:4500,10.0.0.2:4500:tls\n",
        "test:x@[::1]:4500:tls",
        "test:x@fdb-0.fdb.svc.cluster.local:4501",
        "# DO NOT EDIT!\n\n  test:x@10.0.0.1:4500 , 10.0.0.2:4500  # two\n",
    ],
)
def test_connection_strings(content: str) -> None:
    assert is_connection_string(content)


@pytest.mark.parametrize(
    "content",
    [
        "10.0.0.1:4500",
        "test@10.0.0.1:4500",
        "test:x@10.0.0.1",
        "test:x@10.0.0.1:4500,",
        "te-st:x@10.0.0.1:4500",
        "test:x@10.0.0.1:4500:ssl",
        "test:x@10.0.0.1:4500\ntest:y@10.0.0.2:4500",
    ],
)
def test_no_connection_strings(content: str) -> None:
    assert not is_connection_string(content)


def test_the_default_cluster_file_is_found_as_foundationdb_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FDB_CLUSTER_FILE", raising=False)

    assert default_cluster_file().endswith("/etc/foundationdb/fdb.cluster")

    (tmp_path / "fdb.cluster").touch()
    assert default_cluster_file() == "fdb.cluster"

    monkeypatch.setenv("FDB_CLUSTER_FILE", "elsewhere")
    assert default_cluster_file() == "elsewhere"


@pytest.mark.cluster
def test_a_real_cluster_opens_and_commits() -> None:
    key = b"cq-test/open"

    def increment(tr: Any) -> None:
        tr.add(key, (1).to_bytes(8, "little"))

    db = open_cluster(os.environ["CQ_TEST_CLUSTER_FILE"])
    db.transact(lambda tr: tr.clear(key))
    db.transact(increment)

    assert db.transact(lambda tr: bytes(tr.get(key))) == (1).to_bytes(8, "little")
    db.transact(lambda tr: tr.clear(key))


@pytest.mark.cluster
@pytest.mark.parametrize("is_main", [True, False])
def test_waits_in_all_threads_except_the_main_one_use_no_callback(
    monkeypatch: pytest.MonkeyPatch, is_main: bool
) -> None:
    db = open_cluster(os.environ["CQ_TEST_CLUSTER_FILE"])
    open_cluster(os.environ["CQ_TEST_CLUSTER_FILE"])  # replaces the wait once, not once for each database
    future = sys.modules["fdb"].impl.Future
    on_ready, callbacks = future.on_ready, []

    def noted(self: Any, callback: Any) -> None:
        callbacks.append(callback)
        on_ready(self, callback)

    monkeypatch.setattr(future, "on_ready", noted)

    def commit() -> None:
        tr = db.create_transaction()
        tr.set(b"cq-test/waits", b"")
        tr.commit().wait()  # never ready at once

    if is_main:
        commit()
    else:
        thread = threading.Thread(target=commit)
        thread.start()
        thread.join()

    assert len(callbacks) == is_main
    db.transact(lambda tr: tr.clear(b"cq-test/waits"))


@pytest.mark.cluster
def test_reads_and_writes_that_do_not_wait_let_no_other_thread_run() -> None:
    db = open_cluster(os.environ["CQ_TEST_CLUSTER_FILE"])
    turns, stopped = [0], threading.Event()
    tr = db.create_transaction()
    before = sys.getswitchinterval()

    def count_turns() -> None:
        while not stopped.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count_turns)
    sys.setswitchinterval(
        0.5
    )  # only a call that releases the interpreter lock lets the other thread run earlier
    try:
        thread.start()
        begun = turns[0]
        for number in range(100):
            tr.set(b"cq-test/lock/%d" % number, b"")
            tr.snapshot.get(b"cq-test/lock").is_ready()
        ended = turns[0]
    finally:
        stopped.set()
        sys.setswitchinterval(before)
        thread.join()

    assert 0 < begun == ended


@pytest.mark.cluster
def test_a_cancelled_future_ends_the_wait_of_another_thread() -> None:
    db = open_cluster(os.environ["CQ_TEST_CLUSTER_FILE"])
    watch = db.transact(lambda tr: tr.watch(b"cq-test/cancelled"))
    codes = []

    def wait() -> None:
        try:
            watch.wait()
        except Exception as error:  # noqa: BLE001 - the error is compared
            codes.append(error_code(error))

    thread = threading.Thread(target=wait)
    thread.start()
    watch.cancel()
    thread.join(60)

    assert codes == [1101]  # operation_cancelled


@pytest.mark.cluster
def test_a_watch_outlives_the_timeout_of_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundationdb, "TRANSACTION_TIMEOUT", 0.5)
    key = b"cq-test/watch"
    db = open_cluster(os.environ["CQ_TEST_CLUSTER_FILE"])
    db.transact(lambda tr: tr.clear(key))
    tr = db.create_transaction()
    watch = tr.watch(key)
    tr.commit().wait()

    time.sleep(1)  # twice the timeout of `tr`, which is still there

    assert not watch.is_ready()
    db.transact(lambda tr: tr.set(key, b"changed"))
    watch.wait()
    db.transact(lambda tr: tr.clear(key))


_FORKING = """
import os, sys, threading, cq
db = cq.open("fdb:" + os.environ["CQ_TEST_CLUSTER_FILE"])

def refused(function, *args):
    try:
        function(*args)
    except cq.StoreError as error:
        print(error, flush=True)

def use():
    refused(db.get, b"a")
    refused(cq.open, "fdb:" + os.environ["CQ_TEST_CLUSTER_FILE"])

if os.fork() == 0:
    use()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.cluster
def test_a_forked_child_of_a_process_with_an_open_cluster_does_not_hang() -> None:
    found = run_program(sys.executable, "-W", "ignore", "-c", _FORKING)
    assert found.status == 7, found.err
    assert found.out.splitlines() == [FORKED] * 4
