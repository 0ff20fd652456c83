"""`cq status` on terminals of several sizes, with names that do not fit."""

from __future__ import annotations

import signal
from io import StringIO
from itertools import product
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import cq
from cq import admin
from cq.cli.shared.chart import sparkline
from cq.cli.shared.table import FittedTable
from cq.queue.limits import compare
from tests.cli.conftest import Cli, Here
from tests.cli.terminal import COLOUR, Terminal, plain

pytestmark = pytest.mark.sampled(2)

LONG = "orders-by-customer-and-region.europe-west.daily-aggregate-" + "{:02}"
NAMES = [LONG.format(number) for number in range(60)]
AWKWARD = ["", "short", NAMES[0], "統計" * 30, "a b " * 40, "red \x1b[31m\nnext\u202e", "x" * 1_500]


def lines_of(table: FittedTable, width: int | None) -> list[str]:
    console = Console(width=width or 10_000, force_terminal=width is not None, file=StringIO())
    with console.capture() as captured:
        console.print(table, soft_wrap=True)
    return plain(captured.get()).splitlines()


@pytest.mark.parametrize("width", [4, 7, 20, 40, 80, 200])
def test_a_table_fits_its_width_and_loses_nothing(width: int) -> None:
    for first, last in product(AWKWARD, AWKWARD):
        row = [first, "1,234", last]
        lines = lines_of(FittedTable(["name", "number", "text"], [row], ["number"]), width)
        (whole,) = lines_of(FittedTable(["name", "number", "text"], [row]), None)[1:]

        assert max(map(cell_len, lines)) <= width
        if width >= 40:
            assert sorted("".join(lines).replace(" ", "")) == sorted(
                "namenumbertext" + whole.replace(" ", "")
            )
            assert any("1,234" in line for line in lines)


def test_a_row_is_one_line_without_a_terminal(here: Here, db: Any) -> None:
    for name in NAMES[:3]:
        cq.configure(db, name)
    admin.pause(db, NAMES[1], "統計 " * 60)
    shown = here("status").out.splitlines()

    assert [line.split("  ")[0] for line in shown[1:4]] == NAMES[:3]
    assert "conflicts" in shown[0]
    assert f"queue {NAMES[1]!r}: paused until `cq resume`: " + "統計 " * 60 in shown


@pytest.mark.parametrize(("columns", "count"), [(80, 0), (80, 60), (200, 1), (200, 60)])
def test_it_fits_a_terminal(cli: Cli, db: Any, columns: int, count: int) -> None:
    for name in NAMES[:count]:
        cq.configure(db, name)
    with Terminal(cli, "status", size=(columns, 24)) as terminal:
        lines = plain(terminal.output()).split("\n")

    assert terminal.process.returncode == 0
    assert max(map(cell_len, lines)) <= columns
    assert [line.split()[0] for line in lines if line.startswith("orders")] == NAMES[:count]
    assert ("begin with `cq configure QUEUE" in "".join(lines)) == (count == 0)
    if count:
        assert lines[0].split()[:4] == ["queue", "state", "oldest", "rows"]
        assert ("waiting" in lines[0]) == (columns == 200)


@pytest.mark.parametrize(("columns", "blocks"), [(26, 5), (40, 10), (80, 20), (100, 60)])
def test_charts_of_the_past_hour_fit_a_terminal(cli: Cli, db: Any, columns: int, blocks: int) -> None:
    cq.configure(db, "words")
    with Terminal(cli, "status", "--history", size=(columns, 60)) as terminal:
        lines = plain(terminal.output()).splitlines()

    assert max(map(cell_len, lines)) <= columns
    assert [line.split()[-1] for line in lines if "▁" in line] == ["▁" * blocks] * 5


def make_urgent(db: Any) -> None:
    """Three queues that an operator must know of, among calm ones."""
    for name in ("calm", "broken", "stopped", "late"):
        cq.configure(db, name)
    admin.pause(db, "stopped", "for a while", duration=3_600)
    admin.limit(db, "late", max_bytes=1)
    cq.transact(db, lambda tr: cq.CombineQueue("late").add(tr, {"a": 1}))
    assert compare(db, "late")


def test_states_have_a_word_and_a_colour(cli: Cli, here: Here, db: Any) -> None:
    make_urgent(db)
    with Terminal(cli, "status", "--wide") as terminal:
        coloured = terminal.output()
    with Terminal(cli, "status", "--wide", NO_COLOR="1") as terminal:
        colourless = terminal.output()

    for word in ("paused", "full"):
        assert any(word in part.split("\x1b")[0] for part in COLOUR.split(coloured)[1:]), word
        assert word in colourless
    assert not COLOUR.search(colourless)
    assert "1 byte, then raise" in plain(colourless)
    assert "paused until 2" in plain(colourless)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_a_pipe_gets_no_control_sequences(
    here: Here, db: Any, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_urgent(db)
    monkeypatch.setenv(variable, "1")

    assert "\x1b" not in here("status", "--wide").out


def test_the_end_of_a_pause_and_the_limits_are_json(here: Here, db: Any) -> None:
    make_urgent(db)
    found = {row["name"]: row for row in here("status", "--json").rows()[:-1]}

    assert found["stopped"]["paused_until"] > 1_700_000_000
    assert found["calm"]["paused_until"] is None
    assert (found["late"]["max_bytes"], found["late"]["max_seconds"], found["late"]["when_full"]) == (
        1,
        None,
        "raise",
    )


def test_watching_redraws_the_screen_with_warnings_first(cli: Cli, db: Any) -> None:
    for name in NAMES:
        cq.configure(db, name)
    make_urgent(db)
    with Terminal(cli, "status", "--watch", size=(80, 24)) as terminal:
        first = terminal.frame(lambda lines: len(lines) == 24)
        assert first[0] == "no worker is alive"
        assert any(line.startswith("queue 'late': full") for line in first)
        assert any(line.split() == ["broken", "active", "-", "0", "0.0", "0"] for line in first)
        assert max(map(cell_len, first)) <= 80
        terminal.resize(120, 90)
        larger = terminal.frame(lambda lines: len(lines) == 90)
        assert any(line.startswith(NAMES[59]) for line in larger)
        terminal.process.send_signal(signal.SIGINT)
        end = terminal.output()
        assert terminal.process.returncode == 0
    assert end.rstrip().endswith("\x1b[?1049l"), "the screen of before is back"


def test_a_sparkline_begins_at_zero() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 4, None, 8]) == "▁▅ █"


def test_a_signal_that_ends_watching_gives_the_screen_back(cli: Cli, db: Any) -> None:
    with Terminal(cli, "status", "--watch") as terminal:
        terminal.frame(lambda lines: len(lines) > 1)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.output().rstrip().endswith("\x1b[?1049l")
    assert terminal.process.returncode == 0
