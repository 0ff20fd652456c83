"""`cq.transactional` and `transact`: when they run again, when they commit, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cq
from cq.store.transact import transact, transactional
from tests.kit.faults import WrappedDatabase


class LoggedDatabase(WrappedDatabase):
    """A database that notes what is done to it; its commits fail with the codes it is given, one each."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.failures: list[int] = []
        self.log: list[str] = []

    def create_transaction(self) -> Any:
        self.log.append("create")
        return super().create_transaction()

    def call(self, tr: Any, what: str, *args: Any, **kwargs: Any) -> Any:
        if what in ("commit", "on_error"):
            self.log.append(" ".join([what, *map(str, args)]))
        if what == "commit" and self.failures:
            raise self.error(self.failures.pop(0))
        return super().call(tr, what, *args, **kwargs)


@pytest.fixture
def logged(db: Any) -> LoggedDatabase:
    return LoggedDatabase(db)


@transactional
def save(tr: Any, text: str, mark: str = "!") -> str:
    """The function's own words."""
    tr.database.log.append(f"run {text}{mark}")
    return text


@pytest.mark.parametrize(
    "call",
    [
        lambda db: save(db, "a"),
        lambda db: save(db, text="a"),
        lambda db: save(tr=db, text="a"),
    ],
)
def test_a_database_by_position_or_keyword_is_run_and_committed(
    logged: LoggedDatabase, call: Callable[[Any], str]
) -> None:
    assert call(logged) == "a"
    assert logged.log == ["create", "run a!", "commit"]


def test_a_retryable_error_of_the_commit_runs_the_function_again_in_the_same_transaction(
    logged: LoggedDatabase,
) -> None:
    logged.failures = [1020, 1021]

    save(logged, "a")

    again = ["run a!", "commit"]
    assert logged.log == ["create", *again, "on_error 1020", *again, "on_error 1021", *again]


def test_a_retryable_error_raised_by_the_function_runs_it_again(logged: LoggedDatabase) -> None:
    errors = [logged.error(1007)]

    def fn(tr: cq.Transaction) -> int:
        if errors:
            raise errors.pop()
        return 7

    assert transact(logged, fn) == 7
    assert logged.log == ["create", "on_error 1007", "commit"]


def test_an_error_that_no_retry_mends_reaches_the_caller(logged: LoggedDatabase) -> None:
    logged.failures = [2101]

    with pytest.raises(Exception, match="2101"):
        save(logged, "a")

    assert logged.log == ["create", "run a!", "commit", "on_error 2101"]


def test_any_other_exception_reaches_the_caller_at_once_and_nothing_is_committed(
    logged: LoggedDatabase,
) -> None:
    @transactional
    def fail(tr: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(logged)

    assert logged.log == ["create"]


def test_a_transaction_is_passed_on_and_left_uncommitted(logged: LoggedDatabase) -> None:
    tr = logged.create_transaction()
    logged.log.clear()

    assert save(tr, "a") == "a"
    assert save(text="b", tr=tr) == "b"
    assert logged.log == ["run a!", "run b!"]


def test_functions_compose_within_one_transaction(logged: LoggedDatabase) -> None:
    @transactional
    def both(tr: Any) -> None:
        save(tr, "a")
        save(tr, "b")

    both(logged)

    assert logged.log == ["create", "run a!", "run b!", "commit"]


def test_the_parameter_may_have_another_name_and_any_place(logged: LoggedDatabase) -> None:
    @transactional(parameter="tx")
    def middle(text: str, tx: Any, mark: str) -> str:
        return save(tx, text, mark)

    @transactional()
    def keyword_only(text: str, *, tr: Any) -> str:
        return save(tr, text)

    assert middle("a", logged, "?") == "a"
    assert middle("b", mark="?", tx=logged) == "b"
    assert keyword_only("c", tr=logged) == "c"  # type: ignore[call-arg,misc] # only of a first parameter
    assert logged.log == [
        "create",
        "run a?",
        "commit",
        "create",
        "run b?",
        "commit",
        "create",
        "run c!",
        "commit",
    ]


def test_methods_can_be_transactional(logged: LoggedDatabase) -> None:
    class Words:
        @transactional
        def save(self, tr: Any, text: str) -> str:
            return save(tr, text)

    assert Words().save(logged, "a") == "a"
    assert logged.log == ["create", "run a!", "commit"]


def test_the_function_keeps_its_name_and_documentation() -> None:
    assert (save.__name__, save.__doc__) == ("save", "The function's own words.")


def test_generators_and_coroutines_are_refused_when_they_are_decorated() -> None:
    def rows(tr: Any) -> Iterator[int]:
        yield 1

    async def later(tr: Any) -> None: ...

    for func in (rows, later):
        with pytest.raises(TypeError, match="would run after the commit"):
            transactional(func)


def test_a_function_that_returns_a_generator_or_coroutine_is_refused_before_the_commit(
    logged: LoggedDatabase,
) -> None:
    async def later() -> None: ...

    def generator(tr: Any) -> Any:
        return (key for key in "ab")

    def coroutine(tr: Any) -> Any:
        return later()

    for func in (generator, coroutine):
        with pytest.raises(TypeError, match="would run after the commit"):
            transact(logged, func)
    assert logged.log == ["create", "create"]


def test_a_function_without_the_parameter_is_refused_when_it_is_decorated() -> None:
    def no_transaction(text: str) -> None: ...

    def anything(*tr: Any) -> None: ...

    for func in (no_transaction, anything):
        with pytest.raises(TypeError, match="no parameter 'tr'"):
            transactional(func)


def test_what_is_neither_database_nor_transaction_is_named(logged: LoggedDatabase) -> None:
    with pytest.raises(TypeError, match="save takes a database or a transaction for 'tr', got: str"):
        save("cq.logged", "a")


def test_a_forgotten_argument_is_the_usual_type_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'tr'"):
        save(text="a")  # type: ignore[call-arg]
