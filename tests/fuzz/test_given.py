"""Whatever applications and people give to cq is taken, or refused in an error of cq's own."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cq
from cq import admin, links
from cq.config.queue import read_config
from cq.encoding.json_values import key_from_word, split_word, value_from_word
from cq.errors import CqError, InvalidData, NotAStore
from cq.intake.json_lines import add_jsonl
from cq.observers.top.index import top
from cq.store import located
from cq.store.embedded import Database
from cq.store.foundationdb import check_cluster_file
from cq.store.transact import transact
from tests.fuzz.inputs import bounded, few, mutated, nested, searched, values
from tests.fuzz.stores import is_clear

QUEUES: dict[str, dict[str, Any]] = {
    "ints": {},
    "decimals": {"value": "decimal"},
    "floats": {"value": float},
    "anything": {"value": "any", "combiner": "last"},
    "sets": {"value": set, "combiner": "union"},
    "times": {"value": "datetime", "combiner": "maximum"},
    "bytes": {"key": bytes, "value": bytes, "combiner": "first"},
    "pairs": {"key": (str, int), "value": list, "combiner": "last"},
    "counts": {"value": dict, "combiner": "counter"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store with queues of all types."""
    with Database(tmp_path_factory.mktemp("given") / "x.db", power_safe=False) as db:
        for name, wanted in QUEUES.items():
            cq.configure(db, name, buckets=1, **wanted)
        yield db


def tried(what: Any) -> Any:
    """What comes of it, or the error if it is a clear one."""
    try:
        return what()
    except Exception as error:
        if not is_clear(error) or len(str(error)) > 2_000:
            raise
        return error


@few
@given(st.sampled_from(sorted(QUEUES)), values, values, st.one_of(st.none(), values))
def test_keys_updates_and_operations(store: Any, name: str, key: Any, update: Any, once: Any) -> None:
    queue = cq.CombineQueue(name)
    for updates in ([(key, update)], key, [key], [update, key], (key, update)):
        found = tried(lambda: transact(store, lambda tr: queue.add(tr, updates, once=once)))  # noqa: B023
        if found is None:
            tried(lambda: transact(store, lambda tr: queue.get(tr, key, pending=True)))
    for wanted in (key, update):
        tried(lambda: transact(store, lambda tr: queue.get(tr, wanted)))  # noqa: B023
        tried(lambda: transact(store, lambda tr: queue.get_many(tr, [wanted])))  # noqa: B023
        tried(lambda: transact(store, lambda tr: queue.items(tr, after=wanted)))  # noqa: B023
    tried(lambda: transact(store, lambda tr: links.add(tr, name, [(key, update)])))


@few
@given(st.sampled_from(["key", "value", "combiner", "buckets", "observers", "name"]), values)
def test_what_configure_is_given(store: Any, what: str, wanted: Any) -> None:
    if what == "name":
        tried(lambda: cq.configure(store, wanted))
        tried(lambda: cq.CombineQueue(wanted))
    else:
        tried(lambda: cq.configure(store, "configured", **{what: wanted}))
        tried(lambda: admin.delete(store, "configured"))


@few
@given(values)
def test_what_operators_give(store: Any, wanted: Any) -> None:
    for change in (
        lambda: admin.pause(store, "ints", wanted),
        lambda: admin.pause(store, "ints", duration=wanted),
        lambda: admin.resume(store, "ints"),
        lambda: admin.prioritize(store, "ints", wanted),
        lambda: admin.limit(store, "ints", max_age=wanted),
        lambda: admin.limit(store, "ints", max_bytes=wanted),
        lambda: admin.limit(store, "ints", when_full=wanted),
        lambda: admin.limit(store, "ints"),
        lambda: admin.rebucket(store, "ints", wanted),
        lambda: top(wanted),
        lambda: top(every=wanted),
        lambda: top(ranks=wanted),
        lambda: links.table(wanted),
        lambda: links.table("table", schema=wanted),
        lambda: links.table("table", name=wanted),
        lambda: links.table("table", url_env=wanted),
        lambda: links.parse_link(wanted),
        lambda: links.webhook(wanted),
        lambda: links.kafka(wanted),
        lambda: links.queue(wanted),
        lambda: links.app(wanted),
        lambda: admin.put_observer(store, "ints", admin.ObserverSpec("own", wanted)),
        lambda: admin.put_observer(store, "ints", admin.ObserverSpec(wanted, 1)),
        lambda: admin.put_observer(store, "ints", admin.ObserverSpec("own", 1, {"x": wanted})),
        lambda: admin.remove_observer(store, "ints", "own"),
    ):
        tried(change)


UPDATES = [
    b"1", b"[1]", b'"YQ=="', b'"2020-01-01T00:00:00Z"', b'{"x": 1.5}', b"null", b"1e999999999",
    b"1e99999999999999999999",
    b"-1E-99999999999999999999", b"9" * 5_000, b"NaN", b"-Infinity", b'"\\udfff"', b'"sNaN"', b'1, "update": 2', b"",
    b"[" * 5_000 + b"]" * 5_000, b"[" * 150 + b"]" * 150, b'{"a":' * 990 + b"1" + b"}" * 990, b'"1E+1000000000"',
    b'"' + b"x" * 95_000 + b'"', b'[{"a": [1e400]}]', b'"\xff"',
]  # fmt: skip
LINES = [
    *(b'{"key": "a", "update": ' + update + b"}" for update in UPDATES),
    *(b'{"key": ' + key + b', "update": 1}' for key in (b'"\\ud800"', b'"a\\u0000"', b'"\xff"', b"[1]")),
    b'{"key": "' + b"x" * 9_000 + b'", "update": 1}',
    b'{"key": ["a", 1], "update": [1]}', b'{"key": "YQ==", "update": "YQ=="}', b"\xff\xfe\x00", b"\x00", b"[]", b"1",
    b'{"key": "a"}', b"\xef\xbb\xbf{}",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
@pytest.mark.parametrize("name", QUEUES)
def test_a_line_is_added_or_refused_and_named(store: Any, name: str, line: bytes) -> None:
    queue = cq.CombineQueue(name)
    with bounded():
        found = tried(lambda: add_jsonl(store, queue, io.BytesIO(line + b"\n")))
    assert found[0].lines == 1 if isinstance(found, tuple) else str(found).startswith("line 1: ")


def test_lines_that_were_changed_are_added_or_refused(store: Any) -> None:
    for rng in searched(200):
        line = mutated(rng.choice(LINES), rng)
        name = rng.choice(sorted(QUEUES))
        tried(lambda: add_jsonl(store, cq.CombineQueue(name), io.BytesIO(line)))  # noqa: B023


def test_a_line_without_an_end_takes_little_memory(store: Any) -> None:
    class Endless(io.RawIOBase):
        left = 200

        def readable(self) -> bool:
            return True

        def readline(self, size: int | None = -1, /) -> bytes:
            self.left -= 1
            return b"[" * (size or 0) if self.left else b""

    with bounded(), pytest.raises(InvalidData, match="line 1: "):
        add_jsonl(store, cq.CombineQueue("ints"), Endless())  # type: ignore[arg-type]


@settings(few, max_examples=10 * few.max_examples)
@given(
    st.sampled_from(sorted(QUEUES)),
    st.one_of(st.text(), st.sampled_from([json.dumps(nested(900)), "9" * 5_000, "1e999999999", "="])),
)
def test_words_of_a_command_line(store: Any, name: str, word: str) -> None:
    config = transact(store, lambda tr: read_config(tr, name))
    tried(lambda: split_word(config.value, word))
    key = tried(lambda: key_from_word(config.key, word))
    update = tried(lambda: value_from_word(config.value, word))
    tried(lambda: transact(store, lambda tr: cq.CombineQueue(name).add(tr, [(key, update)])))


@settings(few, max_examples=5 * few.max_examples)
@given(
    st.one_of(
        st.text(), st.text().map("embedded:".__add__), st.text().map("fdb:".__add__), st.just("embedded:\x00")
    )
)
def test_urls_of_stores(url: str) -> None:
    tried(lambda: located(url))


@pytest.mark.parametrize(
    "path", ["\x00", "x\x00y", "\ud800", "a" * 1_000, "/", "/nonexistent/x", "~nobody/x", "."]
)
def test_paths_of_stores(path: str) -> None:
    assert isinstance(tried(lambda: cq.open(f"embedded:{path}")), CqError)
    assert isinstance(tried(lambda: check_cluster_file(path)), CqError)


def test_what_is_no_regular_file_is_left_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(NotAStore, match="not a regular file"):
        cq.open(f"embedded:{pipe}")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_cluster_files(tmp_path: Path) -> None:
    file = tmp_path / "fdb.cluster"
    real = b"# ours\ntest:Xq3@10.0.0.1:4500,[::1]:4500:tls\n"
    for rng in searched(200):
        file.write_bytes(mutated(real, rng))
        tried(lambda: check_cluster_file(str(file)))
    for bomb in (
        b"a:b@" + b"1.1.1.1:1," * 9_000 + b"x",
        b"a:b@" + b"a-" * 49_000,
        b"#" * 99_999,
        b":" * 99_999,
    ):
        file.write_bytes(bomb)
        with bounded():
            tried(lambda: check_cluster_file(str(file)))
