"""`cq status` on terminals of several sizes, with names that do not fit."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

import cq
from cq import admin
from cq.cli.operate.status_view import by_urgency, queue_columns, queue_states
from cq.cli.operate.watch import Samples, cropped, screen, shared
from cq.cli.shared.chart import sparkline
from cq.cli.shared.table import FittedTable
from cq.observers.monitoring.store_overview import WorkerStatus, overview
from cq.queue.limits import compare
from tests.cli.conftest import Cli, Here
from tests.cli.terminal import COLOUR, Terminal, plain

LONG = "orders-by-customer-and-region.europe-west.daily-aggregate-" + "{:02}"
NAMES = [LONG.format(number) for number in range(60)]
AWKWARD = ["", "short", NAMES[0], "統計" * 30, "a b " * 40, "red \x1b[31m\nnext\u202e", "x" * 1_500]


def lines_of(table: FittedTable, width: int | None) -> list[str]:
    head, rows = table.laid_out(width)
    return [line.plain for lines in (head, *rows) for line in lines]


@pytest.mark.parametrize("width", [4, 7, 20, 40, 80, 200])
@pytest.mark.parametrize("first", AWKWARD, ids=range(len(AWKWARD)))
@pytest.mark.parametrize("last", AWKWARD, ids=range(len(AWKWARD)))
def test_a_table_fits_its_width_and_loses_nothing(width: int, first: str, last: str) -> None:
    table = FittedTable(["name", "number", "text"], [[first, "1,234", last]], ["number"])
    lines = lines_of(table, width)

    assert max(map(cell_len, lines)) <= width
    (whole,) = lines_of(FittedTable(["name", "number", "text"], [[first, "1,234", last]]), None)[1:]
    if width >= 40:
        assert sorted("".join(lines).replace(" ", "")) == sorted("namenumbertext" + whole.replace(" ", ""))
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


def test_watching_fits_the_height_with_urgent_queues_first(cli: Cli, db: Any) -> None:
    for name in NAMES:
        cq.configure(db, name)
    make_urgent(db)
    with Terminal(cli, "status", "--watch", size=(80, 24)) as terminal:
        first = terminal.frame(lambda lines: len(lines) == 24)
        names = [line.split()[0] for line in first if line.strip()]
        at = names.index("queue")
        assert names[at + 1 : at + 3] == ["late", "stopped"]
        assert any(line.endswith("more queues hidden)") for line in first)
        assert max(map(cell_len, first)) <= 80
        terminal.resize(120, 90)
        larger = terminal.frame(lambda lines: len(lines) == 90)
        assert any(line.startswith(NAMES[59]) for line in larger)
        terminal.resize(40, 8)
        smaller = terminal.frame(lambda lines: len(lines) == 8)
        assert max(map(cell_len, smaller)) <= 40
        terminal.process.send_signal(signal.SIGINT)
        end = terminal.output()
        assert terminal.process.returncode == 0
    assert end.rstrip().endswith("\x1b[?1049l"), "the screen of before is back"


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10), (20, 3), (10, 1)])
@pytest.mark.parametrize("count", [0, 1, 60])
def test_a_screen_is_never_larger_than_the_terminal(db: Any, size: tuple[int, int], count: int) -> None:
    for name in NAMES[:count]:
        cq.configure(db, name)
    seen = overview(db)
    host = "計算機\x1b[2J" * 20
    seen.workers.extend(
        WorkerStatus(f"{n:016x}", host, n, "1", ["combine"], None, n != 7, 1.0, 1, 1, 1, 0.5, [], [], "")
        for n in range(count)
    )
    samples = Samples()
    for _ in range(50):
        samples.add(seen)
    lines = screen(seen, samples, size)

    assert len(lines) <= size[1]
    assert max(line.cell_len for line in lines) <= size[0]
    if count == 60 and size[1] >= 24:
        shown = [line.plain for line in lines]
        assert next(line for line in shown if line.startswith("000")).split()[:2] == [
            "0000000000000007",
            "dead",
        ]
        assert any(line.endswith("more workers hidden)") for line in shown)


def test_urgent_states_come_first(db: Any) -> None:
    make_urgent(db)
    seen = by_urgency(overview(db))

    assert [queue.name for queue in seen.queues] == ["late", "stopped", "broken", "calm"]
    assert [queue_states(queue, seen) for queue in seen.queues][:3] == [["full"], ["paused"], ["active"]]
    assert next(column.name for column in queue_columns(seen)) == "queue"


def test_room_is_shared_fairly() -> None:
    assert shared([5, 100, 10], 60) == [5, 45, 10]
    assert shared([5, 100, 10], 12) == [4, 4, 4]
    rows = [[Text("a"), Text("b")], [Text("c")], [Text("d")]]
    lines = cropped([Text("head")], rows, 4, "row")
    assert [line.plain for line in lines] == ["head", "a", "b", "(2 more rows hidden)"]
    assert len(cropped([Text("head")], rows, 5, "row")) == 5


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
