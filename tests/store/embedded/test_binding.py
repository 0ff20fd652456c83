"""The embedded store and the official binding, class by class; and the binding's directory layer on the store.

A page of the docs lists all that is absent here.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cq.store.embedded import Database, FDBError, KeySelector, KeyValue
from cq.store.embedded.future import FutureInt64, FutureKeyArray, FutureVoid, Key, Value, ready
from tests.kit.processes import run_code

PAGE = Path(__file__).parents[3] / "docs" / "understand" / "embedded.md"
NATIVE = {"capi"}  # the native library's functions

READ = """
import ctypes, inspect, json, unittest.mock

def parameters(owner, name):
    member = inspect.getattr_static(owner, name)
    member = getattr(member, "__func__", member)  # of a class method or a static one
    try:
        return list(inspect.signature(member).parameters)
    except (TypeError, ValueError):
        return None  # not a function, or one of bytes

# Without the native library, to which nothing here leads.
with unittest.mock.patch("ctypes.CDLL", unittest.mock.MagicMock()):
    from fdb import impl
classes = {name: each for name, each in vars(impl).items() if inspect.isclass(each)}
print(json.dumps({
    name: {member: parameters(each, member) for member in dir(each) if member != "__class__"}
    for name, each in classes.items()
    if each.__module__ == "fdb.impl" and not issubclass(each, ctypes.Structure)
}))
"""

OURS: dict[str, Callable[[Database], object]] = {
    "Database": lambda db: db,
    "Transaction": lambda db: db.create_transaction(),
    "TransactionRead": lambda db: db.create_transaction().snapshot,
    "_DatabaseOptions": lambda db: db.options,
    "_TransactionOptions": lambda db: db.create_transaction().options,
    "FDBRange": lambda db: db.create_transaction().get_range(b"", b"\xff"),
    "KeySelector": lambda db: KeySelector(b"a", False, 1),
    "KeyValue": lambda db: KeyValue(b"a", b"1"),
    "FDBError": lambda db: FDBError(1020),
    "FutureVoid": lambda db: ready(FutureVoid, None),
    "FutureInt64": lambda db: ready(FutureInt64, 1),
    "FutureKeyArray": lambda db: ready(FutureKeyArray, [b"a"]),
    "Value": lambda db: ready(Value, b"1"),
    "Key": lambda db: ready(Key, b"a"),
}
PARTS = {
    # Of classes above, or of their implementation.
    "Future", "FutureString", "LazyFuture", "replaceable_property", "KVIter", "_FDBBase", "_TransactionCreator",
}  # fmt: skip


@cache
def binding() -> dict[str, dict[str, list[str] | None]]:
    """The members of each class of the binding, with the names of their parameters."""
    found: dict[str, dict[str, list[str] | None]] = json.loads(run_code(READ).out)
    return found


def members(name: str) -> dict[str, list[str] | None]:
    """What a user of a class of the binding can use."""
    return {
        member: parameters
        for member, parameters in binding()[name].items()
        if not (
            member in NATIVE
            or hasattr(object, member)
            or re.match("_(?!_)|__(module|dict|weakref|del)__", member)
        )
    }


def listed() -> dict[str, set[str]]:
    """The absent members of each class, as the page has them."""
    _, _, section = PAGE.read_text().partition("## Where the embedded store differs")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", absent)) for name, absent in rows}


@pytest.mark.parametrize("name", OURS)
def test_the_page_lists_all_that_is_absent(db: Database, name: str) -> None:
    ours = OURS[name](db)

    absent = {member for member in members(name) if not hasattr(ours, member)}

    assert absent == listed().get(name, set())


def test_the_page_lists_the_classes_that_are_absent() -> None:
    (names,) = re.findall(r"The embedded store has no (.*?)\. Of", PAGE.read_text(), re.DOTALL)

    assert set(re.findall(r"`(\w+)`", names)) == binding().keys() - OURS.keys() - PARTS
    assert listed().keys() <= OURS.keys()


@pytest.mark.parametrize("name", OURS)
def test_parameters_have_the_names_of_the_binding(db: Database, name: str) -> None:
    """So that calls with keyword arguments work on both; the embedded store may take more."""
    for member, parameters in members(name).items():
        ours: Any = getattr(OURS[name](db), member, None)
        if (
            member.startswith(("__", "set_"))
            or hasattr(bytes, member)
            or not callable(ours)
            or not parameters
        ):
            continue
        taken = list(inspect.signature(ours).parameters)
        expected = parameters[1:] if parameters[0] in ("self", "cls") else parameters
        assert taken[: len(expected)] == expected, f"{name}.{member}"


RUN_LAYER = """
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
    assert run_code(RUN_LAYER, path, prefix) == (0, "done\n", "")
