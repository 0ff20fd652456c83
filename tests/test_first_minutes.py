"""README's first commands, typed as they stand, on a machine that has Python and nothing else of cq."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.kit.processes import StartedProcesses, ended, run_program

COUNTED_SECONDS = 60
SHOWN_SECONDS = 90
"""Of the processor: what a machine with other work takes says nothing about cq."""
FILES = ("README.md", "LICENSE", "pyproject.toml")
FOLDERS = ("cli", "cq", "docs", "observers")
NO_NETWORK = ("Temporary failure in name resolution", "Failed to establish a new connection")


def used() -> float:
    """The processor's seconds of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_from_a_clone_to_counted_words_and_a_live_dashboard(
    tmp_path: Path, processes: StartedProcesses
) -> None:
    clone, tools = tmp_path / "clone", tmp_path / "tools"
    for path in (clone, tools):
        path.mkdir()
    for name in FILES:
        shutil.copy2(ROOT / name, clone)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=ignored)
    # The Python of the machine, and not that of a virtual environment.
    (tools / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CQ_", "PYTHON"))}
    environment = kept | {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    counting, watching, *_ = blocks(ROOT / "README.md", "sh")
    begun = used()

    counted = run_program("bash", "-c", counting, cwd=clone, env=environment)
    if any(sign in counted.err for sign in NO_NETWORK):
        pytest.skip("pip reaches no package index")

    assert counted.status == 0, counted
    assert "word   count" in counted.out
    assert used() - begun < COUNTED_SECONDS

    live = processes.launch(
        "bash", "-c", f"exec {watching}", cwd=clone, env=environment | {"DISPLAY": ""}, stderr=subprocess.PIPE
    )
    assert live.stderr is not None
    address = live.stderr.readline().decode().removeprefix("open ").partition("#")[0].strip()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    page = browser.open(address).read().decode()
    assert "demo_live_compared" in page
    live.send_signal(signal.SIGINT)
    assert "all equal" in ended(live).err
    assert used() - begun < SHOWN_SECONDS
