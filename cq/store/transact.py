"""The retry loop: run a function in a transaction, commit, and begin again where the store says so.

It behaves as the official binding's decorator does, and works with databases and transactions of both
stores, the application's own included.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from cq.store.api import error_code, may_have_committed
from cq.store.own_writes import forget_writes

P = ParamSpec("P")
T = TypeVar("T")


def transact(db: Any, fn: Callable[[Any], T]) -> T:
    """Run `fn(tr)` in a transaction of `db`, commit it, and return what `fn` returned.

    `fn` may run several times and must not do anything outside its transaction that a second run would
    repeat. After `commit_unknown_result` (1021) it runs again although the first try may have committed;
    `CombineQueue.add(..., once=...)` is for that.

    Raises whatever `fn` raises, with nothing committed, and the store's `FDBError` for anything that no
    retry will mend, a timeout or a retry limit included.
    """
    return _run(db, fn)[0]


def transact_versioned(db: Any, fn: Callable[[Any], T]) -> tuple[T, int]:
    """As `transact`; returns the version of the commit, too, or -1 when there was nothing to commit."""
    result, tr = _run(db, fn)
    return result, int(tr.get_committed_version())


def transact_noting(db: Any, fn: Callable[[Any], T], in_doubt: Callable[[], object]) -> T:
    """As `transact`; calls `in_doubt` when a try fails that may have committed, or may commit later.

    Neither a retry nor the error in the end can say so: a retry that reads the store at an earlier version does not
    see that commit, and may fail for another reason.
    """
    return _run(db, fn, in_doubt)[0]


def _run(db: Any, fn: Callable[[Any], T], in_doubt: Callable[[], object] = lambda: None) -> tuple[T, Any]:
    """What `fn` returned, and the transaction that has committed."""
    tr = db.create_transaction()
    while True:
        is_committing = False
        try:
            result = fn(tr)
            _refuse_deferred(result)
            is_committing = True
            tr.commit().wait()
        except Exception as error:
            code = error_code(error)
            if is_committing and may_have_committed(code):
                in_doubt()
            if code is None:
                raise
            tr.on_error(code).wait()
            forget_writes(tr)
        else:
            return result, tr


@overload
def transactional(func: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def transactional(*, parameter: str = "tr") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def transactional(func: Callable[..., Any] | None = None, /, *, parameter: str = "tr") -> Callable[..., Any]:
    """Make a function run in a transaction: `@cq.transactional`, or `@cq.transactional(parameter="tx")`.

    The decorated function takes a database or a transaction for its parameter `tr`, by position or by
    keyword. Given a database, it runs as `transact` says: in a transaction of its own, again until that
    has committed. Given a transaction, it is called as it is and nothing is committed, so that
    transactional functions can call each other within one transaction. Its types stay as they are:
    annotate `tr` as `Any` where a type checker shall take both.

    Raises `TypeError` when the function has no such parameter, or is a generator or a coroutine function:
    those would run after the commit. The decorated function raises `TypeError` when it is given neither
    a database nor a transaction, else what `transact` raises.
    """
    if func is None:
        return functools.partial(_decorate, parameter=parameter)
    return _decorate(func, parameter)


def _decorate(func: Callable[P, T], parameter: str) -> Callable[P, T]:
    for deferred in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
        if deferred(func):
            raise TypeError(f"{_name(func)} cannot be transactional: its body would run after the commit")
    index = _position(func, parameter)

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
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

        return transact(given, run)

    return wrapper


def _position(func: Callable[..., Any], parameter: str) -> int:
    """Where `parameter` stands among the positional ones; behind them all when it is keyword-only."""
    parameters = inspect.signature(func).parameters
    kind = parameters[parameter].kind if parameter in parameters else None
    if kind in (None, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise TypeError(f"{_name(func)} cannot be transactional: it has no parameter {parameter!r}")
    return sys.maxsize if kind is inspect.Parameter.KEYWORD_ONLY else list(parameters).index(parameter)


def _refuse_deferred(result: object) -> None:
    # A plain function that returns one looks innocent when it is decorated.
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that it was never awaited
        raise TypeError("a transaction returned a generator or a coroutine: it would run after the commit")


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", repr(func))
