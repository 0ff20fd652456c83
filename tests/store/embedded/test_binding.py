"""The embedded store and the official binding, class by class: a page of the docs lists all that is absent here."""

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
from cq.store.embedded.binding.future import FutureInt64, FutureKeyArray, FutureVoid, Key, Value, ready
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
