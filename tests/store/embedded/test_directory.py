"""FoundationDB's directory layer, of the installed binding, on the embedded store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.processes import run_code

RUN = """
import sys, threading, unittest.mock
import cq
from cq.store.embedded import Database
from cq.store.space import Space

# Without the native library: only `transactional` leads to it, and cq's own takes transactions of both stores.
with unittest.mock.patch("ctypes.CDLL", unittest.mock.MagicMock()):
    from fdb import impl
impl.transactional = cq.transactional
from fdb.directory_impl import DirectoryLayer

layer = DirectoryLayer()
with Database(sys.argv[1], power_safe=False) as whole:
    db = Space(sys.argv[2]).database(whole)

    @db.transact
    def shop(tr):
        shop = layer.create_or_open(tr, ("shop",), b"app")
        assert layer.create(tr, ("shop", "orders")).key() != shop.key()
        tr[shop["a"]] = b"1"
        assert layer.exists(tr, "shop") and layer.list(tr, ("shop",)) == ["orders"]
        return shop

    assert layer.open(db, "shop", b"app").key() == shop.key()
    assert db[shop["a"]] == b"1"

    # More than a window of the allocator, and of several threads at once.
    found = []
    def allocate(name):
        for number in range(30):
            path = ("shop", name, f"{number}")
            found.append(layer.create_or_open(db, path).key())
    threads = [threading.Thread(target=allocate, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 120, len(set(found))

    part = layer.create(db, "part", b"partition")
    inner = part.create(db, "inner")
    assert inner.key().startswith(part._directory_layer._content_subspace.key())
    assert layer.move(db, ("shop",), ("market",)).key() == shop.key()
    assert not layer.exists(db, "shop")
    assert sorted(layer.list(db)) == ["market", "part"]
    layer.remove(db, "market")
    layer.remove(db, "part")
    assert layer.list(db) == [] and db[shop["a"]] is None
print("done")
"""


@pytest.mark.parametrize("prefix", ["cq", "staging"])
def test_the_directory_layer_runs_on_the_embedded_store(path: Path, prefix: str) -> None:
    """In a process of its own, whose binding has no native library: others may have loaded it."""
    assert run_code(RUN, path, prefix) == (0, "done\n", "")
