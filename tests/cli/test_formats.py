"""`cq items` and `cq top` with `--format` and `--output`."""

from __future__ import annotations

import csv
import io
import os
import stat
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import cq
from cq.cli.shared.rows import whole_file
from cq.observers.top.index import top
from cq.tables import rows as tables
from cq.testing import drain
from tests.cli.conftest import Cli, Here

NOON = datetime(2026, 1, 2, 12, 30, 0, 5, UTC)
TYPES = [
    (str, int, "sum", "a", 7, "a,7", pa.int64(), 7),
    (int, float, "sum", -3, 0.5, "-3,0.5", pa.float64(), 0.5),
    (bytes, bytes, "last", b"\x00k", b"v", "AGs=,dg==", pa.binary(), b"v"),
    ((str, int), Decimal, "sum", ("a", 1), Decimal("0.10"), "a,1,0.10", pa.string(), "0.10"),
    (str, bool, "last", "a", True, "a,true", pa.bool_(), True),
    (str, datetime, "last", "a", NOON, f"a,{NOON.isoformat()}", pa.timestamp("us", tz="UTC"), NOON),
    (str, dict, "counter", "a", {"x": 1}, 'a,"{""x"": 1}"', pa.string(), '{"x": 1}'),
    (str, set, "union", "a", {"y", "x"}, 'a,"[""x"", ""y""]"', pa.string(), '["x", "y"]'),
    (str, "any", "last", "a", "7", 'a,"""7"""', pa.string(), '"7"'),
]
AWKWARD = ["", " ", "two\nlines", "return\r", 'a "quote"', "a,b", "λ \x1b[31m", "plain"]


def fill(db: Any, name: str, values: dict[Any, Any], **settings: Any) -> None:
    """A queue with these values."""
    cq.configure(db, name, **settings).add_now(db, values)
    drain(db, name)


def rows_of(here: Here, *command: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The types of the columns, and the rows, of a Parquet file that a command writes."""
    path = "rows.parquet"
    ended = here(*command, "--format", "parquet", "--output", path)
    assert (ended.status, ended.out) == (0, "")
    table = parquet.read_table(path)
    return [str(each.type) for each in table.schema], table.to_pylist()


@pytest.mark.parametrize(
    ("key", "value", "combiner", "of", "is_", "line", "type_", "cell"),
    TYPES,
    ids=[str(row[2]) + "-" + str(row[6]) for row in TYPES],
)
def test_every_type_has_a_form_in_every_format(
    here: Here,
    db: Any,
    key: Any,
    value: Any,
    combiner: str,
    of: Any,
    is_: Any,
    line: str,
    type_: Any,
    cell: Any,
) -> None:
    fill(db, "queue", {of: is_}, key=key, value=value, combiner=combiner)

    names = "key_1,key_2,value" if isinstance(key, tuple) else "key,value"
    assert here("items", "queue", "--format", "csv").out == f"{names}\n{line}\n"
    assert here("items", "queue", "--format", "jsonl").out == here("items", "queue", "--json").out
    types, (row,) = rows_of(here, "items", "queue")
    assert list(row) == names.split(",")
    assert list(row.values()) == [*(of if isinstance(of, tuple) else [of]), cell]
    assert types[-1] == str(type_)


def test_csv_carries_every_text(here: Here, db: Any, cli: Cli) -> None:
    fill(db, "words", dict.fromkeys(AWKWARD, 1))

    here("items", "words", "--format", "csv", "--output", "words.csv")
    printed = here("items", "words", "--format", "csv").out

    written = (cli.folder / "words.csv").read_bytes()
    assert written.decode() == printed
    head, *rows = csv.reader(io.StringIO(printed, newline=""))
    assert head == ["key", "value"]
    assert sorted(rows) == sorted([word, "1"] for word in AWKWARD)


def test_a_spreadsheet_runs_no_text_as_a_formula(here: Here, db: Any) -> None:
    texts = ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠1"]  # noqa: RUF001
    harmless = ["a=1", "a;=1", "", " ", '"=1"', "1"]
    fill(db, "words", dict.fromkeys([*texts, *harmless], -5))

    printed = here("items", "words", "--format", "spreadsheet").out

    _, *rows = csv.reader(io.StringIO(printed, newline=""))
    assert sorted(rows) == sorted([text, "-5"] for text in [*(f"'{each}" for each in texts), *harmless])
    assert '"a;=1",-5\n' in printed


@pytest.mark.parametrize(
    ("type_", "value", "cell"),
    [
        (float, float("-inf"), "-inf"),
        (Decimal, Decimal("-1.50"), "-1.50"),
        (bytes, b"\xfb\xef\xbe", '"\'++++"'),
        ("any", -5, "-5"),
        ("any", "=1+1", '"""=1+1"""'),
        (list, ["=1", -1], '"[""=1"", -1]"'),
    ],
)
def test_a_spreadsheet_gets_numbers_as_they_are_and_json_in_quotes(
    here: Here, db: Any, type_: Any, value: Any, cell: str
) -> None:
    fill(db, "queue", {"a": value}, value=type_, combiner="last")
    assert here("items", "queue", "--format", "spreadsheet").out == f'key,value\n"a",{cell}\n'


def test_rows_are_read_and_written_in_pages(here: Here, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    fill(db, "words", {f"word {number}": number for number in range(1, 6)}, observers=[top()])

    for command in ("items", "top"):
        _, rows = rows_of(here, command, "words")
        assert len({row["key"] for row in rows}) == 5
        assert parquet.ParquetFile("rows.parquet").num_row_groups == 3
    assert len(here("items", "words", "--format", "csv", "--limit", "3").out.splitlines()) == 1 + 3
    assert here("items", "words", "--format", "csv", "--limit", "0").out == "key,value\n"
    assert rows_of(here, "items", "words", "--limit", "0") == (["string", "int64"], [])
    assert here("top", "words", "-n", "3", "--format", "csv").out == (
        "key,score\nword 5,5\nword 4,4\nword 3,3\n"
    )


def test_the_score_of_a_function_is_a_number_with_a_fraction(here: Here, db: Any) -> None:
    app = cq.App()
    app.queue(
        "words", observers=[top(score=lambda key, value: Decimal(value), group=lambda key, value: key[0])]
    )
    app.configure(db, "words").add_now(db, {"a1": 3})
    drain(db, "words", app=app)

    assert rows_of(here, "top", "words", "--group", "a") == (
        ["string", "double"],
        [{"key": "a1", "score": 3.0}],
    )
    assert rows_of(here, "top", "words", "--groups") == (["string", "int64"], [{"group": "a", "count": 1}])
    refused = here("top", "words", "--format", "csv")
    assert (refused.status, refused.out) == (2, "")
    assert "is kept in groups" in refused.err


def test_a_file_is_replaced_by_a_complete_one_or_not_at_all(here: Here, db: Any, cli: Cli) -> None:
    fill(db, "words", {"small": 1})
    command = ("items", "words", "--format", "parquet", "--output", "rows.parquet")
    assert here(*command) == (0, "", "wrote 1 row to rows.parquet\n")
    before, files = (cli.folder / "rows.parquet").read_bytes(), set(os.listdir(cli.folder))
    fill(db, "words", {"large": 1 << 63})

    status, out, error = here(*command)

    assert (status, out) == (1, "")
    assert error == (
        "cq: 9223372036854775808 (int), in the row of 'large', does not fit into the column 'value' of type int64: "
        "CSV and JSON lines have no such limit\n"
    )
    assert (cli.folder / "rows.parquet").read_bytes() == before
    assert set(os.listdir(cli.folder)) == files
    assert here("items", "words", "--format", "csv").status == 0


def test_a_file_keeps_its_link_and_its_permissions(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)

    with whole_file(str(link)) as write:
        write(b"after")
        assert target.read_text() == "before"

    assert link.is_symlink()
    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    with (
        pytest.raises(FileNotFoundError, match=r"nothing/file'$"),
        whole_file(str(tmp_path / "nothing/file")),
    ):
        pass


def test_a_terminal_gets_no_parquet_and_printable_csv(cli: Cli, db: Any) -> None:
    fill(db, "words", {"red \x1b[31m": 1})
    ours, theirs = os.openpty()

    refused = cli.run("items", "words", "--format", "parquet", stdout=theirs)
    shown = cli.run("items", "words", "--format", "csv", stdout=theirs)

    os.close(theirs)
    assert refused.status == 2
    assert "a terminal cannot show Parquet: add --output FILE" in refused.err
    assert shown.status == 0
    assert os.read(ours, 1000).decode().splitlines() == ["key,value", r"red \x1b[31m,1"]
    os.close(ours)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json", "--format", "csv"], "--json prints lines of JSON"),
        (["--output", "rows"], "add --format csv, jsonl, parquet or spreadsheet"),
        (["--format", "xml"], "'xml' is not one of"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(here: Here, options: list[str], message: str) -> None:
    ended = here("items", "words", *options)

    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err


def test_parquet_without_its_package_names_the_extra(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    ended = here("items", "words", "--format", "parquet", "--output", "rows")

    assert ended == (
        2,
        "",
        "cq: Arrow and Parquet need the package pyarrow: run `pip install 'combine-queue[arrow]'`\n",
    )
