"""The pages followed literally: in one empty folder, in order, as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from cq.cli.main import command_line
from tests.helpers import free_ports

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
SECONDS = 120
COMMANDS: Any = typer.main.get_command(command_line())

FETCH = (
    "import sys, urllib.request as web; *method, url = sys.argv[1:]; "
    "print(web.urlopen(web.Request(url, method=method[-1] if method else 'GET')).read().decode(), end='')"
)
"""`curl URL` and `curl -X METHOD URL`, in Python."""
INSTALLED = {
    "cq": f'exec "{sys.executable}" -m cq "$@"',
    "python": f'exec "{sys.executable}" "$@"',
    # All is installed already, so only folders to install must be what the page says that they are.
    "pip": 'for each; do case "$each" in .|.[\\[./]*|/*) [ -e "${each%%[[]*}/pyproject.toml" ] || exit 1; esac; done',
    "curl": f'exec "{sys.executable}" -c "{FETCH}" "$@"',
    "python3": '[ -e .venv ] || ln -s "$(dirname "$0")/.." .venv',  # makes the virtual environment
}
LESS_LOAD = {
    "cq demo chat": "cq demo chat --users 2 --groups 1 --messages 10 --flood 20 --senders 1 --workers 1",
    "cq demo tags": "cq demo tags --number 1000 --servers 1 --collectors 1",
}


class Reader:
    """Follows pages in a folder, which has a virtual environment in which cq is installed, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports()
        commands = folder / ".venv" / "bin"
        commands.mkdir(parents=True)
        (commands / "activate").write_text("")
        for name, script in INSTALLED.items():
            (commands / name).write_text(f"#!/bin/sh\n{script}\n")
            (commands / name).chmod(0o755)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("CQ_")} | {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def type(self, script: str, folder: Path | None = None) -> tuple[int, str]:
        """What a block of commands ends with, and prints; no command may fail in another way than a reader expects."""
        for command, with_less_load in LESS_LOAD.items():
            script = script.replace(command, with_less_load)
        shell = shutil.which("bash") or "/bin/sh"
        ended = subprocess.run(
            [shell, "-c", self.on_free_port(script)],
            cwd=folder or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert "Traceback" not in ended.stderr
        assert "WARNING" not in ended.stderr
        return ended.returncode, ended.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Run a command that does not end by itself: from its first line, a server from its address, until ^C."""
        with subprocess.Popen(
            shlex.split(self.on_free_port(command)),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            assert any("--port" not in command or "running on" in line.lower() for line in lines)
            try:
                yield
            finally:
                process.send_signal(signal.SIGINT)
                printed, _ = process.communicate(timeout=SECONDS)
        assert "Traceback" not in printed
        assert process.returncode in (0, 130, -signal.SIGINT)

    def on_free_port(self, script: str) -> str:
        """A script with a port that no other test uses."""
        return script.replace("8000", str(self.port))

    def save(self, name: str, text: str) -> None:
        """Save a file that a page shows."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def follow(self, page: Path) -> None:
        """Do the steps of a page in order: save its files, run its commands, compare their output.

        The paragraph before a block says what the reader does with it. A Python block must be a file, and each command
        must succeed.
        """
        printed = ""
        with ExitStack() as first_terminal:
            for paragraph, language, block in steps(page):
                if "second terminal" not in paragraph:
                    first_terminal.close()
                if saved := re.search(r"[Ss]ave [^`]*\bas `([^`]+)`", paragraph):
                    self.save(saved[1], block)
                elif added := re.search(r"[Aa]dd this to `([^`]+)`", paragraph):
                    self.save(added[1], (self.folder / added[1]).read_text() + "\n\n" + block)
                elif language == "sh" and "until you press ^C" in paragraph:
                    first_terminal.enter_context(self.running(block))
                elif language == "sh":
                    status, printed = self.type(block, ROOT if "in the clone" in paragraph else None)
                    assert status == 0, block
                elif language == "text" and "last command prints" in paragraph:
                    assert without_ids(printed).endswith(without_ids(block)), (printed, block)
                elif language == "text" and "print" in paragraph:
                    assert printed == block
                else:
                    assert language != "python", f"a reader does not know what to do with this:\n{block}"


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def without_ids(printed: str) -> str:
    """Output without the ids of messages, which differ each time."""
    return re.sub(r"\b[0-9a-f]{36}\b", "ID", printed)


def steps(page: Path) -> Iterator[tuple[str, str, str]]:
    """Each block of a page: the paragraph before it in one line, its language, its text."""
    text, end = page.read_text(), 0
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        paragraph = text[end : block.start()].strip().split("\n\n")[-1]
        yield " ".join(paragraph.split()), block[1], block[2]
        end = block.end()


@pytest.mark.parametrize(
    "page",
    [
        "howto/analysis.md",
        "howto/asyncio.md",
        "howto/cloud.md",
        "howto/combiners.md",
        "howto/django.md",
        "howto/emitter.md",
        "howto/time.md",
        "howto/fastapi.md",
        "howto/flask.md",
        "howto/jobs.md",
        "howto/kafka.md",
        "howto/load-files.md",
        "howto/observers.md",
        "howto/once.md",
        "howto/sketches.md",
        "howto/testing.md",
        "howto/webhook.md",
        "systems/feeds.md",
        "systems/tags.md",
    ],
)
def test_a_page_is_followed_in_an_empty_folder(reader: Reader, page: str) -> None:
    reader.follow(DOCS / page)


def follow_readme(reader: Reader) -> None:
    """Follow it in a clone; its program goes on in one interpreter, with a worker beside it."""
    trying, _tests, _cluster = blocks(ROOT / "README.md", "sh")
    status, shown = reader.type(trying)
    assert (status, shown.splitlines()[0].split()) == (0, ["word", "count", "weight"])
    adding, reading = blocks(ROOT / "README.md", "python")
    (drain,) = re.findall(r"`(cq worker \w+ --drain)`", (ROOT / "README.md").read_text())
    (expected,) = re.findall(r"^count\(.*# (\d+)$", reading, flags=re.MULTILINE)
    work = f"import subprocess; subprocess.run({shlex.split(drain)!r}, check=True)\n"
    reader.save("readme.py", f"{adding}\n{work}\n{reading}\nprint(count(db, 'hello'))\n")
    assert reader.type("python readme.py") == (0, f"{expected}\n")


def follow_tutorial(reader: Reader) -> None:
    """Begin in a clone, and go on in a folder beside it.

    Each block of commands prints the block of text that follows it on the page.
    """
    page = (DOCS / "tutorial.md").read_text()
    fenced = re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    installing = fenced.pop(0)[1]
    assert reader.type(f"set -e\n{installing}") == (0, "")
    reader.folder = reader.folder.parent / "cq-tutorial"
    assert [each.name for each in reader.folder.iterdir()] == [".venv"]
    names = re.findall(r"^.*Save this as `(.*?)`:$", page, flags=re.MULTILINE)
    for name, program in zip(names, blocks(DOCS / "tutorial.md", "python"), strict=True):
        reader.save(name, program)
    for (language, commands), (following, expected) in pairwise([*fenced, ("", "")]):
        if language == "sh":
            status, printed = reader.type(f"{{\n{commands}}} 2>&1")
            assert status == 0, printed
            assert without_variables(printed) == (without_variables(expected) if following == "text" else [])


def without_variables(output: str) -> list[str]:
    """The lines of an output, with marks instead of what varies, and single spaces between columns."""
    output = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "<time>", output)
    output = re.sub(r"\bworker [0-9a-f]{16}\b", "worker <id>", output)
    output = re.sub(r"\bin embedded:\S+", "in <store>", output)
    output = re.sub(r"\b\d+\.\d s\b", "<seconds>", output)
    return [" ".join(line.split()) for line in output.splitlines()]


def test_readme_and_tutorial_are_followed_from_a_clone(reader: Reader) -> None:
    reader.folder = reader.folder / "clone"
    reader.folder.mkdir()
    for each in ("README.md", "docs", "pyproject.toml"):
        (reader.folder / each).symlink_to(ROOT / each)
    follow_readme(reader)
    follow_tutorial(reader)


def commands_shown() -> Iterator[tuple[str, str]]:
    """Each command `cq ...` in the shell blocks of all pages."""
    for page in PAGES:
        if page.name == "cli.md":
            continue
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s*(?:&&|\||;)\s*", line):
                    words = shlex.split(part, comments=True)
                    if words[:1] and Path(words[0]).name == "cq":
                        yield page.name, " ".join(map(shlex.quote, words[1:]))


@pytest.mark.parametrize(("page", "command"), sorted(set(commands_shown())))
def test_commands_that_are_shown_have_the_words_that_the_command_line_takes(page: str, command: str) -> None:
    parsed = COMMANDS
    words = [word for word in shlex.split(command) if not word.startswith((">", "<"))]
    while hasattr(parsed, "commands"):
        parsed, words = parsed.commands[words[0]], words[1:]

    parsed.make_context("cq", words)  # raises a usage error
