"""The retry loop: runs a function in a transaction, commits, and retries after retryable errors.

It behaves like the official binding's decorator, and works with databases and transactions of both kinds of store,
including those that the application opened itself.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from cq.encoding.codec import shown
from cq.errors import CqError
from cq.store.api import Database, Transaction, error_code, may_have_committed
from cq.store.mistakes import refuse_unless_database, refuse_unless_function
from cq.store.own_writes import forget_writes
from cq.store.reads import WriteOnly
from cq.store.version_chain import VersionChain, chain_of

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
X = TypeVar("X")
X2 = TypeVar("X2")
P2 = ParamSpec("P2")


def transact(db: Database, fn: Callable[[Transaction], T], *, write_only: bool = False) -> T:
    """Run `fn(tr)` in a transaction of `db`, commit it, and return what `fn` returned.

    `fn` may run several times, so it must have no effects outside its transaction that must not be repeated. After
    `commit_unknown_result` (1021) it runs again although the first try may have committed; use
    `CombineQueue.add(..., once=...)` for this case.

    Args:
        db: a database of either store.
        fn: a function of the transaction.
        write_only: whether `fn` only writes, as adds do; then each read in it raises `TypeError`. It must not handle
            errors of cq, which may be outdated: `fn` runs again after the first one that it raises. On a cluster, a
            process that writes often saves one of two requests for each such transaction: see
            `cq.store.version_chain`.

    Raises:
        FDBError: the store's error, if it is not retryable, or after a timeout or the retry limit.
        Exception: any exception of `fn`, without a commit.
    """
    if not write_only:
        return _run(db, fn)[0]
    writing: Callable[[Any], T] = fn  # a write-only transaction has all methods by `__getattr__`
    return _run(db, lambda tr: writing(WriteOnly(tr)), is_chained=True)[0]


def transact_versioned(db: Database, fn: Callable[[Transaction], T]) -> tuple[T, int]:
    """Same as `transact`; also returns the version of the commit, or -1 for a read-only transaction."""
    result, tr = _run(db, fn)
    return result, int(tr.get_committed_version())


def transact_chained(
    db: Database,
    fn: Callable[[Transaction], T],
    in_doubt: Callable[[Exception], object] = lambda error: None,
    *,
    is_at_present: bool = False,
    is_followed: bool = False,
) -> T:
    """Same as `transact`, at the read version of the process's chain; `fn` must not return what it has read.

    Calls `in_doubt` with the error of a try that may have committed, or may commit later. The final result does not
    show this: a retry at an earlier read version does not see that commit, and may fail for another reason.

    Args:
        db: a database of either store.
        fn: a function of the transaction.
        in_doubt: see above.
        is_at_present: whether to begin at a requested read version all the same.
        is_followed: whether later transactions read with a conflict what this one writes: at the version of the chain
            they would fail.
    """
    return _run(db, fn, in_doubt, is_chained=not is_at_present, is_followed=is_followed)[0]


def transact_removal(db: Database, fn: Callable[[Transaction], object], missing: type[CqError]) -> None:
    """Same as `transact`, for a function that raises `missing` if there is nothing to remove.

    Once a try may have committed, this error says that the try has removed it, and is not raised.
    """
    doubts: list[Exception] = []

    def remove(tr: Transaction) -> None:
        try:
            fn(tr)
        except missing:
            if not doubts:
                raise

    _run(db, remove, doubts.append)


def _run(
    db: Database,
    fn: Callable[[Transaction], T],
    in_doubt: Callable[[Exception], object] = lambda error: None,
    *,
    is_chained: bool = False,
    is_followed: bool = False,
) -> tuple[T, Transaction]:
    """The result of `fn`, and the committed transaction."""
    try:
        tr = db.create_transaction()
    except AttributeError:
        refuse_unless_database(db)
        raise
    try:
        return _tried(tr, fn, in_doubt, chain_of(db) if is_chained else None, is_followed), tr
    except Exception:
        raise
    except BaseException:  # ^C or a cancelled task: its traceback may keep the transaction open for long
        tr.cancel()
        raise


def _tried(
    tr: Any,
    fn: Callable[[Any], T],
    in_doubt: Callable[[Exception], object],
    chain: VersionChain | None,
    is_followed: bool,
) -> T:
    """The result of `fn` once the transaction is committed."""
    until, is_old = chain.begin(tr) if chain else (0.0, False)
    while True:
        is_committing = False
        try:
            result = fn(tr)
            _refuse_deferred(result)
            is_committing = True  # an error before this cannot leave the result in doubt
            tr.commit().wait()
        except Exception as error:
            code = error_code(error)
            if is_committing and may_have_committed(code):
                in_doubt(error)
            if code is not None:
                tr.on_error(code).wait()
            elif is_old and isinstance(error, CqError):
                tr.reset()  # at the present version it may not be an error
            else:
                refuse_unless_function(fn)
                raise
            forget_writes(tr)
            until, is_old = chain.end(tr) if chain else 0.0, False
        else:
            if chain and (is_followed or not is_old):
                chain.start(tr.get_committed_version(), until)
            return result


class _Decorator(Protocol):
    """For type checkers: `transactional` with the name of the parameter."""

    def __call__(self, func: Callable[Concatenate[X, P], T], /) -> TransactionalFunction[X, P, T]: ...


class TransactionalFunction(Protocol[X, P, T]):
    """For type checkers: a function after `transactional`. It takes a database, too, in place of its transaction."""

    __name__: str

    def __call__(self, tr: Database | X, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def __get__(self, instance: None, owner: Any) -> TransactionalFunction[X, P, T]: ...
    # A method. The two overloads are the same; each type checker understands one of them.
    @overload
    def __get__(
        self: Callable[Concatenate[S, X2, P2], T], instance: S, owner: Any
    ) -> Callable[Concatenate[Database | X2, P2], T]: ...
    @overload
    def __get__(
        self: TransactionalFunction[S, Concatenate[X2, P2], T], instance: S, owner: Any
    ) -> Callable[Concatenate[Database | X2, P2], T]: ...


@overload
def transactional(func: Callable[Concatenate[X, P], T], /) -> TransactionalFunction[X, P, T]: ...
@overload
def transactional(*, parameter: str = "tr", write_only: bool = False) -> _Decorator: ...
def transactional(
    func: Callable[..., Any] | None = None, /, *, parameter: str = "tr", write_only: bool = False
) -> Any:
    """Make a function run in a transaction: `@cq.transactional`, or `@cq.transactional(parameter="tx")`.

    The decorated function takes a database or a transaction as its parameter `tr`, by position or by keyword. With a
    database, it runs by `transact` in its own transaction, with retries. With a transaction, it is called once without
    a commit, so that transactional functions can call each other within one transaction. For
    type checkers, annotate `tr` as `cq.Transaction` (or `cq.Snapshot`), as the first parameter or the first after
    `self`: then callers can pass a `cq.Database`, too, by position. The types of the other parameters and of the result
    stay. Annotate a `tr` at another place as `Any`.

    Args:
        func: the function.
        parameter: the name of its parameter for the transaction.
        write_only: as for `transact`; a transaction that the function is given may read, as before.

    Raises:
        TypeError: the function has no such parameter, or is a generator or a coroutine function, which would run after
            the commit.

    The decorated function raises `TypeError` if it gets neither a database nor a transaction; otherwise it raises the
    exceptions of `transact`.
    """
    if func is None:
        return functools.partial(_decorate, parameter=parameter, write_only=write_only)
    return _decorate(func, parameter, write_only)


def _decorate(func: Callable[..., T], parameter: str, write_only: bool) -> Callable[..., T]:
    if not callable(func):
        raise TypeError(
            f"expected a function to decorate, got: {shown(func)}; write `@cq.transactional` without a database, or "
            '`@cq.transactional(parameter="tx")`'
        )
    for deferred in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
        if deferred(func):
            raise TypeError(
                f"{_name(func)} cannot be transactional: its body would run after the commit; "
                "write a plain function, without `async` and `yield`"
            )
    index = _position(func, parameter)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        by_position = index < len(args)
        if not by_position and parameter not in kwargs:
            return func(*args, **kwargs)  # raises the usual TypeError, or uses the function's default
        given = args[index] if by_position else kwargs[parameter]
        if not hasattr(given, "create_transaction"):
            if not hasattr(given, "get_read_version"):
                what = f"a database or a transaction for {parameter!r}"
                raise TypeError(f"{_name(func)} takes {what}, got: {type(given).__name__}")
            return func(*args, **kwargs)

        def run(tr: Any) -> T:
            call: Callable[..., T] = func
            if by_position:
                return call(*args[:index], tr, *args[index + 1 :], **kwargs)
            return call(*args, **(kwargs | {parameter: tr}))

        return transact(given, run, write_only=write_only)

    return wrapper


def _position(func: Callable[..., Any], parameter: str) -> int:
    """The index of `parameter` among the positional ones; `sys.maxsize` if it is keyword-only."""
    parameters = inspect.signature(func).parameters
    kind = parameters[parameter].kind if parameter in parameters else None
    if kind in (None, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise TypeError(f"{_name(func)} cannot be transactional: it has no parameter {parameter!r}")
    return sys.maxsize if kind is inspect.Parameter.KEYWORD_ONLY else list(parameters).index(parameter)


def _refuse_deferred(result: object) -> None:
    # The decorator cannot detect a plain function that returns a generator or a coroutine.
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that it was never awaited
        raise TypeError(
            "a transaction returned a generator or a coroutine: it would run after the commit; "
            "write a plain function, without `async` and `yield`"
        )


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", repr(func))
