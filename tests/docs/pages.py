"""The pages as tests read them, and a reader that follows one literally."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.kit.processes import StartedProcesses, ended, free_ports, run_program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECONDS = 120

FETCH = (
    "import sys, urllib.request as web; *method, url = sys.argv[1:]; "
    "print(web.urlopen(web.Request(url, method=method[-1] if method else 'GET')).read().decode(), end='')"
)
"""`curl URL` and `curl -X METHOD URL`, in Python."""
INSTALLED = {
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

NONE: Mapping[str, str] = MappingProxyType({})


class Page(NamedTuple):
    """A page, and where the reader differs from a person at a terminal."""

    path: str
    left: Mapping[str, str] = NONE
    """Commands that are not run, by a part of their text, with the reason."""
    options: Mapping[str, str] = NONE
    """Options that answer a command's question, by the beginning of the command."""
    before: Mapping[str, str] = NONE
    """Python that makes the situation that a command is for."""
    has_worker: bool = False
    """Whether the page asks for a worker in another terminal."""
    has_sketches: bool = False
    """Whether some of its commands need the extra `sketches`."""


class Reader:
    """Follows pages in a folder, which has a virtual environment in which cq is installed, and nothing else.

    Args:
        folder: the empty folder.
        command: the executable file that is `cq`.
    """

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self.port = free_ports()
        commands = folder / ".venv" / "bin"
        commands.mkdir(parents=True)
        (commands / "activate").write_text("")
        for name, script in INSTALLED.items():
            (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / "cq").write_text(command)
        for each in commands.iterdir():
            each.chmod(0o755)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("CQ_")} | {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self.exports = ""  # of the commands typed so far

    def type(self, script: str, folder: Path | None = None) -> tuple[int, str]:
        """What a block of commands ends with, and prints; no command may fail in another way than a reader expects."""
        for command, with_less_load in LESS_LOAD.items():
            script = script.replace(command, with_less_load)
        shell = shutil.which("bash") or "/bin/sh"
        ended = run_program(
            shell, "-c", self.on_free_port(script), cwd=folder or self.folder, env=self.environment
        )
        assert "Traceback" not in ended.err
        assert "WARNING" not in ended.err
        return ended.status, ended.out

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Run a command that does not end by itself: from its first line, a server from its address, until ^C."""
        with StartedProcesses(self.folder) as processes:
            words = shlex.split(self.on_free_port(command))
            process = processes.launch(*words, env=self.environment, stderr=subprocess.STDOUT)
            assert process.stdout is not None
            assert any("--port" not in command or b"running on" in line.lower() for line in process.stdout)
            yield
            process.send_signal(signal.SIGINT)
            found = ended(process)
        assert "Traceback" not in found.out
        assert found.status in (0, 130, -signal.SIGINT)

    def on_free_port(self, script: str) -> str:
        """A script with a port that no other test uses."""
        return script.replace("8000", str(self.port))

    def save(self, name: str, text: str) -> None:
        """Save a file that a page shows."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def follow(self, page: Page) -> None:
        """Do the steps of a page in order: save its files, run its commands and programs, compare their output.

        The paragraph before a block says what the reader does with it. A Python block must be a file, and each command
        must succeed.
        """
        printed = ""
        with ExitStack() as first_terminal:
            for paragraph, language, block in steps(DOCS / page.path):
                if "second terminal" not in paragraph:
                    first_terminal.close()
                if name := file_named(paragraph):
                    self.save(name, block)
                    if "run it" in paragraph:
                        self._run(name, block)
                elif added := re.search(r"[Aa]dd this to `([^`]+)`", paragraph):
                    self.save(added[1], (self.folder / added[1]).read_text() + "\n\n" + block)
                elif language == "sh" and "until you press ^C" in paragraph:
                    first_terminal.enter_context(self.running(block))
                elif language == "sh":
                    printed = self.follow_commands(page, block, ROOT if "in the clone" in paragraph else None)
                elif language == "text" and "last command prints" in paragraph:
                    assert without_ids(printed).endswith(without_ids(block)), (printed, block)
                elif language == "text" and "print" in paragraph:
                    assert printed == block
                else:
                    assert language != "python", f"a reader does not know what to do with this:\n{block}"

    def follow_commands(self, page: Page, script: str, folder: Path | None = None) -> str:
        """Run the commands of a block of a page one by one; what they print."""
        lines = script.replace("\\\n", "").splitlines()
        return "".join(self._command(page, line, folder) for line in lines)

    def _run(self, name: str, program: str) -> None:
        """Run a program; it prints the lines below `# Prints:`."""
        status, printed = self.type(f"{self.exports}python {name}")
        _, _, expected = program.partition("# Prints:\n")
        assert (status, printed) == (0, "".join(re.findall(r"^# (.*\n)", expected, flags=re.MULTILINE)))

    def _command(self, page: Page, line: str, folder: Path | None) -> str:
        if any(part in line for part in page.left):
            return ""
        for command, program in page.before.items():
            if line.startswith(command):
                self.save("before.py", program)
                self._run("before.py", program)
        if line.startswith("export "):
            self.exports += f"{line}\n"
            return ""
        command = _ending(page, line)
        if "--watch" in command:
            with self.running(command):
                return ""
        status, printed = self.type(f"{self.exports}{command}", folder)
        assert status == 0, f"{line}\n{printed}"
        return printed


def _ending(page: Page, line: str) -> str:
    """The command of a line, so that it ends and asks no question."""
    command = line.split(" #")[0].rstrip()
    if command.startswith("cq worker") and "--drain" not in command:
        return f"{command} --drain"
    return " ".join(
        [command, *(option for start, option in page.options.items() if command.startswith(start))]
    )


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


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


def file_named(paragraph: str) -> str | None:
    """The name under which the block after a paragraph is to be saved; None if it is no file."""
    found = re.search(r"[Ss]ave [^`]*\bas `([^`]+)`", paragraph)
    return found and found[1]
