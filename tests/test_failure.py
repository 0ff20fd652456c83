"""Failures of the application's code: what is kept of them, and that it is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.encoding import codec
from cq.encoding.codec import KeyType
from cq.errors import CorruptData
from cq.failure import MAX_TRACE_BYTES, KeyFailure, trace_of
from cq.plain_text import escaped


def _lookup(table: dict[str, int], key: str) -> int:
    return table[key]


def _raised(function: Any, *arguments: Any) -> Exception:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - to look at it
        return error
    raise AssertionError("it raises nothing")


def _recurse(depth: int) -> int:
    return _recurse(depth + 1)


def _with_cause() -> None:
    try:
        _lookup({}, "secret value")
    except KeyError as error:
        raise ValueError("no such thing") from error


def test_the_frames_of_the_application_are_kept_with_file_line_and_source() -> None:
    trace = trace_of(_raised(_lookup, {}, "boom"))

    assert trace[-1].endswith("in _lookup: return table[key]")
    assert "test_failure.py:" in trace[-1]


def test_frames_of_cq_are_left_out() -> None:
    trace = trace_of(_raised(KeyType.parse, "no type"))

    assert trace
    assert all("in _raised" in line for line in trace)


def test_causes_are_kept() -> None:
    trace = trace_of(_raised(_with_cause))

    assert [line for line in trace if line.startswith("caused by")] == ["caused by KeyError: 'secret value'"]
    assert trace[-1].endswith("in _lookup: return table[key]")


def test_no_values_of_variables_are_kept() -> None:
    trace = trace_of(_raised(_lookup, {"password": 1}, "boom"))

    assert not any("password" in line or "boom" in line for line in trace)


def test_a_deep_traceback_is_bounded() -> None:
    trace = trace_of(_raised(_recurse, 0))

    assert len(trace) < 20
    assert sum(len(line.encode()) for line in trace) <= MAX_TRACE_BYTES
    assert any("more frames" in line or line == "..." for line in trace)


@pytest.mark.parametrize("letter", ["\N{SNOWMAN}", "\x1b", "x"])
def test_lines_are_printable_and_bounded_whatever_the_source_is(letter: str) -> None:
    function = f"f{'n' * 300}"
    scope: dict[str, Any] = {}
    file = f"/{letter * 500}.py"
    exec(  # noqa: S102 - a function with a hostile name of its file
        compile(f"def {function}(): raise ValueError({letter * 300!r})", file, "exec"), scope
    )

    def deep(depth: int) -> None:
        scope[function]() if depth == 0 else deep(depth - 1)

    trace = trace_of(_raised(deep, 9))

    assert all(line.isprintable() for line in trace)
    assert sum(len(line.encode()) for line in trace) <= MAX_TRACE_BYTES


@pytest.mark.parametrize("file", ["rules\ud800.py", "rules\0.py", "<rules>", "/none/\u202erules.py"])
def test_code_whose_source_cannot_be_read_is_named_without_it(file: str) -> None:
    code = compile("1 / 0", "rules", "exec").replace(co_filename=file)

    failure = KeyFailure.of(_raised(exec, code, {}))

    assert failure.trace[-1].endswith(f"{escaped(file)}:1 in <module>")
    assert codec.encode(failure.to_stored())


def test_a_failure_is_stored_and_read_again() -> None:
    failure = KeyFailure.of(_raised(_lookup, {}, "boom"), "combiner summary@1").after(5.0, 3)

    read = KeyFailure.from_stored(codec.decode(codec.encode(failure.to_stored())))

    assert read == failure
    assert (read.first, read.tries, read.code) == (5.0, 3, "combiner summary@1")


@given(st.recursive(st.none() | st.integers() | st.text() | st.floats(), st.lists, max_leaves=8))
def test_anything_else_is_corrupt(stored: object) -> None:
    with pytest.raises(CorruptData):
        KeyFailure.from_stored(stored)


def test_failures_of_one_key_are_merged() -> None:
    early, late = KeyFailure("a", first=10.0, last=20.0, tries=2), KeyFailure("b", first=30.0, last=30.0)

    assert late.merged(early) == KeyFailure("b", first=10.0, last=30.0, tries=3)
    assert late.merged(None) == late
    assert late.merged(KeyFailure("unknown")).first == 30.0
