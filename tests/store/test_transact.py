"""`cq.transactional` and `transact`: when they run again, when they commit, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cq
from cq.store.transact import transact, transactional


class FDBError(Exception):
    """Named and shaped as both stores' errors are."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Done:
    """A future that is ready."""

    def __init__(self, error: FDBError | None = None) -> None:
        self.error = error

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


class Transaction:
    """Writes down what is done to it; its commits fail with the codes its database was given."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def get_read_version(self) -> None:
        raise NotImplementedError

    def commit(self) -> Done:
        self.db.log.append("commit")
        return Done(FDBError(self.db.failures.pop(0)) if self.db.failures else None)

    def on_error(self, code: int) -> Done:
        self.db.log.append(f"on_error {code}")
        return Done(None if code in (1007, 1020, 1021) else FDBError(code))


class Database:
    """Makes transactions whose commits fail with these codes, one each, before one succeeds."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.log: list[str] = []

    @property
    def options(self) -> Any:
        raise NotImplementedError

    def create_transaction(self) -> Any:
        self.log.append("create")
        return Transaction(self)


@transactional
def save(tr: Any, text: str, mark: str = "!") -> str:
    """The function's own words."""
    tr.db.log.append(f"run {text}{mark}")
    return text


@pytest.mark.parametrize(
    "call",
    [
        lambda db: save(db, "a"),
        lambda db: save(db, text="a"),
        lambda db: save(tr=db, text="a"),
    ],
)
def test_a_database_by_position_or_keyword_is_run_and_committed(call: Callable[[Database], str]) -> None:
    db = Database()

    assert call(db) == "a"
    assert db.log == ["create", "run a!", "commit"]


def test_a_retryable_error_of_the_commit_runs_the_function_again_in_the_same_transaction() -> None:
    db = Database(1020, 1021)

    save(db, "a")

    again = ["run a!", "commit"]
    assert db.log == ["create", *again, "on_error 1020", *again, "on_error 1021", *again]


def test_a_retryable_error_raised_by_the_function_runs_it_again() -> None:
    db = Database()
    errors = [FDBError(1007)]

    def fn(tr: cq.Transaction) -> int:
        if errors:
            raise errors.pop()
        return 7

    assert transact(db, fn) == 7
    assert db.log == ["create", "on_error 1007", "commit"]


def test_an_error_that_no_retry_mends_reaches_the_caller() -> None:
    db = Database(2101)

    with pytest.raises(FDBError) as caught:
        save(db, "a")

    assert caught.value.code == 2101
    assert db.log == ["create", "run a!", "commit", "on_error 2101"]


def test_any_other_exception_reaches_the_caller_at_once_and_nothing_is_committed() -> None:
    db = Database()

    @transactional
    def fail(tr: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(db)

    assert db.log == ["create"]


def test_a_transaction_is_passed_on_and_left_uncommitted() -> None:
    db = Database()
    tr = Transaction(db)

    assert save(tr, "a") == "a"
    assert save(text="b", tr=tr) == "b"
    assert db.log == ["run a!", "run b!"]


def test_functions_compose_within_one_transaction() -> None:
    db = Database()

    @transactional
    def both(tr: Any) -> None:
        save(tr, "a")
        save(tr, "b")

    both(db)

    assert db.log == ["create", "run a!", "run b!", "commit"]


def test_the_parameter_may_have_another_name_and_any_place() -> None:
    db = Database()

    @transactional(parameter="tx")
    def middle(text: str, tx: Any, mark: str) -> str:
        return save(tx, text, mark)

    @transactional()
    def keyword_only(text: str, *, tr: Any) -> str:
        return save(tr, text)

    assert middle("a", db, "?") == "a"
    assert middle("b", mark="?", tx=db) == "b"
    assert keyword_only("c", tr=db) == "c"  # type: ignore[call-arg,misc] # only of a first parameter
    assert db.log == [
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


def test_methods_can_be_transactional() -> None:
    class Words:
        @transactional
        def save(self, tr: Any, text: str) -> str:
            return save(tr, text)

    db = Database()

    assert Words().save(db, "a") == "a"
    assert db.log == ["create", "run a!", "commit"]


def test_the_function_keeps_its_name_and_documentation() -> None:
    assert (save.__name__, save.__doc__) == ("save", "The function's own words.")


def test_generators_and_coroutines_are_refused_when_they_are_decorated() -> None:
    def rows(tr: Any) -> Iterator[int]:
        yield 1

    async def later(tr: Any) -> None: ...

    for func in (rows, later):
        with pytest.raises(TypeError, match="would run after the commit"):
            transactional(func)


def test_a_function_that_returns_a_generator_or_coroutine_is_refused_before_the_commit() -> None:
    db = Database()

    async def later() -> None: ...

    def generator(tr: Any) -> Any:
        return (key for key in "ab")

    def coroutine(tr: Any) -> Any:
        return later()

    for func in (generator, coroutine):
        with pytest.raises(TypeError, match="would run after the commit"):
            transact(db, func)
    assert db.log == ["create", "create"]


def test_a_function_without_the_parameter_is_refused_when_it_is_decorated() -> None:
    def no_transaction(text: str) -> None: ...

    def anything(*tr: Any) -> None: ...

    for func in (no_transaction, anything):
        with pytest.raises(TypeError, match="no parameter 'tr'"):
            transactional(func)


def test_what_is_neither_database_nor_transaction_is_named() -> None:
    with pytest.raises(TypeError, match="save takes a database or a transaction for 'tr', got: str"):
        save("cq.db", "a")


def test_a_forgotten_argument_is_the_usual_type_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'tr'"):
        save(text="a")  # type: ignore[call-arg]
