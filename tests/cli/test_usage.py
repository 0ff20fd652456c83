"""Help, wrong usage and bad input: a line that says what to do, never a traceback."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin
from cq.cli.shared.help import examples, paragraphs
from cq.cli.shared.late_commands import PANELS
from cq.testing import drain
from tests.cli.commands import COMMANDS, CQ, parse
from tests.cli.conftest import Cli, Here
from tests.kit.processes import SECONDS, ended, run_code
from tests.kit.queues import add

FILES = {"broken.py": "import nothing_of_this_name", "fine.py": "import cq\napp = cq.App()\nfunction = print"}


def test_the_help_has_the_summaries_of_the_commands() -> None:
    """They are in a table, too, so that the help imports no command."""
    summaries = {name: text for panel in PANELS.values() for name, (_, text) in panel.items()}

    assert summaries == {name: paragraphs(each.help)[0] for name, each in CQ.commands.items()}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(here: Here, path: tuple[str, ...]) -> None:
    shown = here(*path, "--help")

    words = " ".join(path)
    assert (shown.status, shown.err) == (0, "")
    assert f"Usage: cq {words} " in shown.out
    lines = shown.out.partition("\nExamples:\n")[2].splitlines()
    assert lines == [f"  {line}" for line in examples(COMMANDS[path])]
    assert not re.search(r"^  \S+ <", shown.out, re.MULTILINE), "a type of Python"
    assert all(line.startswith(f"  cq {words}") for line in lines)
    assert lines


@pytest.mark.parametrize(
    "example", [line for each in COMMANDS.values() for line in examples(each)] + examples(CQ)
)
def test_every_example_is_accepted(example: str) -> None:
    assert parse(shlex.split(example.partition(" > ")[0])[1:]).params


def test_the_help_lists_every_command_in_one_panel_with_its_whole_summary(here: Here) -> None:
    groups = {"": CQ, **{name: each for name, each in CQ.commands.items() if hasattr(each, "commands")}}
    named = [name for names in PANELS.values() for name in names]
    assert sorted(named) == sorted({path[0] for path in COMMANDS})
    for words, group in groups.items():
        if group.hidden:
            continue
        shown = here(*words.split(), "--help").out.splitlines()
        assert max(map(len, shown)) <= 80
        for name, each in group.commands.items():
            summary = paragraphs(each.help)[0]
            assert each.hidden or any(line.split() == [name, *summary.split()] for line in shown), name


@pytest.mark.parametrize("args", [[], ["feed"]])
def test_without_a_command_the_help_is_shown_and_the_status_is_2(here: Here, args: list[str]) -> None:
    ended = here(*args)

    assert (ended.status, ended.err) == (2, "")
    assert ended.out == here(*args, "--help").out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_options_are_explained_and_some_are_of_every_command(path: tuple[str, ...]) -> None:
    for each in COMMANDS[path].params:
        assert each.help, each.name
        if each.param_type_name == "option":
            assert each.is_flag == (each.metavar is None), each.name
            assert each.metavar not in ("INTEGER", "FLOAT", "N"), each.name
    assert {"--json", "--store"} <= {option for each in COMMANDS[path].params for option in each.opts}


def test_the_version_is_printed(here: Here) -> None:
    shown = here("--version")

    assert (shown.status, shown.out.split()[0]) == (0, "cq")


USAGE = [
    ["nothing"],
    ["status", "--nothing"],
    ["configure"],
    ["configure", "words", "--buckets", "many"],
    ["add", "words"],
    ["add", "words", "a=1", "--jsonl", "-"],
    ["limit", "words", "--none", "--max-bytes", "1"],
    ["limit", "words", "--when-full", "admit"],
    ["drain", "words", "--timeout", "-1"],
    ["worker", "--log", "xml"],
    ["items", "words", "--limit", "-1"],
    ["bench", "--per-transaction", "many"],
]
"""Words that the command line does not take."""


@pytest.mark.parametrize("args", USAGE, ids=" ".join)
def test_wrong_usage_ends_with_2_and_names_what_is_wrong(here: Here, args: list[str]) -> None:
    ended = here(*args)

    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("Usage: cq")
    assert ended.err.splitlines()[-1].startswith("Error: ")


VALUES = [
    (["ask", "words", "a", "no JSON"], "expected a request in JSON, got: 'no JSON'"),
    (["configure", "no/name"], "expected a queue name"),
    (["configure", "q", "--value", "complex"], "expected a value type"),
    (["configure", "q", "--window", "1/7"], "a whole number of slices of at least 0.01 s; got: '1/7'"),
    (["rebucket", "words", "--buckets", "0"], "expected buckets to be 1 to 4,096"),
    (["limit", "words", "--max-bytes", "0"], "expected a positive number of bytes"),
    (["add", "words", "a"], "expected KEY=UPDATE"),
    (["add", "words", "a=1.5"], "expected a value of type int"),
    (["add", "words", "a=" + "[" * 100_000], "expected a value of type int"),
    (["add", "words", "a" * 9000 + "=1"], "exceeds the limit"),
    (["add", "words", "a\udcff=1"], "expected a value that CBOR can carry"),
    (["get", "pages", '["a"]'], "expected a key of type (str, int)"),
    (["worker", "--app", "fine"], "expected --app to be MODULE:APP"),
    (["worker", "--app", "fine:nothing"], "cannot be imported"),
    (["worker", "--app", "fine:function"], "to be a cq.App"),
    (["worker", "--app", "broken:app"], "No module named 'nothing_of_this_name'"),
    (["worker", "--metrics", "here"], "expected an address such as 127.0.0.1:9100"),
    (["bench", "--store", "embedded:cli.db"], "has queues, such as"),
    (["status", "--store", "nothing"], "; `cq settings` shows its source"),
]
"""Values that cq does not accept, and what it says about them."""
MISSING = [
    (["configure", "words", "--buckets", "2"], "buckets 1 -> 2"),
    (["purge", "nothing", "--yes"], "'nothing' is not configured"),
    (["drain", "nothing"], "'nothing' is not configured"),
    (["status", "nothing", "--watch"], "'nothing' is not configured"),
    (["worker", "nothing"], "'nothing' is not configured"),
    (["worker", "--drain", "paused"], "is paused (for this test)"),
    (["add", "words", "--jsonl", "nothing.jsonl"], "No such file"),
    (["demo", "words", "nothing"], "No such file"),
    (["health", "--store", "embedded:."], "is a directory"),
    (["status", "--store", "embedded:fine.py"], "is not a cq store"),
    (["status", "--store", "fdb:nothing"], "cannot read the cluster file"),
]
"""Objects that are missing or in use, and what cq says about them."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and modules that the words of bad input are about."""
    folder = tmp_path_factory.mktemp("prepared")
    for file, content in FILES.items():
        (folder / file).write_text(content)
    db: Any = cq.open(f"embedded:{folder / 'cli.db'}")
    cq.configure(db, "words")
    cq.configure(db, "pages", key=(str, int))
    cq.configure(db, "paused").add_now(db, {"a": 1})
    admin.pause(db, "paused", "for this test")
    db.close()
    return folder


@pytest.mark.parametrize(
    ("status", "args", "said"), [*((2, *each) for each in VALUES), *((1, *each) for each in MISSING)]
)
def test_bad_input_ends_with_one_line(
    here: Here, cli: Cli, prepared: Path, status: int, args: list[str], said: str
) -> None:
    shutil.copytree(prepared, cli.folder, dirs_exist_ok=True)

    ended = here(*args)

    assert (ended.status, ended.out) == (status, "")
    assert ended.err.startswith("cq: ")
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert len(ended.err) < 500


def test_bytes_that_are_no_utf8_are_an_error_like_others(here: Here, cli: Cli) -> None:
    here("configure", "words", "--combiner", "sum")

    ended = cli.run(b"add", b"words", b"\xff=1")

    assert ended.status == 2
    assert ended.err.startswith("cq: expected a value that CBOR can carry")
    assert ended.err.count("\n") == 1


def test_an_encoding_that_lacks_a_character_loses_nothing(here: Here, cli: Cli) -> None:
    cli.environment["PYTHONIOENCODING"] = "latin-1"
    here("configure", "words", "--combiner", "sum")
    cli.run("add", "words", "λόγος=1")
    here("worker", "--drain")

    assert cli.run("items", "words").out == "\\u03bb\\u03cc\\u03b3\\u03bf\\u03c2\t1\n"
    assert cli.run("items", "words", "--json").rows() == [{"key": "λόγος", "value": 1}]
    assert (
        cli.run("add", "words", "λόγος=λόγος").err
        == "cq: expected a value of type int, got: '\\u03bb\\u03cc\\u03b3\\u03bf\\u03c2'\n"
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("command", "target"),
    [
        *((command, ">&-") for command in ("status", "status --json", "items words", "--help", "settings")),
        *((command, ">/dev/full") for command in ("status", "--help")),  # test_closed_output has all others
    ],
)
def test_output_that_cannot_be_written_ends_with_one_line(
    cli: Cli, db: Any, command: str, target: str
) -> None:
    cq.configure(db, "words")
    add(db, "words", {"a": 1})
    drain(db)

    found = ended(cli.launch("sh", "-c", f'"$0" -m cq {command} {target}', sys.executable))

    assert found.status == 1
    assert found.err.startswith("cq: ")
    assert found.err.count("\n") == 1
    assert ("standard output is closed" if target == ">&-" else "No space left") in found.err


def test_files_do_not_get_the_numbers_of_closed_streams(here: Here, cli: Cli, db: Any) -> None:
    cq.configure(db, "words")

    assert ended(cli.launch("sh", "-c", '"$0" -m cq worker --drain <&- >&- 2>&-', sys.executable)).status == 0
    assert here("verify", "words").status == 0


DESTROYING = """
import signal, time
from cq.cli import main

class Destroyed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def run():
    destroyed = Destroyed()
    del destroyed
    time.sleep(SECONDS)

main._run = run
main.main()
"""


def test_an_interrupt_in_a_destructor_ends_a_command(cli: Cli) -> None:
    """Python ignores it there."""
    program = DESTROYING.replace("SECONDS", str(SECONDS))

    assert run_code(program, cwd=cli.folder) == (130, "", "")


IMPORTING = """
import signal, sys
from cq.__main__ import main

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "MODULE":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["cq", "demo", "live", "--help"]
main()
"""


@pytest.mark.parametrize("module", ["cq.cli.main", "cq.cli.demos.command"])
def test_an_interrupt_in_an_import_ends_a_command_without_a_traceback(cli: Cli, module: str) -> None:
    program = IMPORTING.replace("MODULE", module)

    assert run_code(program, cwd=cli.folder) == (-signal.SIGINT, "", "")
