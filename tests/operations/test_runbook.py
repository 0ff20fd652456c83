"""The runbook has a section for each alert, and explains each warning and check of the commands for operators."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from cq.observers.monitoring import findings, health_check
from cq.observers.monitoring.doctor_cluster import ClusterStore
from cq.observers.monitoring.doctor_embedded import EmbeddedStore
from cq.store.space import Space

FILES = Path(__file__).parents[2] / "docs" / "operate"
PAGE = (FILES / "problems.md").read_text()
PARTS = {part.split("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
WRAPPERS = {"queue ...: ...", "worker ... ...", " on ...", "buckets"}
"""Texts in the code that are no message by themselves: they stand around messages, or are names."""
SOURCES = {"Warnings of cq status": (findings, "remarks"), "Problems of cq health": (health_check, "health")}
"""{part of the page: the module and the function that makes the messages, by itself and by others of the module}."""


def functions(module: ModuleType, start: str) -> list[ast.FunctionDef]:
    """A function of a module, and the functions of the module that it uses, directly or not."""
    tree = ast.parse(inspect.getsource(module))
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = [start]
    for name in found:
        used = [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
        found += [each for each in dict.fromkeys(used) if each in defined and each not in found]
    return [defined[name] for name in found]


def templates(function: ast.FunctionDef) -> Iterator[str]:
    """The messages in a function, with dots for the data that it fills in, without its docstring and keys of dicts."""
    within = {
        inner
        for node in ast.walk(function)
        if isinstance(node, ast.JoinedStr | ast.Subscript)
        for inner in ast.walk(node)
        if inner is not node
    }
    if ast.get_docstring(function):
        within |= set(ast.walk(function.body[0]))
    for node in ast.walk(function):
        if node in within:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
            yield "".join(map(str, parts)).strip("`")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
            yield node.value.strip("`")


def messages(part: str) -> set[str]:
    """The messages that a part of the page is about."""
    return {text for each in functions(*SOURCES[part]) for text in templates(each)} - WRAPPERS


def quoted(part: str) -> set[str]:
    """The texts in backquotes in a part of the page."""
    return {" ".join(text.split()) for text in re.findall(r"`([^`]+)`", PARTS[part])}


@pytest.mark.parametrize(
    ("part", "message"), [(part, message) for part in SOURCES for message in sorted(messages(part))]
)
def test_each_warning_is_explained(part: str, message: str) -> None:
    """The page may quote the whole line, with the name of the queue before the message."""
    assert any(message in text for text in quoted(part))


@pytest.mark.parametrize("part", SOURCES)
def test_the_runbook_quotes_no_warning_that_the_code_has_lost(part: str) -> None:
    said = messages(part)

    assert len(said) > 7
    assert (
        sorted(text for text in quoted(part) if "..." in text if not any(each in text for each in said)) == []
    )


def test_each_alert_has_a_section_with_its_meaning_a_check_and_steps_and_no_other_section_is_there() -> None:
    groups = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    sections = {part.split("\n")[0]: part for part in PARTS["Alerts"].split("\n### ")[1:]}

    assert list(sections) == [rule["alert"] for group in groups for rule in group["rules"]]
    for name, text in sections.items():
        assert re.findall(r"^\*\*(\w+)\*\*", text, flags=re.MULTILINE) == ["Means", "Confirm", "Do"], name


def test_each_check_of_the_doctor_is_in_the_table() -> None:
    queue = "QUEUE"
    of_stores = [
        name.removesuffix(f" {queue}")
        for store in (ClusterStore("x"), EmbeddedStore("x"))
        for checks in (store.before(), store.after(), store.of_queue(queue, Space()))
        for name in checks
    ]
    of_all = [
        "python",
        "cq",
        "store",
        "queue",
        "workers",
        "worker",
        "feed",
        "link",
        "outbox of",
        "outbox table in",
    ]
    table = PARTS["Checks of cq doctor"]
    listed = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in cell.strip("`").split("`, `")
    ]

    assert sorted(listed) == sorted({*of_stores, *of_all})
