"""The findings of `cq doctor`, from a process of its own, which opens the store and the reporting databases itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from cq import runtime
from cq.cli.web.sampling.snapshot import Reader
from cq.errors import StoreError
from cq.observers.monitoring.diagnosis import Check
from cq.store import OpenDatabase

EVERY_SECONDS: Final = 60.0
"""Time between two runs while the page is open, and the time limit of a run."""


class Checks:
    """The latest findings about a store. They are made in a thread: the sampler and the end of the server do not wait.

    Args:
        store: URL of the store; None: the default.
    """

    def __init__(self, store: str | None) -> None:
        options = [] if store is None else ["--store", store]
        self._command = [sys.executable, "-P", "-m", "cq", "doctor", "--json", *options]
        self._begun: float | None = None
        self._is_running = False
        self._found: list[Check] | None = None
        self._problem = ""

    def reader(self) -> Reader:
        """The reader of the findings."""
        return Reader(self._read, 1.0)

    def _read(self, db: OpenDatabase, name: str) -> list[Check] | None:
        """The findings of the last run, None before its end; begins the next run when it is due."""
        now = runtime.monotonic()
        if not self._is_running and (self._begun is None or now >= self._begun + EVERY_SECONDS):
            self._is_running, self._begun = True, now
            runtime.start_thread(self._run, "cq-web-checks")
        if self._problem:
            raise StoreError(self._problem)
        return self._found

    def _run(self) -> None:
        try:
            ended = subprocess.run(  # noqa: S603 - this command itself
                self._command,
                check=False,
                capture_output=True,
                timeout=EVERY_SECONDS,
                stdin=subprocess.DEVNULL,
            )
            self._found = [Check(**json.loads(line)) for line in ended.stdout.splitlines()]
            self._problem = (
                "" if self._found else f"the checks failed: {ended.stderr.decode(errors='replace')[-500:]}"
            )
        except subprocess.TimeoutExpired:
            self._problem = f"the checks have not ended after {EVERY_SECONDS:g} s: run `cq doctor`"
        finally:
            self._is_running = False
