"""Help, wrong usage and bad input: a line that says what to do, never a traceback."""

from __future__ import annotations

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
from cq.cli.shared.options import seconds_of
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
def test_the_values_of_options_have_names_for_people(path: tuple[str, ...]) -> None:
    for option in (each for each in COMMANDS[path].params if each.param_type_name == "option"):
        assert option.is_flag == (option.metavar is None), option.name
        assert option.metavar not in ("INTEGER", "FLOAT", "N"), option.name


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_and_argument_is_explained(path: tuple[str, ...]) -> None:
    silent = [parameter.name for parameter in COMMANDS[path].params if not parameter.help]

    assert silent == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_prints_json_and_takes_a_store(path: tuple[str, ...]) -> None:
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts}

    assert {"--json", "--store"} <= options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5_400),
        ("2h", 7_200),
        ("30d", 2_592_000),
        ("1w", 604_800),
        ("1.5s", 1.5),
        ("5", 5),
    ],
)
def test_durations_have_units_or_are_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "args",
    [
        ["drain", "words", "--timeout"],
        ["health", "--max-age"],
        ["verify", "q", "--wait"],
        ["worker", "--grace"],
        ["bench", "--seconds"],
        ["demo", "tags", "--kill-every"],
    ],
)
def test_a_wrong_duration_shows_right_ones(here: Here, args: list[str]) -> None:
    ended = here(*args, "1x")

    assert ended.status == 2
    assert "such as 90s, 10m, 1h30m or 30d, got: '1x'" in ended.err


def test_the_version_is_printed(here: Here) -> None:
    shown = here("--version")

    assert (shown.status, shown.out.split()[0]) == (0, "cq")


USAGE = [
    ["nothing"],
    ["status", "--nothing"],
    ["configure"],
    ["configure", "words", "--buckets", "many"],
    ["add", "words"],
    ["ask", "words", "a"],
    ["add", "words", "a=1", "--jsonl", "-"],
    ["add", "words", "--jsonl", "-", "--once", "x"],
    ["get", "words"],
    ["items", "words", "--limit", "-1"],
    ["limit", "words", "--none", "--max-bytes", "1"],
    ["limit", "words", "--when-full", "admit"],
    ["rebucket", "words"],
    ["drain", "words", "--timeout", "-1"],
    ["pause", "words", "--for", "soon"],
    ["worker", "--processes", "0"],
    ["worker", "--grace", "-1"],
    ["worker", "--log", "xml"],
    ["verify"],
    ["verify", "words", "--limit", "-1"],
    ["health", "--max-age", "-1"],
    ["health", "--max-age", "long"],
    ["bench", "--per-transaction", "many"],
    ["bench", "--workers", "0"],
    ["demo", "stock", "--processes", "0"],
    ["demo", "tags", "--servers", "0"],
    ["demo", "tags", "--kill-every", "0"],
    ["demo", "visits", "--speed", "0"],
    ["demo", "visits", "--kill-every", "0"],
    ["bench", "--seconds", "0"],
    ["demo", "words"],
    ["demo", "words", "x", "--workers", "0"],
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
    (["configure", ""], "expected a queue name"),
    (["configure", "q", "--key", "float"], "expected a key type"),
    (["configure", "q", "--key", "(str,"], "expected a key type"),
    (["configure", "q", "--value", "complex"], "expected a value type"),
    (["configure", "q", "--combiner", "nothing"], "expected a combiner"),
    (["configure", "q", "--value", "str"], "expected a value type"),
    (["configure", "q", "--buckets", "0"], "expected buckets"),
    (["configure", "words", "--priority", "0"], "expected a priority of 1 to 100"),
    (["limit", "words", "--max-bytes", "0"], "expected a positive number of bytes"),
    (["limit", "words", "--max-age", "1m", "--when-full", "x"], "raise or admit for a full queue, got: 'x'"),
    (["rebucket", "words", "--buckets", "0"], "expected buckets to be 1 to 4,096"),
    (["configure", "q", "--app", "nothing_of_this_name:app"], "cannot be imported"),
    (["add", "words", "a"], "expected KEY=UPDATE"),
    (["add", "words", "a=b"], "expected a value of type int"),
    (["add", "words", "a=1.5"], "expected a value of type int"),
    (["add", "words", "a=" + "[" * 100_000], "expected a value of type int"),
    (["add", "words", "a" * 9000 + "=1"], "exceeds the limit"),
    (["add", "words", "a\udcff=1"], "expected a value that CBOR can carry"),
    (["add", "words", "a=1", "--once", "x" * 1001], "expected an operation id"),
    (["add", "tags", f'a=["{"x" * 90_000}"]'], "exceeds the limit"),
    (["get", "pages", "a"], "expected a key of type (str, int)"),
    (["get", "pages", '["a"]'], "expected a key of type (str, int)"),
    (["get", "pages", '["a", 1, 2]'], "expected a key of type (str, int)"),
    (["items", "\udcff"], "expected a queue name"),
    (["verify", "words", "--app", "nothing_of_this_name:app"], "cannot be imported"),
    (["worker", "--app", "fine"], "expected --app to be MODULE:APP"),
    (["worker", "--app", "fine:nothing"], "cannot be imported"),
    (["worker", "--app", "fine:function"], "to be a cq.App"),
    (["worker", "--app", "broken:app"], "No module named 'nothing_of_this_name'"),
    (["worker", "--metrics", "here"], "expected an address such as 127.0.0.1:9100"),
    (["bench", "--store", "embedded:cli.db"], "has queues, such as"),
    (["status", "--store", "nothing"], "; `cq settings` shows its source"),
    (["status", "--store", "embedded:"], "names no file"),
]
"""Values that cq does not accept, and what it says about them."""
MISSING = [
    (["configure", "words", "--buckets", "2"], "buckets 1 -> 2"),
    (["link", "aside", "nothing"], "'nothing' is not configured"),
    (["limit", "nothing", "--none"], "'nothing' is not configured"),
    (["limit", "nothing"], "'nothing' is not configured"),
    (["rebucket", "nothing", "--buckets", "2"], "'nothing' is not configured"),
    (["purge", "nothing", "--yes"], "'nothing' is not configured"),
    (["delete", "nothing", "--yes"], "'nothing' is not configured"),
    (["drain", "nothing"], "'nothing' is not configured"),
    (["pause", "nothing", "--for", "1m"], "'nothing' is not configured"),
    (["add", "nothing", "a=1"], "'nothing' is not configured"),
    (["add", "words", "--jsonl", "nothing.jsonl"], "No such file"),
    (["add", "words", "--jsonl", "."], "Is a directory"),
    (["get", "nothing", "a"], "'nothing' is not configured"),
    (["items", "nothing"], "'nothing' is not configured"),
    (["status", "nothing"], "'nothing' is not configured"),
    (["status", "nothing", "--watch"], "'nothing' is not configured"),
    (["health", "--store", "embedded:."], "is a directory"),
    (["pause", "nothing"], "'nothing' is not configured"),
    (["resume", "nothing"], "'nothing' is not configured"),
    (["verify", "nothing"], "'nothing' is not configured"),
    (["worker", "nothing"], "'nothing' is not configured"),
    (["worker", "nothing", "--drain"], "'nothing' is not configured"),
    (["worker", "--drain", "paused"], "is paused (for this test)"),
    (["demo", "tags", "--events", "nothing"], "No such file"),
    (["demo", "visits", "nothing"], "No such file"),
    (["demo", "words", "nothing"], "No such file"),
    (["status", "--store", "embedded:."], "is a directory"),
    (["status", "--store", "embedded:nothing/at.all"], "does not exist"),
    (["status", "--store", "embedded:fine.py"], "is not a cq store"),
    (["status", "--store", "fdb:nothing"], "cannot read the cluster file"),
    (["status", "--store", "fdb:fine.py"], "is not a cluster file"),
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
    cq.configure(db, "tags", value=set, combiner="union")
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


WRONG = [
    ["aside", "drop", "no/name", "--yes"],
    ["aside", "list", "no/name"],
    ["aside", "retry", "no/name"],
    ["aside", "show", "no/name"],
    ["cells", "add", "here", "embedded:here.db", "--weight", "0"],
    ["cells", "delete", "ada"],
    ["cells", "drain", "eu-1", "--store", "nothing"],
    ["cells", "fill", "oldest"],
    ["cells", "find", ""],
    ["cells", "limit", "eu-1", "-1"],
    ["cells", "list", "--store", "nothing"],
    ["cells", "load", "eu-1", "much"],
    ["cells", "move", "ada", "eu-1", "--store", "nothing"],
    ["cells", "names", "ada", "--rename", "login:ada"],
    ["cells", "place", "ada", "--store", "nothing"],
    ["cells", "rebalance", "--most", "-1"],
    ["cells", "resume", "--store", "nothing"],
    ["cloud", "no/name"],
    ["copy", "copy.db", "--store", "nothing"],
    ["delete", "words"],
    ["demo", "cells", "--users", "0"],
    ["demo", "chat", "--users", "1"],
    ["demo", "live", "--adders", "0"],
    ["doctor", "--app", "nothing"],
    ["link", "aside", "no/name"],
    ["link", "check", "no/name"],
    ["link", "init", "no/name"],
    ["link", "list", "no/name"],
    ["link", "pause", "no/name"],
    ["link", "rebase", "no/name"],
    ["link", "rebuild", "no/name"],
    ["link", "remove", "no/name", "--yes"],
    ["link", "resume", "no/name"],
    ["link", "verify", "no/name"],
    ["feed", "append", "no/name", "ann", "hello"],
    ["feed", "configure", "chat", "--keep-last", "-1"],
    ["feed", "delete", "no/name", "--yes"],
    ["feed", "follow", "chat", "ann", "--after", "nothing"],
    ["feed", "list", "--store", "nothing"],
    ["feed", "read", "chat", "ann", "--after", "nothing"],
    ["feed", "verify", "no/name"],
    ["outbox", "aside", "no/name"],
    ["outbox", "init", "no/name"],
    ["outbox", "list", "no/name"],
    ["outbox", "rebase", "no/name"],
    ["outbox", "remove", "no/name"],
    ["outbox", "retry", "no/name"],
    ["purge", "words"],
    ["resume", "no/name"],
    ["settings", "--nothing"],
    ["series", "words", "a", "--format", "xml"],
    ["top", "words", "-n", "0"],
    ["web", "--listen", "nothing"],
]
"""Wrong values for the other commands."""


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_a_wrong_value_ends_the_other_commands_with_2(here: Here, args: list[str]) -> None:
    here("configure", "words", "--combiner", "sum")

    ended = here(*args)

    assert (ended.status, ended.out) == (2, ""), ended.err


def test_every_command_is_tried_with_something_wrong() -> None:
    tried = {tuple(args[:words]) for args in [*USAGE, *WRONG] for words in (1, 2)}

    assert [path for path in COMMANDS if path not in tried] == []


def test_bytes_that_are_no_utf8_are_an_error_like_others(here: Here, cli: Cli) -> None:
    here("configure", "words", "--combiner", "sum")

    ended = cli.run(b"add", b"words", b"\xff=1")

    assert ended.status == 2
    assert ended.err.startswith("cq: expected a value that CBOR can carry")
    assert ended.err.count("\n") == 1


def test_a_reader_that_goes_away_ends_it_quietly(here: Here, cli: Cli, db: Any) -> None:
    cq.configure(db, "words")
    add(db, "words", {f"word {number}": 1 for number in range(20_000)})
    drain(db)

    process = cli.start("items", "words")
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"word ")
    process.stdout.close()

    assert process.wait() == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


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
