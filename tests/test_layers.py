"""Layers are built of public names, so that others can build such layers, too."""

from __future__ import annotations

import ast
from importlib import import_module
from typing import Any

import pytest

import cq
import cq.layers
from tests.test_structure import ROOT, modules, name

PUBLIC = ("cq", "cq.store", "cq.layers")
KEYS = {"cells": "cq.keys.cell", "feeds": "cq.keys.feed"}
"""The keys of each layer, which no other one uses."""


def is_public(imported: Any) -> bool:
    """Whether an object is one that a public package exports, from whichever module it is imported."""
    packages = [vars(import_module(package)) for package in PUBLIC]
    return any(found.get(each) is imported for found in packages for each in found["__all__"])


def imports(source: str) -> set[tuple[str, str]]:
    """(module, name) of each name of cq that a program imports."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {
        (node.module or "", each.name)
        for node in nodes
        if (node.module or "").split(".")[0] == "cq"
        for each in node.names
    }


@pytest.mark.parametrize("layer", sorted(KEYS))
def test_a_layer_uses_only_public_names_and_its_own_keys(layer: str) -> None:
    allowed = (
        f"cq.{layer}.",
        KEYS[layer],
        "cq.errors.",
        "cq.type_variables.",
        "cq.encoding.codec",
    )
    files = modules(f"cq/{layer}")
    assert len(files) > 3
    wrong = {
        (name(file), module, each)
        for file in files
        for module, each in imports(file.read_text())
        if not f"{module}.{each}".startswith(allowed)
        if f"{module}.{each}" not in PUBLIC
        if not is_public(getattr(import_module(module), each))
    }

    assert wrong == set()


def test_no_layer_imports_another_and_none_is_imported_below() -> None:
    wrong = {
        (name(file), module)
        for layer in KEYS
        for file in modules(f"cq/{layer}")
        for module, _ in imports(file.read_text())
        if module.startswith(tuple(f"cq.{other}" for other in KEYS if other != layer))
    }

    assert wrong == set()


def test_the_test_finds_internal_names() -> None:
    assert is_public(cq.transact)
    assert not is_public(import_module("cq.queue.packing").pack)


def test_what_layers_get_is_used() -> None:
    """A name that no layer needs is not for layers."""
    used = {
        each for layer in KEYS for file in modules(f"cq/{layer}") for _, each in imports(file.read_text())
    }

    assert set(cq.layers.__all__) - used == set()
    assert (ROOT / "docs/api/layers.md").exists()
