"""Settings are the same in the store that they are carried to, and an import does all that it is asked or nothing."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cq
from cq.config.queue import Audit, Flags, queue_names, read_config, read_flags
from cq.config.window import WindowSpec
from cq.errors import CodeMismatch, ConfigurationConflict, InvalidConfiguration, QueueNotConfigured
from cq.observers.builtin import CHECKED, FACTORIES
from cq.observers.export.spec import export_spec
from cq.observers.top.index import top
from cq.store.embedded import Database
from cq.testing import assert_values, drain
from cq.transfer import ImportResult, export_config, from_text, import_config, to_text
from tests.helpers import add

pytest_plugins = ["cq.testing"]


def watch(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that does nothing."""


def length(key: Any, value: Any) -> int:
    """A score of anything."""
    return len(str(value))


def made(config: Any, given: Mapping[str, Any], generation: int) -> Any:
    """A factory of observers that do nothing."""
    return watch


own = cq.Combiner("own", 3, lambda key, values: values[-1])
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
tables = st.text("abcdefg_", min_size=1, max_size=20)
observers = st.lists(
    st.one_of(
        st.builds(top, st.integers(1, 10_000), every=st.integers(0, 5_000), ranks=st.booleans()),
        st.builds(top, st.integers(1, 10), score=st.just(length), version=st.integers(1, 5)),
        st.builds(export_spec, tables, schema=st.none() | tables, url_env=tables),
        st.builds(cq.Observer, st.just("watch"), st.integers(1, 9), st.just(watch)),
        st.builds(
            cq.ObserverSpec,
            st.just("own"),
            st.integers(1, 9),
            st.dictionaries(st.text("xyz", max_size=4), plain, max_size=3),
            st.just(made),
        ),
    ),
    unique_by=lambda observer: observer.name,
    max_size=4,
)
queues = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["str", "int", "bytes", "(str, int)", "(int)", "(bytes, bytes, str)"]),
        "value, combiner": st.sampled_from(
            [("int", "sum"), ("decimal", "maximum"), ("any", own), ("float", own), ("any", "last")]
        ),
        "buckets": st.integers(1, 4096),
        "audit": st.booleans(),
        "window": st.none() | st.sampled_from([600, "600/10", (0.5, 0.05)]),
        "observers": observers,
        "paused": st.none() | st.text(st.characters(codec="utf-8"), max_size=10),
        "seconds": st.none() | st.floats(0.1, 1e9),
        "priority": st.integers(1, 100),
    }
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,10}", fullmatch=True)


@given(st.dictionaries(names, queues, max_size=4))
@settings(max_examples=40)
def test_any_settings_come_back_as_they_were(wanted: dict[str, dict[str, Any]]) -> None:
    app = cq.App()
    with tempfile.TemporaryDirectory() as folder, store(folder, "from") as here, store(folder, "to") as there:
        for name, each in wanted.items():
            value, combiner = each["value, combiner"]
            app.queue(name, combiner=combiner, observers=each["observers"])
            audit = each["audit"] and combiner == "sum"
            given = {"audit": audit, "window": each["window"] if combiner == "sum" else None}
            app.configure(here, name, key=each["key"], value=value, buckets=each["buckets"], **given)
            if each["paused"] is not None:
                cq.pause(here, name, each["paused"], seconds=each["seconds"])
            cq.prioritize(here, name, each["priority"])
        text = to_text(export_config(here))

        assert import_config(there, from_text(text), app, CHECKED) == ImportResult(sorted(wanted), [])

        assert to_text(export_config(there)) == text
        for name in wanted:
            before, after = (cq.transact(db, lambda tr: read_config(tr, name)) for db in (here, there))  # noqa: B023
            assert after == before
            app.code(after, FACTORIES)
        for db in (here, there):
            assert import_config(db, from_text(text)) == ImportResult([], sorted(wanted))  # needs no code


def store(folder: str, name: str) -> Database:
    return Database(Path(folder, name), power_safe=False)


def test_a_queue_that_is_imported_works(cq_db: Any, db: Any, name: str) -> None:
    cq.configure(cq_db, name, observers=[top(5)])
    cq.put_observer(cq_db, name, top(7))  # of a generation that no new queue has
    cq.pause(cq_db, name, "for this test")

    import_config(db, export_config(cq_db), built_in=CHECKED)

    assert cq.transact(db, lambda tr: read_flags(tr, name)).reason == "for this test"
    cq.resume(db, name)
    add(db, name, {"a": 1})
    drain(db, name)
    assert_values(db, name, {"a": 1})
    assert cq.transact(db, lambda tr: read_config(tr, name)).observers[0].settings["n"] == 7


def test_text_is_stable_and_of_one_moment_s_queues_by_name(cq_db: Any) -> None:
    for name in ("b", "c", "a"):
        cq.configure(cq_db, name)
    cq.pause(cq_db, "a", "für diesen Test")

    text = to_text(export_config(cq_db, ["b", "a", "b"]))

    assert text.isascii()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert list(json.loads(text)["queues"]) == ["a", "b"]
    assert json.loads(text)["queues"]["a"] == {
        "audit": False,
        "buckets": 1,
        "combiner": {"name": "sum", "version": 1},
        "flags": {**asdict(Flags()), "paused": True, "reason": "für diesen Test"},
        "key": "str",
        "observers": [],
        "value": "int",
        "window": "",
    }
    with pytest.raises(QueueNotConfigured):
        export_config(cq_db, ["a", "d"])


@pytest.mark.parametrize("carried", [b"bytes", {1: "a number"}, {"a set"}, float("nan")])
def test_settings_that_json_lacks_are_refused(cq_db: Any, carried: Any) -> None:
    app = cq.App()
    app.queue("words", observers=[cq.ObserverSpec("own", 1, {"carried": carried}, made)])
    app.configure(cq_db, "words")

    with pytest.raises(
        InvalidConfiguration, match="JSON cannot carry the settings of observer 'own' of queue 'words'"
    ):
        export_config(cq_db)


# What an import refuses


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (["buckets", 2], "buckets 8 -> 2"),
        (["key", "int"], "key str -> int"),
        (["value", "any"], "value int -> any"),
        (["combiner", "version", 2], "combiner sum@1 -> sum@2"),
        (
            ["observers", []],
            "observers ['top@1(every=1000, group=False, n=5, ranks=False, score=False)'] -> []",
        ),
        (["audit", True], "audit False -> True"),
        (["flags", "paused", True], "flags none -> paused=True, reason='for no reason'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_queue_that_is_there_with_other_settings_stops_it_all(
    db: Any, name: str, change: Any, shown: str
) -> None:
    cq.configure(db, name, buckets=8, observers=[top(5)])
    document = export_config(db, [name])
    document["queues"][f"{name}-0"] = copy.deepcopy(document["queues"][name])
    document["queues"][name]["flags"]["reason"] = "for no reason" if change[0] == "flags" else ""
    put(document["queues"][name], *change)

    with pytest.raises(ConfigurationConflict) as refused:
        import_config(db, document, built_in=CHECKED)

    assert f"queue {name!r} is configured with other settings: {shown}; nothing was changed" in str(
        refused.value
    )
    assert f"{name}-0" not in cq.transact(db, queue_names)


def put(place: Any, *path: Any) -> None:
    """Replace what is at the path by its last part."""
    *way, last, value = path
    for step in way:
        place = place[step]
    place[last] = value


DOCUMENT: dict[str, Any] = {
    "format": 1,
    "queues": {
        "first": {
            "audit": False,
            "buckets": 16,
            "combiner": {"name": "sum", "version": 1},
            "flags": asdict(Flags()),
            "key": "str",
            "observers": [],
            "value": "int",
            "window": "600/10",
        },
        "second": {
            "audit": False,
            "buckets": 16,
            "combiner": {"name": "sum", "version": 1},
            "flags": asdict(Flags()),
            "key": "str",
            "observers": [
                {"built_in": True, "name": "top", "settings": dict(top(5).settings), "version": 1},
                {
                    "built_in": True,
                    "name": "export",
                    "settings": dict(export_spec("words").settings),
                    "version": 1,
                },
            ],
            "value": "int",
            "window": "",
        },
    },
}
SECOND = ["queues", "second"]
OBSERVERS = [*SECOND, "observers"]
URL = "postgresql://me:secret@host/db"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["format", 2], "newer version of cq (format 2, this version knows 1): upgrade"),
        (["format", 0], "to have the format 1, got: 0"),
        (["format", "1"], "expected 'format' of the document to be an integer"),
        (["more", 1], "the document has 'more', which this version of cq does not know"),
        (["queues", []], "expected 'queues' of the document to be an object"),
        (["queues", "no/name", {}], "expected a queue name"),
        ([*SECOND, None], "expected queue 'second' to be an object, got something else"),
        ([*SECOND, {}], "expected queue 'second' to have 'buckets'"),
        ([*SECOND, "speed", 1], "queue 'second' has 'speed', which"),
        ([*SECOND, "buckets", True], "expected 'buckets' of queue 'second' to be an integer"),
        ([*SECOND, "buckets", 5000], "queue 'second': expected buckets to be 1 to 4,096"),
        ([*SECOND, "key", "float"], "queue 'second': expected a key type"),
        ([*SECOND, "value", "complex"], "queue 'second': expected a value type"),
        ([*SECOND, "audit", 1], "expected 'audit' of queue 'second' to be true or false"),
        ([*SECOND, "combiner", "sum"], "expected 'combiner' of queue 'second' to be an object"),
        ([*SECOND, "combiner", "version", 2], "combiner sum@2, this process has sum@1"),
        ([*SECOND, "combiner", "name", "mean"], "combiner mean@1, this process has none of that name: start it with"),
        ([*SECOND, "combiner", "name", "union"], "queue 'second': expected a value type of set"),
        ([*SECOND, "flags", "paused", 1], "expected 'paused' of flags of queue 'second' to be true or false"),
        ([*SECOND, "flags", "priority", 0], "queue 'second': expected a priority of 1 to 100"),
        ([*SECOND, "flags", "until", "now"], "expected 'until' of flags of queue 'second' to be a number"),
        ([*SECOND, "flags", "speed", 1], "flags of queue 'second' has 'speed', which"),
        ([*SECOND, "flags", "reason", "\udcff"], "expected a value that CBOR can carry"),
        ([*OBSERVERS, 0, "top"], "expected each observer of queue 'second' to be an object, got a string"),
        ([*OBSERVERS, 0, "name", "export"], "to have observers of different names, got: export, export"),
        ([*OBSERVERS, 0, "name", "nothing"], "observer nothing@1"),
        ([*OBSERVERS, 0, "built_in", False], "none of that name: start it with --app"),
        ([*OBSERVERS, 0, "settings", {}], "observer 'top' of queue 'second' has settings that are invalid"),
        ([*OBSERVERS, 0, "settings", "n", 0], "expected n of a top to be"),
        ([*OBSERVERS, 0, "settings", "score", True], "observer 'top' of queue 'second' has settings that are invalid"),
        ([*OBSERVERS, 1, "settings", "url", URL], "observer 'export' of queue 'second' has settings that are invalid"),
        ([*OBSERVERS, 1, "settings", "url_env", URL], "expected the name of an environment variable"),
        ([*OBSERVERS, 1, "settings", "url_env", 5], "expected the name of an environment variable"),
        ([*SECOND, "value", "str"], "values of queue 'second' are of type str, which has no scores"),
    ],
    ids=lambda value: str(value[-2:] if isinstance(value, list) else "")[:40],
)  # fmt: skip
def test_what_cq_does_not_know_is_named_and_nothing_is_created(cq_db: Any, change: Any, said: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    put(document, *change)

    with pytest.raises(cq.CqError) as refused:
        import_config(cq_db, document, built_in=CHECKED)

    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert cq.transact(cq_db, queue_names) == []


def test_the_document_of_these_tests_is_one(cq_db: Any) -> None:
    assert import_config(cq_db, DOCUMENT, built_in=CHECKED).created == ["first", "second"]
    assert export_config(cq_db) == DOCUMENT


def test_flags_that_an_older_cq_did_not_know_are_as_usual(cq_db: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["queues"]["first"]["flags"] = {"paused": True, "until": 5}  # some programs write 5.0 so

    import_config(cq_db, document, built_in=CHECKED)

    assert cq.transact(cq_db, lambda tr: read_flags(tr, "first")) == Flags(paused=True, until=5.0)


def test_an_older_document_says_nothing_of_audits_and_windows(cq_db: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    for what in ("audit", "window"):
        del document["queues"]["first"][what]
    document["queues"]["second"] |= {"audit": True, "window": "60/5"}

    import_config(cq_db, document, built_in=CHECKED)

    found = [cq.transact(cq_db, lambda tr: read_config(tr, each)) for each in ("first", "second")]  # noqa: B023
    assert [each.audit for each in found] == [None, Audit(1, 16, True)]
    assert [each.window for each in found] == [None, WindowSpec(60_000, 5_000)]


def test_an_audit_is_imported_only_where_there_can_be_one(cq_db: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["queues"]["first"] |= {"audit": True, "value": "decimal"}

    with pytest.raises(
        InvalidConfiguration, match="queue 'first': expected values of int and the combiner sum"
    ):
        import_config(cq_db, document, built_in=CHECKED)


@pytest.mark.parametrize("document", [None, [], "text", 1])
def test_a_document_is_an_object(cq_db: Any, document: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="expected the document to be an object, got "):
        import_config(cq_db, document)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\x00", "[" * 100_000, "1" * 10_000])
def test_what_is_no_json_is_said(text: str | bytes) -> None:
    with pytest.raises(InvalidConfiguration, match="this is not JSON"):
        from_text(text)


def test_an_application_s_code_is_needed_where_a_queue_is_missing(cq_db: Any, db: Any, name: str) -> None:
    app = cq.App()
    app.queue(name, combiner=own, observers=[cq.Observer("watch", 2, watch), top(5, score=length)])
    app.configure(cq_db, name, value="any")
    document = export_config(cq_db)

    with pytest.raises(CodeMismatch, match="combiner own@3, this process has none"):
        import_config(db, document, built_in=CHECKED)
    older = cq.App()
    older.queue(name, combiner=own, observers=[watch, top(5, score=length)])
    with pytest.raises(CodeMismatch, match="observer watch@2, this process has watch@1"):
        import_config(db, document, older, CHECKED)

    assert import_config(db, document, app, CHECKED).created == [name]
