"""No command prints what a terminal obeys, whatever text is stored, given or set; JSON stays exact."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin
from cq.encoding import codec
from cq.errors import CorruptData
from cq.failure import KeyFailure
from cq.keys import VERSIONSTAMP_BYTES, QueueKeys
from cq.observers.scheduling.members import read_members
from cq.queue.set_aside import set_aside
from cq.store.transact import transact
from tests.fuzz import stores
from tests.fuzz.commands import run, shown
from tests.fuzz.inputs import searched

HOSTILE = "\x1b]0;owned\x07\x1b[31m\x9b31m\x7f\r\nforged: OK\x85\u2028\u202e[red]x[/red]:smile:"
"""Escapes of both kinds, line breaks of all kinds, another direction, and markup of the library that prints."""
SHORT = 6
"""How many commands are tried with each text."""


def assert_printable(said: str, *command: str) -> None:
    left = {letter for letter in said if not letter.isprintable()} - {"\n", "\t"}
    assert left == set(), (command, said)
    assert "\nforged" not in said, command


def looks(name: str) -> list[list[str]]:
    """The commands that show what is stored."""
    return [
        *shown(name), ["health", "--json"], ["link", "aside", name, "--json"], ["aside", "show", name, "--json"],
        ["top", name, "--groups"], ["verify", name, "--wait", "0"],
        ["verify", name, "--wait", "0", "--json"], ["configure", name], ["worker", name, "--drain"],
        ["worker", name, "--drain", "--log", "json"],
    ]  # fmt: skip


def texts(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where text is in a decoded value; keys of dicts are left as they are."""
    if isinstance(content, str):
        yield path
    elif isinstance(content, list):
        for at, part in enumerate(content):
            yield from texts(part, (*path, at))
    elif isinstance(content, dict):
        for at, part in content.items():
            yield from texts(part, (*path, at))


def replaced(content: Any, path: tuple[Any, ...]) -> Any:
    """The value with hostile text there."""
    if not path:
        return HOSTILE
    copy = content.copy()
    copy[path[0]] = replaced(content[path[0]], path[1:])
    return copy


def hostile(value: bytes, rng: random.Random) -> bytes | None:
    """A stored value with hostile text in one of its fields; None for one without text."""
    for start in (0, VERSIONSTAMP_BYTES):  # a worker's row begins with a versionstamp
        try:
            content = codec.decode(value[start:])
        except CorruptData:
            continue
        if found := list(texts(content)):
            return value[:start] + codec.encode(replaced(content, rng.choice(found)))
    return None


def test_text_in_any_field_is_printed_safely(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_REPORTING_URL", "sqlite:///reporting.db")
    # Most drains find an export that fails. What they print does not depend on how long they try.
    monkeypatch.setattr("cq.observers.worker.drain.PATIENCE_SECONDS", 0.1)
    rows = stores.contents(full)
    with_text = sorted(key for key, value in rows.items() if hostile(value, random.Random(0)))
    assert len(with_text) > 10
    for rng in searched(25):
        key = rng.choice(with_text)
        changed = hostile(rows[key], rng)
        assert changed is not None
        stores.put(full, {**rows, key: changed})
        for command in rng.sample(looks(stores.queue_of(key, rng)), SHORT):
            status, said = run(*command)
            # 2: what the row says does not fit the command's options; the command itself is right.
            assert status in (0, 1, 2, 3, 4, 5), (command, said)
            assert "Usage:" not in said
            assert_printable(said, *command)


def _made_hostile(stored: Any) -> Any:
    """The stored lists with hostile text in place of errors and states."""
    if isinstance(stored, list):
        return [_made_hostile(part) for part in stored]
    return HOSTILE if stored in ("an error", "stopped") else stored


class TestFields:
    """The fields of which it is known that they came through."""

    @pytest.fixture
    def words(self, place: Any) -> str:
        cq.configure(place, "words", buckets=1)
        return "words"

    def test_what_was_set_aside(self, place: Any, words: str) -> None:
        encoded = codec.encode(HOSTILE)
        hostile = KeyFailure(HOSTILE, HOSTILE, (HOSTILE,), HOSTILE, 1e9, 2e9)
        transact(place, lambda tr: set_aside(tr, QueueKeys(words), encoded, hostile, [HOSTILE]))

        for command in (["aside", "list", words], ["aside", "show", words]):
            status, said = run(*command)
            assert status == 0
            assert_printable(said, *command)
            assert "[red]x[/red]:smile:" in said  # no markup
            status, said = run(*command, "--json")
            assert json.loads(said)["key"] == HOSTILE
            assert_printable(said, *command)

    def test_what_could_not_be_exported(self, full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CQ_REPORTING_URL", "sqlite:///reporting.db")
        rows = stores.contents(full)
        changed = {
            key: codec.encode(_made_hostile(codec.decode(value)))
            for key, value in rows.items()
            if b"an error" in value or b"gstopped" in value
        }
        assert len(changed) == 4
        stores.put(full, {**rows, **changed})

        for command in (
            ["link", "aside", "words"],
            ["link", "list"],
            ["status"],
            ["aside", "list", "words"],
        ):
            status, said = run(*command)
            assert status == 0
            assert_printable(said, *command)
            assert "x1b]0;owned" in said, command

    def test_a_worker(self, full: Any) -> None:
        (member,) = transact(full, read_members)
        facts = {"error": HOSTILE, "version": HOSTILE}
        named = replace(member, host=HOSTILE, queues=frozenset({HOSTILE}))
        named = replace(named, report=replace(named.report, facts=facts, stuck=frozenset({HOSTILE})))
        key = next(key for key, value in stores.contents(full).items() if member.stamp == value[:10])
        transact(full, lambda tr: tr.set(key, member.stamp + named.to_bytes()))

        status, said = run("status")
        assert status == 0
        assert said.count("x1b]0;owned") >= 4
        assert_printable(said, "status")
        _, said = run("status", "--json")
        assert_printable(said, "status", "--json")
        (found,) = json.loads(said.splitlines()[-1])["workers"]
        assert (found["host"], found["error"]) == (HOSTILE, HOSTILE)

    def test_keys_values_and_reasons(self, place: Any) -> None:
        cq.configure(place, "pages", value=str, combiner="last", buckets=1)
        admin.pause(place, "pages", reason=HOSTILE)
        assert run("add", "pages", f"{HOSTILE}={HOSTILE}")[0] == 0
        for command in (["status"], ["doctor"], ["get", "pages", HOSTILE, "--pending"]):
            _, said = run(*command)
            assert "x1b]0;owned" in said or "u001b]0;owned" in said, command
            assert_printable(said, *command)
        admin.resume(place, "pages")
        assert run("worker", "--drain")[0] == 0
        for command in (["items", "pages"], ["get", "pages", HOSTILE]):
            status, said = run(*command)
            assert status == 0
            assert_printable(said, *command)
        assert json.loads(run("items", "pages", "--json")[1]) == {"key": HOSTILE, "value": HOSTILE}

    def test_names_in_a_reporting_database(self, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CQ_REPORTING_URL", "sqlite:///reporting.db")
        assert run("configure", "words", "--export", "words")[0] == 0
        with closing(sqlite3.connect("reporting.db")) as connection, connection:
            connection.execute(f'CREATE TABLE words ("{HOSTILE}" TEXT)')

        status, said = run("link", "init", "words")

        assert status == 1
        assert_printable(said, "link", "init")

    @pytest.mark.parametrize(
        "command",
        [
            ["status", "--store", f"embedded:{HOSTILE}/no.db"],
            ["add", "words", "--jsonl", HOSTILE],
            [HOSTILE],
            ["status", "words", HOSTILE],
            ["get", HOSTILE, HOSTILE],
            ["worker", "--app", f"{HOSTILE}:app"],
            ["worker", "--metrics", HOSTILE],
            ["demo", "words", HOSTILE],
        ],
        ids=lambda command: command[0].partition("\x1b")[0],
    )
    def test_paths_and_arguments(self, words: str, command: list[str]) -> None:
        status, said = run(*command)

        assert status in (1, 2)
        assert "owned" in said
        assert_printable(said, *command)

    def test_settings(self, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("cq.toml").write_text(f"store = {json.dumps(HOSTILE)}\n{json.dumps(HOSTILE)} = 1\n")
        status, said = run("status")
        assert status == 2
        assert_printable(said)
        monkeypatch.setenv("CQ_CONFIG", HOSTILE.replace("\x00", ""))
        status, said = run("status")
        assert status == 2
        assert_printable(said)
