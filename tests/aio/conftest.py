"""Databases of both stores for tasks, and event loops."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

import cq
import cq.aio


@pytest.fixture
def words(db: Any, name: str) -> cq.aio.CombineQueue[str, int]:
    """A queue of sums."""
    cq.configure(db, name, key=str, value=int, combiner="sum")
    return cq.aio.CombineQueue(name)


@pytest.fixture
def adb(db: Any) -> cq.aio.AsyncDatabase:
    """A database for tasks."""
    return cq.aio.AsyncDatabase(db)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are coroutines, and those that run some, in event loops of both kinds."""
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("run")
    if "run" in metafunc.fixturenames:
        metafunc.parametrize("run", ["asyncio", "uvloop"], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine by the fixture `run`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    pyfuncitem._request.getfixturevalue("run")(pyfuncitem.obj(**given))
    return True


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine in a new event loop of each kind, and raises what the loop would only log."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        logged: list[Any] = []

        async def main() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
            return await coroutine

        with asyncio.Runner(loop_factory=factory) as runner:
            result = runner.run(main())
        assert logged == []
        return result

    return run
