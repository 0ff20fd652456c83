"""A stand-in for FoundationDB's binding, for machines without it and for versions that are not installed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class FDBError(Exception):
    """As the binding's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Described ({code})")
        self.code = code


class Future:
    """A future of the binding, as far as its way to wait is replaced."""

    def block_until_ready(self) -> None:
        raise NotImplementedError


class StandIn:
    """A transaction, its options, its database and a future in one: it notes what is asked of it."""

    transact: Callable[[Callable[[Any], Any]], Any]

    def __init__(self, answer: FDBError | None = None) -> None:
        self.answer = answer
        self.log: list[str] = []

    @property
    def options(self) -> StandIn:
        return self

    def set_transaction_timeout(self, milliseconds: int) -> None:
        self.log.append(f"every transaction {milliseconds} ms")

    def create_transaction(self) -> StandIn:
        return self

    def set_timeout(self, milliseconds: int) -> None:
        self.log.append(f"this transaction {milliseconds} ms")

    def get_read_version(self) -> StandIn:
        self.log.append("read version")
        return self

    def commit(self) -> StandIn:
        self.log.append("commit")
        return self

    def wait(self) -> int:
        if self.answer is not None:
            raise self.answer
        return 1


class Binding(ModuleType):
    """What cq uses of the module `fdb`."""

    def __init__(
        self, latest: int | None = 730, selected: int | None = None, refusal: Exception | None = None
    ) -> None:
        super().__init__("fdb")
        if latest is not None:
            self.LATEST_API_VERSION = latest
        self.selected = selected
        self.refusal = refusal
        self.opened: list[str] = []
        self._capi: Any = None
        self.db = StandIn()
        self.impl = self.options = self
        self.knobs: list[str] = []
        self.lacks_knobs = False
        self.FDBError = FDBError
        self.Future = Future

    def is_api_version_selected(self) -> bool:
        return self.selected is not None

    def get_api_version(self) -> int | None:
        return self.selected

    def api_version(self, version: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.selected = version

    def set_knob(self, knob: str) -> None:
        if self.lacks_knobs:
            raise FDBError(2006)
        self.knobs.append(knob)

    def open(self, path: str) -> StandIn:
        self.opened.append(path)
        return StandIn()

    def create_database(self, path: str) -> StandIn:
        return self.db
