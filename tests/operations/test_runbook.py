"""The runbook has a section for each alert, and explains each warning and check of the commands for operators."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cq.observers.monitoring import health_check, store_overview
from cq.observers.monitoring.doctor_cluster import ClusterStore
from cq.observers.monitoring.doctor_embedded import EmbeddedStore
from cq.store.space import Space

FILES = Path(__file__).parents[2] / "docs" / "operations"
PAGE = (FILES / "runbook.md").read_text()
PARTS = {part.split("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
QUOTED = {" ".join(text.split()) for text in re.findall(r"`([^`]+)`", PAGE)}
WRAPPERS = {"queue ...: ...", "worker ... ...", " on ...", "buckets"}
"""Texts in the code that are no message by themselves: they stand around messages, or are names."""
MESSAGES: dict[str, list[Any]] = {
    "Warnings of cq status": [
        store_overview.remarks,
        store_overview._of_queue,
        store_overview._about_buckets,
        store_overview._of_worker,
    ],
    "Problems of cq health": [
        health_check.health,
        health_check._workers,
        health_check._too_old,
        health_check._read,
    ],
}


def templates(function: Any) -> Iterator[str]:
    """The texts in a function, with dots for what it fills in, without its docstring and names of settings."""
    tree = ast.parse(inspect.getsource(function))
    within = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Subscript)
        for inner in ast.walk(node)
        if inner is not node
    }
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    if ast.get_docstring(definition):
        within.add(definition.body[0].value)  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if node in within:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
            yield node.value


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (part, message)
        for part, functions in MESSAGES.items()
        for function in functions
        for message in templates(function)
        if message not in WRAPPERS
    ],
)
def test_each_warning_is_explained(part: str, message: str) -> None:
    quoted = {" ".join(text.split()) for text in re.findall(r"`([^`]+)`", PARTS[part])}

    assert message.strip("`") in quoted or message.strip("`") in QUOTED


def test_the_runbook_quotes_no_warning_that_the_code_has_lost() -> None:
    for part, functions in MESSAGES.items():
        said = {text.strip("`") for function in functions for text in templates(function)}
        quoted = {" ".join(text.split()) for text in re.findall(r"`([^`]+)`", PARTS[part])}
        assert sorted({text for text in quoted if "..." in text} - said) == []


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
    of_all = ["python", "cq", "store", "queue", "export of", "forward of", "outbox of"]
    table = PARTS["Checks of cq doctor"]
    listed = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in cell.strip("`").split("`, `")
    ]

    assert sorted(listed) == sorted({*of_stores, *of_all})
