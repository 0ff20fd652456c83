"""Commands that are run in the process of a test."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

import pytest

from cq.cli.main import main

KEYS: Final = {"words": "a", "tags": "x", "pairs": '["p", 1]', "watched": "w"}
"""{queue of `stores.make`: one of its keys, as a command gets it}."""


def run(*args: str) -> tuple[int, str]:
    """A command in this process: its exit status, and all that it has printed."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = ["cq", *args]
    try:
        with redirect_stdout(out), redirect_stderr(out), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = argv
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue()


def shown(name: str) -> list[list[str]]:
    """Commands that show what is stored of a queue."""
    return [
        ["status"], ["status", "--json"], ["health"], ["link", "list"], ["link", "list", "--json"],
        ["link", "aside", name], ["doctor"], ["items", name], ["items", name, "--json"], ["get", name, KEYS[name]],
        ["get", name, KEYS[name], "--pending"], ["aside", "list", name], ["aside", "list", name, "--json"],
        ["aside", "show", name], ["top", name], ["cloud", name], ["cloud", name, "--json"],
        ["cloud", name, "--html", "-"],
    ]  # fmt: skip
