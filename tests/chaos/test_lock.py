"""A cluster whose database is locked and unlocked."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.errors import StoreUnreachable
from tests.chaos.cluster import Cluster

SERVER = os.environ.get("CQ_TEST_FDBSERVER")


def unlock(db: Any) -> None:
    """What `unlock` of `fdbcli` does, without its question."""
    tr = db.create_transaction()
    tr.options.set_lock_aware()
    tr.options.set_access_system_keys()
    del tr[b"\xff/dbLocked"]
    tr.commit().wait()


def test_a_transaction_of_a_locked_cluster_goes_on_when_it_is_unlocked(tmp_path: Path) -> None:
    """The client never answers a read of the metadata version that began while the cluster was locked."""
    if SERVER is None:
        pytest.skip("no server to start: CQ_TEST_FDBSERVER is not set")
    cluster = Cluster(Path(SERVER), tmp_path, processes=1)
    try:
        cluster.start()
        db = cq.open(cluster.url)
        words = cq.configure(db, "words")
        cluster.lock()
        with pytest.raises(StoreUnreachable, match="is locked"):
            cq.open(cluster.url)
        begun, added = threading.Event(), threading.Event()

        def add(tr: cq.Transaction) -> None:
            begun.set()
            words.add(tr, {"fox": 1})

        def run() -> None:
            cq.transact(db, add)
            added.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert begun.wait(10)
        unlock(db)
        assert added.wait(10), "it has a timeout of 30 s"
        thread.join()
    finally:
        cluster.close()
