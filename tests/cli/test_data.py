"""`cq configure`, `add`, `get`, `items`, `status`, `pause` and `resume`: what they print and what they do."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.config.flags import read_flags
from tests.cli.conftest import Cli, Here
from tests.kit.clocks import jumping, set_clock
from tests.kit.processes import SECONDS

OWN_COMBINER = """
import cq
joined = cq.Combiner("joined", 1, lambda key, values: "-".join(values))
app = cq.App()
app.queue("notes", combiner=joined)
"""

SLOW_COMBINER = """
import cq
from cq import runtime

def slow(key, values):
    runtime.sleep(6)
    return sum(values)

app = cq.App()
app.queue("words", combiner=cq.Combiner("slow", 1, slow))
"""


def test_configure_shows_what_is_stored_and_does_nothing_twice(here: Here) -> None:
    first = here("configure", "words", "--buckets", "4")
    again = here("configure", "words", "--buckets", "4", "--json")

    assert first.out == "queue 'words': key str, value int, combiner sum@1, buckets 4\n"
    stored = {
        "key": "str",
        "value": "int",
        "combiner": "sum@1",
        "buckets": 4,
        "observers": [],
        "audit": False,
        "window": None,
        "expire": None,
        "rollup": None,
    }
    assert again.rows() == [{"queue": "words", **stored}]


def test_configure_without_an_option_or_with_a_wrong_one_creates_no_store(here: Here, tmp_path: Path) -> None:
    # With the option `--json`, as a flag of the output is no setting either.
    assert here("configure", "words", "--json").status == 1
    assert here("configure", "words", "--combiner", "wrong").status == 2
    assert here("configure", "a/b", "--combiner", "sum").status == 2
    assert list(tmp_path.glob("*.db")) == []

    here("configure", "words", "--combiner", "maximum", "--buckets", "3")
    for wrong in (["wrods"], ["wrods", "--no-top", "--no-expire", "--no-rollup", "--no-audit"]):
        ended = here("configure", *wrong)
        assert (ended.status, ended.out) == (1, "")
        assert "queue 'wrods' is not configured in this store: did you mean 'words'? If not, run" in ended.err

    assert (
        here("configure", "words").out == "queue 'words': key str, value int, combiner maximum@1, buckets 3\n"
    )
    assert [row["name"] for row in here("status", "--json").rows()[:-1]] == ["words"]


def test_an_audit_is_turned_on_and_off(here: Here) -> None:
    assert here("configure", "words", "--audit").out.endswith(", buckets 1, audit on\n")
    assert here("configure", "words", "--json").rows()[0]["audit"] is True
    assert here("configure", "words", "--no-audit", "--json").rows()[0]["audit"] is False

    status, out, error = here("configure", "names", "--value", "str", "--combiner", "last", "--audit")
    assert (status, out) == (2, "")
    assert error == (
        "cq: expected values of int and the combiner sum for an audit, queue 'names' has values of str and the "
        "combiner last\n"
    )


def test_an_expiry_is_turned_on_changed_and_off(here: Here) -> None:
    assert here("configure", "words", "--expire", "30d").out.endswith(", buckets 1, expire 30d\n")
    assert here("configure", "words", "--expire", "1h30m", "--json").rows()[0]["expire"] == "90m"
    assert here("configure", "words").out.endswith(", expire 90m\n")
    assert "expired" in here("status", "--wide").out
    assert here("configure", "words", "--no-expire", "--json").rows()[0]["expire"] is None
    assert "expired" not in here("status", "--wide").out


def test_keys_without_updates_are_deleted_by_a_drain(here: Here) -> None:
    with set_clock() as clock:
        here("configure", "words", "--expire", "10m")
        here("add", "words", "a=1", "b=2")
        here("worker", "--drain")
        clock.now += 610
        here("add", "words", "b=2")
        here("worker", "--drain")
        clock.now += 60
        assert here("items", "words").out == "b\t4\n"


def test_what_is_added_is_read_once_it_is_combined(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")

    assert here("add", "words", "a=1", "b=2", "a=3").out == "added 3 updates to queue 'words'\n"
    assert here("get", "words", "a") == (3, "a\t-\n", "")
    assert here("get", "words", "a", "c", "--pending") == (3, "a\t4\nc\t-\n", "")
    assert here("worker", "--drain").status == 0
    assert here("get", "words", "a", "b") == (0, "a\t4\nb\t2\n", "")
    assert here("get", "words", "a", "--json").rows() == [{"key": "a", "value": 4}]
    assert sorted(here("items", "words").out.splitlines()) == ["a\t4", "b\t2"]
    assert len(here("items", "words", "--json", "--limit", "1").rows()) == 1
    assert here("items", "words", "--limit", "0") == (0, "", "")


def test_a_read_whose_updates_take_too_long_to_combine_ends(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedded store has a transaction that is too old tried again for ever."""
    Path("slow_app.py").write_text(SLOW_COMBINER)
    monkeypatch.setenv("CQ_APP", "slow_app:app")
    with jumping() as clock:
        monkeypatch.setattr(clock, "sleep", lambda seconds: setattr(clock, "passed", clock.passed + seconds))
        here("configure", "words", "--value", "int")
        here("add", "words", "a=1", "b=1")
        here("add", "words", "a=1", "b=1")
        assert here("get", "words", "a", "--pending") == (0, "a\t2\n", "")
        ended = here("get", "words", "a", "b", "--pending")
    assert ended.status == 1
    assert "combining 1 of 2 keys took 6.0 s, and a transaction lives 5 s" in ended.err


def test_an_operation_id_counts_once(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")

    for _ in range(2):
        assert here("add", "words", "a=1", "--once", "order 7", "--json").rows() == [
            {"queue": "words", "added": 1, "refused": 0}
        ]

    assert here("get", "words", "a", "--pending").out == "a\t1\n"
    assert "expected an operation id" in here("add", "words", "a=1", "--once", "").err


@pytest.mark.parametrize(
    ("settings", "word", "key", "shown"),
    [
        (["--key", "int", "--value", "decimal"], "7=0.10", "7", {"key": 7, "value": "0.10"}),
        (
            ["--key", "bytes", "--value", "bytes", "--combiner", "last"],
            "aA===YQ==",
            "aA==",
            {"key": "aA==", "value": "YQ=="},
        ),
        (["--key", "(str, int)"], '["a", 1]=5', '["a",1]', {"key": ["a", 1], "value": 5}),
        (
            ["--value", "set", "--combiner", "union"],
            'a=["y", "x", "y"]',
            "a",
            {"key": "a", "value": ["x", "y"]},
        ),
        (
            ["--value", "datetime", "--combiner", "maximum"],
            "a=2026-01-02T03:04:05+00:00",
            "a",
            {"key": "a", "value": "2026-01-02T03:04:05+00:00"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_type_can_be_written_and_read(
    here: Here, settings: list[str], word: str, key: str, shown: dict[str, Any]
) -> None:
    here("configure", "queue", *settings)

    assert here("add", "queue", word).err == ""
    assert here("get", "queue", key, "--pending", "--json").rows() == [shown]
    here("worker", "--drain")
    assert here("items", "queue", "--json").rows() == [shown]


def test_text_that_would_break_its_line_is_shown_as_json(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    here("add", "words", "two\nlines=1", "\x1b[31mred=2")
    here("worker", "--drain")

    assert sorted(here("items", "words").out.splitlines()) == ['"\\u001b[31mred"\t2', '"two\\nlines"\t1']


def test_reads_that_combine_need_no_observers_of_the_app(here: Here, cli: Cli) -> None:
    (cli.folder / "ranked.py").write_text(
        "import cq\nfrom cq.observers.top import top\napp = cq.App()\n"
        "app.queue('sold', rollup='1m:2d,1h:60d', window=600, observers=[top(10)])\n"
    )
    given = ["--app", "ranked:app"]
    assert here("configure", "sold", *given).status == 0
    here("add", "sold", "nails=2")
    assert here("get", "sold", "nails", "--pending", *given).out == "nails\t2\n"
    assert here("worker", "--drain", *given).status == 0
    assert here("series", "sold", "nails", "--last", "1h", "--merged", *given).out == "nails\t2\n"
    assert here("items", "sold.window", *given).out == "nails\t2\n"


def test_pending_values_of_an_own_combiner_need_the_app(here: Here, cli: Cli) -> None:
    (cli.folder / "notes_app.py").write_text(OWN_COMBINER)
    here("configure", "notes", "--value", "str", "--app", "notes_app:app")
    here("add", "notes", "a=x")
    here("add", "notes", "a=y")

    assert "asks for the combiner joined@1" in here("get", "notes", "a", "--pending").err
    assert here("get", "notes", "a", "--pending", "--app", "notes_app:app").out == "a\tx-y\n"
    assert "asks for the combiner joined@1" in here("worker", "notes", "--drain").err
    assert here("worker", "--drain", "--app", "notes_app:app").status == 0
    assert here("get", "notes", "a").out == "a\tx-y\n"


def test_status_shows_what_waits(here: Here, db: Any) -> None:
    assert "no queue is configured" in here("status").out
    (last,) = here("status", "--json").rows()
    assert (last["workers"], [each["level"] for each in last["findings"]]) == ([], ["note"])
    here("configure", "words", "--buckets", "1")
    here("add", "words", "a=1")
    here("add", "words", "a=1")

    found, workers = here("status", "--json").rows()

    assert (found["name"], found["settings"]["buckets"], found["paused"]) == ("words", 1, False)
    assert (found["waiting_buckets"], found["rows"], found["exact"], found["aside"]) == (1, 2, True, 0)
    assert 0 <= found["oldest_seconds"] < SECONDS
    assert workers["workers"] == []
    assert [each["finding"] for each in workers["findings"]] == ["no_worker"]
    head, row, _, remark, instruction = here("status", "words").out.splitlines()
    columns = "queue|state|oldest|rows|updates/s|set aside|link lag|limits|bytes|buckets|waiting|conflicts"
    assert re.split("  +", head) == columns.split("|")
    values = dict(zip(columns.split("|"), re.split("  +", row), strict=True))
    assert (values["queue"], values["rows"], values["buckets"], values["waiting"]) == ("words", "2", "1", "1")
    assert remark == "no worker is alive"
    assert instruction == "    Start a worker: it combines queued updates with the values: `cq worker`"


def test_a_queue_with_nothing_set_aside_is_one_line(here: Here) -> None:
    here("configure", "words", "--export", "words")
    assert here("aside", "list", "words").out == "nothing is set aside in queue 'words'\n"
    assert here("link", "aside", "words").out == "nothing is set aside in link 'export' of queue 'words'\n"
    for words in (["aside", "list"], ["link", "aside"]):
        assert here(*words, "words", "--json").out == ""


def test_a_pause_is_shown_and_undone(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")

    assert here("pause", "words", "--reason", "moving house").out == "queue 'words' is paused\n"
    shown = here("status").out
    assert shown.splitlines()[1].split()[:2] == ["words", "paused"]
    assert "queue 'words': paused until `cq resume`: moving house" in shown
    assert here("resume", "words", "--json").rows() == [{"queue": "words", "paused": False, "levels": []}]
    assert here("pause", "words", "--for", "2h").status == 0
    assert "paused" in here("status").out
    assert here("pause", "words", "--for", "0.000001s").status == 0  # it is over before anybody looks
    assert "paused" not in here("status").out
    wrong = here("pause", "words", "--for", "soon")
    assert wrong.status == 2
    assert "expected a duration such as 90s, 10m, 1h30m or 30d, got: 'soon'" in wrong.err
    assert here("status").out.splitlines()[1].split()[:2] == ["words", "active"]


# Files of updates


def lines(number: int) -> list[bytes]:
    return [b'{"key": "word %d", "update": %d}\n' % (each % 100, each) for each in range(number)]


def sums(number: int) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in range(number):
        total[f"word {each % 100}"] += each
    return {key: value for key, value in total.items() if value}


def items(here: Here) -> dict[str, int]:
    """All values, once everything is combined."""
    assert here("worker", "--drain").status == 0
    return {row["key"]: row["value"] for row in here("items", "words", "--json").rows()}


def test_lines_of_other_times_are_not_called_added(here: Here, cli: Cli) -> None:
    here("configure", "words", "--rollup", "1m:1h")
    times: tuple[dict[str, Any], ...] = ({}, {"at": 0}, {"at": "9999-12-31"})
    text = "".join(f"{json.dumps({'key': 'a', 'update': 1, **at})}\n\n" for at in times)
    (cli.folder / "updates.jsonl").write_text(text)

    found = here("add", "words", "--jsonl", "updates.jsonl")

    assert found == (
        0,
        "added 1 update to queue 'words'\n",
        "cq: 2 updates are not added: their time is too long ago or in the future\n",
    )
    assert items(here) == {"a": 1}
    again = cli.run("add", "words", "--jsonl", "-", "--json", stdin=text.encode()).rows()
    assert again == [{"queue": "words", "added": 1, "refused": 2}]


def test_standard_input_and_pipes_are_not_remembered(here: Here, cli: Cli) -> None:
    here("configure", "words", "--combiner", "sum")
    for name in ("-", "/dev/stdin"):
        assert cli.run("add", "words", "--jsonl", name, stdin=b"".join(lines(100))).status == 0

    assert items(here) == {key: 2 * value for key, value in sums(100).items()}


def test_a_bad_line_is_named_and_all_before_it_are_added(here: Here, cli: Cli) -> None:
    here("configure", "words", "--combiner", "sum")
    file = cli.folder / "updates.jsonl"
    good = lines(2500)
    file.write_bytes(b"".join(good) + b'{"key": "a"}\n' + good[0])

    ended = here("add", "words", "--jsonl", "updates.jsonl")

    assert ended.status == 2
    assert ended.err == (
        'cq: updates.jsonl, line 2501: expected {"key": ..., "update": ...}, got: \'{"key": "a"}\'; '
        "the 2,500 lines before it are committed\n"
    )
    file.write_bytes(b"".join(good) + b'{"key": "word 1", "update": 1}\n')
    assert here("add", "words", "--jsonl", "updates.jsonl", "--json").rows()[0]["added"] == 1
    assert items(here) == {**sums(2500), "word 1": sums(2500)["word 1"] + 1}


DIE_AT_BATCH = """
import os, signal
from cq.intake import json_lines

add, left = json_lines.add_lines, [{batch}]

def add_or_die(*args):
    left[0] -= 1
    if left[0] == 0 and not {committed}:
        os.kill(os.getpid(), signal.SIGKILL)
    found = add(*args)
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

json_lines.add_lines = add_or_die
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_load_that_dies_at_a_batch_goes_on_there(here: Here, cli: Cli, batch: int, committed: bool) -> None:
    """Before the batch is committed, and after that, but before anything else is done."""
    here("configure", "words", "--combiner", "sum")
    (cli.folder / "updates.jsonl").write_bytes(b"".join(lines(9000)))
    (cli.folder / "sitecustomize.py").write_text(DIE_AT_BATCH.format(batch=batch, committed=committed))
    cli.environment["PYTHONPATH"] = f"{cli.folder}{os.pathsep}{cli.environment['PYTHONPATH']}"
    died = cli.run("add", "words", "--jsonl", "updates.jsonl")

    added = here("add", "words", "--jsonl", "updates.jsonl", "--json").rows()[0]["added"]

    assert died.status == -signal.SIGKILL
    assert added == 9000 - 2000 * (batch if committed else batch - 1)
    assert items(here) == sums(9000)


def test_json_that_is_printed_can_be_added(here: Here, cli: Cli) -> None:
    """`cq items --json` is the other side of `cq add --jsonl`, but for the name of the value."""
    here("configure", "words", "--combiner", "sum")
    here("add", "words", "a=1", "grün=2", "two\nlines=3")
    here("worker", "--drain")
    rows = here("items", "words", "--json").rows()
    Path(cli.folder / "copy.jsonl").write_text(
        "".join(json.dumps({"key": row["key"], "update": row["value"]}) + "\n" for row in rows)
    )
    here("configure", "copy", "--combiner", "sum")
    here("add", "copy", "--jsonl", "copy.jsonl")
    here("worker", "--drain")

    assert here("items", "copy", "--json").rows() == rows


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--feed nothing", "feed 'nothing' is not configured"),
        ("--value str --combiner last --top", "of type str, which has no scores"),
        ("--priority 101", "expected a priority of 1 to 100"),
        ("--link report=csv:a", "with a KIND of sql, webhook, kafka, queue, app"),
    ],
)
def test_a_refused_configuration_changes_nothing(here: Here, options: str, said: str) -> None:
    here(
        "configure",
        "old",
        *(["--value", "str", "--combiner", "last"] if "str" in options else ["--combiner", "sum"]),
    )
    before = here("status", "old", "--json").rows()[0]["settings"]

    for name in ("new", "old"):
        ended = here("configure", name, *options.split())
        assert (ended.status, ended.out) == (1 if "is not configured" in said else 2, "")
        assert said in ended.err

    assert "is not configured" in here("status", "new").err
    assert here("status", "old", "--json").rows()[0]["settings"] == before


def test_all_options_of_one_command_are_applied_at_once(here: Here, db: Any) -> None:
    here("configure", "words", "--export", "counts")

    here("configure", "words", "--no-link", "export", "--top", "5", "--priority", "20", "--rebuild", "export")

    row = here("status", "words", "--json").rows()[0]
    assert [each.partition("(")[0] for each in row["settings"]["observers"]] == ["top@1"]
    assert cq.transact(db, lambda tr: read_flags(tr, "words")).priority == 20


def test_a_window_a_roll_up_and_an_expiry_are_configured_changed_and_removed(here: Here) -> None:
    ended = here(
        "configure", "views", "--window", "600/10", "--rollup", "1m:2d,1d:forever", "--expire", "30d"
    )
    first, window, periods = ended.out.splitlines()
    assert first.endswith(", buckets 1, window 10m/10s, expire 30d, rollup 1m:2d,1d:forever")
    assert window == (
        "views.window: values of the last 600 s; `cq get views.window KEY` reads them, and "
        "`cq configure views.window --top` keeps its top"
    )
    assert periods == "views.1m, views.1d: values by period; `cq series views KEY` reads them"
    here("add", "views", "/=3")
    here("worker", "--drain", "views")
    for change, left in (
        (["--window", "60/1"], "window 1m/1s, expire 30d, rollup 1m:2d,1d:forever"),
        (["--rollup", "1m:1d"], "window 1m/1s, expire 30d, rollup 1m:1d"),
        (["--no-expire"], "window 1m/1s, rollup 1m:1d"),
        (["--window", "none"], "rollup 1m:1d"),
        (["--rollup", "none"], "buckets 1"),
    ):
        assert here("configure", "views", *change).out.splitlines()[0].endswith(f", {left}")
    assert here("get", "views", "/").out == "/\t3\n"
    assert "is not configured" in here("get", "views.window", "/").err


@pytest.mark.parametrize(("combiner", "ever", "recent"), [("sum", 14, 5), ("maximum", 9, 3)])
def test_a_window_is_read_while_no_worker_runs(here: Here, combiner: str, ever: int, recent: int) -> None:
    here("configure", "views", "--combiner", combiner, "--window", "600/10")
    with set_clock() as clock:
        clock.now = time.time() - 1_000
        here("add", "views", "/=9", "/old=9")
        here("worker", "--drain", "views")
    here("add", "views", "/=3", "/=2")

    pending = here("get", "views.window", "/", "/old", "--pending")
    assert (pending.status, pending.out) == (3, f"/\t{recent}\n/old\t-\n")
    assert here("get", "views.window", "/").out == "/\t-\n"
    here("worker", "--drain", "views")
    assert here("get", "views", "/").out == f"/\t{ever}\n"
    assert here("get", "views.window", "/").out == here("items", "views.window").out == f"/\t{recent}\n"
    assert here("items", "views.window", "--format", "csv").out == f"key,value\n/,{recent}\n"


def test_dropping_asks_and_a_key_without_updates_set_aside_is_an_error(here: Here, cli: Cli) -> None:
    (cli.folder / "refusing.py").write_text(
        "import cq\napp = cq.App()\n\n"
        "def refuse(tr, changes):\n    if any(change.key == 'bad' for change in changes):\n        raise ValueError\n\n"
        "app.queue('words', observers=[refuse])\n"
    )
    here("configure", "words", "--app", "refusing:app")
    here("add", "words", "bad=1", "good=1")
    assert here("worker", "--drain", "--app", "refusing:app").status == 0

    for command in ("retry", "drop"):
        unknown = here("aside", command, "words", "good", *(["--yes"] if command == "drop" else []))
        assert unknown.status == 1
        assert "nothing was set aside of key 'good' in queue 'words'" in unknown.err
    asked = here("aside", "drop", "words")
    assert asked.status == 2
    assert "drop everything that was set aside in queue 'words'? Confirm with --yes" in asked.err
    assert (
        here("aside", "retry", "words", "bad").out == "retried 1 update or missed report of queue 'words'\n"
    )
    assert here("worker", "--drain", "--app", "refusing:app").status == 0
    assert here("aside", "drop", "words", "bad", "--yes").out == "dropped 1 piece of queue 'words'\n"
    assert here("aside", "list", "words", "--json").rows() == []


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["add", "wrods", "a=1"], "did you mean 'words'? If not, run `cq configure wrods --combiner"),
        (["status", "wrods"], "did you mean 'words'?"),
        (["feed", "read", "chta", "ann"], "did you mean 'chat'? If not, run `cq feed configure chta`, or"),
        (["configure", "visits", "--combiner", "maximun"], "did you mean 'maximum'?"),
        (["worker", "--only", "lnik"], "did you mean 'link'?"),
    ],
)
def test_a_misspelled_name_gets_the_nearest_one_in_one_line(
    here: Here, command: list[str], hint: str
) -> None:
    assert here("configure", "words", "--combiner", "sum").status == 0
    assert here("feed", "configure", "chat").status == 0

    found = here(*command)

    assert (found.status, found.out) == (2 if command[0] in ("configure", "worker") else 1, "")
    assert hint in found.err
    assert found.err.count("\n") == 1
