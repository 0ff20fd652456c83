"""No command ends in a traceback, whatever is stored, given or set; and no password is ever shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cq.encoding import codec
from cq.keys import QueueKeys
from cq.keys.membership import worker
from cq.store.transact import transact
from tests.fuzz import stores
from tests.fuzz.commands import KEYS, run, shown
from tests.fuzz.inputs import BOMBS, limit_address_space, mutated, searched
from tests.kit.processes import ROOT, run_program

URL = "postgresql://someone:hunter2@localhost:1/nowhere"
SHORT = 5
"""How many commands are tried on each broken store."""


def looks(name: str) -> list[list[str]]:
    """All commands that only look, and some that do more, on a queue."""
    key = KEYS[name]
    return [
        *shown(name), ["status", name], ["link", "list", name], ["get", name, key, "--json"],
        ["aside", "show", name, key, "--json"], ["aside", "retry", name], ["top", name, "--groups", "--json"],
        ["top", name, "--json"],
        ["settings"], ["pause", name], ["resume", name], ["limit", name, "--none"],
        ["configure", name, "--priority", "5"], ["configure", name, "--top"], ["aside", "drop", name],
        ["purge", name, "--yes", "--no-wait"], ["rebucket", name, "--buckets", "3", "--no-wait"],
        ["link", "rebuild", name], ["link", "verify", name], ["delete", name, "--yes"],
    ]  # fmt: skip


def test_commands_cope_with_whatever_is_stored(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_REPORTING_URL", "sqlite:///reporting.db")
    rows = stores.contents(full)
    for rng in searched(25):
        key, changed = stores.break_one(rows, rng)
        stores.put(full, changed)
        for command in rng.sample(looks(stores.queue_of(key, rng)), SHORT):
            note = f"cq {' '.join(command)}, with {key!r} broken: {changed[key][:60]!r}"
            with stores.clear_errors(note, is_sure=True):
                status, said = run(*command)
            assert status in (0, 1, 2, 3, 4, 5), (command, said)
            assert status not in (1, 2) or said.strip(), command


@pytest.mark.parametrize("bomb", ["the largest int", "a decimal of 10**9 digits", "deep, but not too deep"])
def test_values_of_any_size_are_shown(full: Any, bomb: str) -> None:
    transact(full, lambda tr: tr.set(QueueKeys("pairs").value(codec.encode(["p", 1])), BOMBS[bomb]))

    for command in (
        ["get", "pairs", KEYS["pairs"]],
        ["get", "pairs", KEYS["pairs"], "--json"],
        ["items", "pairs", "--json"],
    ):
        assert run(*command)[0] == 0


@pytest.mark.parametrize("bomb", ["a large int", "a large fraction", "a large decimal"])
def test_a_value_beyond_the_bounds_is_one_line(full: Any, bomb: str) -> None:
    transact(full, lambda tr: tr.set(QueueKeys("pairs").value(codec.encode(["p", 1])), BOMBS[bomb]))

    for command in (["get", "pairs", KEYS["pairs"]], ["items", "pairs", "--json"]):
        status, said = run(*command)
        assert status == 1
        assert "stored bytes are not CBOR" in said
        assert "Traceback" not in said


def test_a_queue_that_cannot_be_read_is_a_line_among_others(full: Any) -> None:
    transact(full, lambda tr: tr.set(QueueKeys("tags").flags, b"\xff"))
    transact(full, lambda tr: tr.set(worker(bytes(8)), bytes(10) + b"\xff"))

    status, said = run("status")

    assert status == 0
    assert "unreadable" in said
    assert "queue 'tags': cannot be read" in said
    assert "words" in said
    assert run("health")[0] == 1
    status, said = run("doctor")
    assert status == 1
    assert "TO DO  queue tags:" in said
    assert "OK     queue other:" in said


WORDS = [
    "",
    "=",
    "a=",
    "=1",
    "a=1=2",
    "a=" + "9" * 5_000,
    "a=1e999999999",
    "a=NaN",
    "a=null",
    "a=[" + "[" * 3_000,
    "\x00=1",
    "a=\ud800",
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(KEYS))
def test_words_of_any_kind_are_added_or_refused(full: Any, name: str) -> None:
    for word in WORDS:
        for command in (
            ["add", name, "--", word],
            ["get", name, "--", word],
            ["aside", "show", name, "--", word],
        ):
            status, said = run(*command)
            assert status in (0, 1, 2, 3), (command, said)
            assert status not in (1, 2) or len(said) < 1_000


URLS = [
    URL, "postgresql://someone:hunter2@", "hunter2", "://hunter2", "nonsense://a:hunter2@b/c",
    "postgresql://someone:hunter2@local host:99999999999/x", "postgresql://someone:hunter2@[::1/x", "mysql://a:hunter2@localhost:1/x",
    "postgresql+nonsense://a:hunter2@b/c", "sqlite:////nonexistent/hunter2/x.db", "postgresql://a:hunter2@localhost:1/%ff?a=%00",
    "mysql://a:b@localhost:1/x?zzz=hunter2", "postgresql://localhost:1/x?password=hunter2", "mysql://a:hunter2@localhost:1/x?port=x",
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("url", URLS, ids=range(len(URLS)))
def test_the_url_of_a_reporting_database_is_never_shown(
    full: Any, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("CQ_REPORTING_URL", url)
    for command in (
        ["link", "init", "words"],
        ["link", "verify", "words"],
        ["doctor"],
        ["link", "list"],
        ["settings"],
    ):
        status, said = run(*command)
        assert status in (0, 1, 2)
        assert "hunter2" not in said, command


NOT_IMPORTED = (
    "a:b:c", "\x00:x", "..:x", "os:nothing", "a" * 5_000 + ":x", "leaves:app", "breaks:app", "deep:app",
)  # fmt: skip
APPS = {
    **dict.fromkeys(("", ":", "x"), "expected --app"),
    **dict.fromkeys(NOT_IMPORTED, "cannot be imported"),
    "os:path": "to be a cq.App",
}


@pytest.mark.parametrize("path", APPS)
def test_what_cannot_be_imported_is_an_error_that_says_so(place: Any, path: str) -> None:
    Path("leaves.py").write_text("raise SystemExit(0)")
    Path("breaks.py").write_text("def")
    Path("deep.py").write_text("def f(): f()\nf()")
    for name in ("leaves", "breaks", "deep"):
        sys.modules.pop(name, None)

    status, said = run("configure", "new", "--app", path)

    assert status == 2
    assert APPS[path] in said
    assert len(said) < 12_000


def test_settings_of_any_kind_are_taken_or_refused(place: Any) -> None:
    real = b'store = "embedded:fuzz.db"\n[worker]\nprocesses = 2\nonly = ["link"]\ngrace = 1.5\n'
    for rng in searched(60):
        Path("cq.toml").write_bytes(mutated(real, rng))
        status, said = run("settings")
        assert status in (0, 2), said
        assert len(said) < 10_000


def test_a_process_stays_small_and_ends_whatever_is_stored(full: Any) -> None:
    """The real command, with its memory and its time limited by the system."""
    rows = stores.contents(full)
    for rng in searched(2):
        broken = {key: rng.choice(list(BOMBS.values()))[:99_000] for key in rng.sample(sorted(rows), 10)}
        stores.put(
            full, {**rows, **{key: value for key, value in broken.items() if not key.endswith(b"/config")}}
        )
        for command in (["status"], ["worker", "other", "--drain"]):
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
            ended = run_program(
                sys.executable, "-m", "cq", *command, env=environment, preexec_fn=limit_address_space
            )
            assert "Traceback" not in ended.err, ended.err
            assert ended.status in (0, 1), ended


def test_a_reason_that_cannot_be_stored_is_refused(full: Any) -> None:
    assert run("pause", "words", "--reason", "\ud800")[0] == 2
