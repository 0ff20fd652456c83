"""README and the tutorial, typed as they stand, on a machine that has Python and nothing else of cq.

It needs an index of packages: without one, pip cannot install what cq depends on, and the test is skipped.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, file_named, steps
from tests.kit.processes import Outcome, StartedProcesses, ended, run_program

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


class Terminal:
    """A folder and the environment in which a reader types blocks of commands."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def type(self, script: str) -> Outcome:
        """What a block of commands ends with, and prints."""
        return run_program("bash", "-c", script, cwd=self.folder, env=self.environment)

    def activated(self, folder: Path) -> Terminal:
        """A terminal in a folder whose virtual environment is active."""
        path = f"{folder / '.venv/bin'}{os.pathsep}{self.environment['PATH']}"
        return Terminal(folder, self.environment | {"PATH": path})


def follow_readme(terminal: Terminal) -> None:
    """Run its program in one interpreter, with a worker beside it."""
    adding, reading = blocks(ROOT / "README.md", "python")
    (drain,) = re.findall(r"`(cq worker \w+ --drain)`", (ROOT / "README.md").read_text())
    (expected,) = re.findall(r"^count\(.*# (\d+)$", reading, flags=re.MULTILINE)
    work = f"import subprocess; subprocess.run({shlex.split(drain)!r}, check=True)\n"
    (terminal.folder / "readme.py").write_text(f"{adding}\n{work}\n{reading}\nprint(count(db, 'hello'))\n")
    done = terminal.type("python readme.py")
    assert (done.status, done.out) == (0, f"{expected}\n"), done


def installed(done: Outcome) -> Outcome:
    """What a block that installs cq has ended with, without an error."""
    if any(sign in done.err for sign in NO_NETWORK):
        pytest.skip("pip reaches no package index")
    assert done.status == 0, done
    return done


def without_variables(output: str) -> list[str]:
    """The lines of an output, with marks instead of what varies, and single spaces between columns."""
    output = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "<time>", output)
    output = re.sub(r"\bworker [0-9a-f]{16}\b", "worker <id>", output)
    output = re.sub(r"\bin embedded:\S+", "in <store>", output)
    output = re.sub(r"\b\d+\.\d s\b", "<seconds>", output)
    return [" ".join(line.split()) for line in output.splitlines()]


@pytest.fixture
def cloned(tmp_path: Path) -> Terminal:
    """A terminal in a new clone, on a machine with the Python of this one and without its virtual environment."""
    clone, tools = tmp_path / "clone", tmp_path / "tools"
    for path in (clone, tools):
        path.mkdir()
    for name in FILES:
        shutil.copy2(ROOT / name, clone)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=ignored)
    (tools / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CQ_", "PYTHON"))}
    return Terminal(clone, kept | {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path)})


@pytest.mark.sampled(2, among="first minutes")
def test_from_a_clone_to_counted_words_and_a_live_dashboard(
    cloned: Terminal, processes: StartedProcesses
) -> None:
    counting, watching, *_ = blocks(ROOT / "README.md", "sh")
    begun = used()

    counted = installed(cloned.type(counting))

    assert "word   count" in counted.out
    assert used() - begun < COUNTED_SECONDS

    environment = cloned.environment | {"DISPLAY": ""}
    live = processes.launch(
        "bash", "-c", f"exec {watching}", cwd=cloned.folder, env=environment, stderr=subprocess.PIPE
    )
    assert live.stderr is not None
    address = live.stderr.readline().decode().removeprefix("open ").partition("#")[0].strip()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    page = browser.open(address).read().decode()
    assert "demo_live_compared" in page
    live.send_signal(signal.SIGINT)
    assert "all equal" in ended(live).err
    assert used() - begun < SHOWN_SECONDS

    follow_readme(cloned.activated(cloned.folder))


@pytest.mark.sampled(2, among="first minutes")
def test_the_tutorial_prints_what_it_shows(cloned: Terminal) -> None:
    """It begins in a clone, and goes on in a folder beside it.

    Each block of commands prints the block of text that follows it on the page.
    """
    (_, _, installing), *shown = steps(DOCS / "learn/first-steps.md")
    assert installed(cloned.type(f"set -e\n{installing}")).out == ""
    beside = cloned.activated(cloned.folder.parent / "cq-tutorial")
    assert [each.name for each in beside.folder.iterdir()] == [".venv"]
    for (paragraph, language, block), (_, following, expected) in pairwise([*shown, ("", "", "")]):
        if name := file_named(paragraph):
            (beside.folder / name).write_text(block)
        elif language == "sh":
            done = beside.type(f"{{\n{block}}} 2>&1")
            assert done.status == 0, done
            assert without_variables(done.out) == (without_variables(expected) if following == "text" else [])
        else:
            assert language == "text"
