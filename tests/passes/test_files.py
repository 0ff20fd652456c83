"""How much code a pass enters: features that a queue does not have are not on its way."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import cq
from cq.bucket.pass_runner import PassRunner
from tests.kit.queues import add, code_of

PACKAGE: Final = Path(cq.__file__).resolve().parent
MAX_FILES: Final = 15
"""The number only goes down."""


def test_a_pass_over_sums_enters_few_files(db: Any, name: str) -> None:
    cq.configure(db, name, key=str, value=int, combiner="sum", buckets=1)
    runner = PassRunner(db, code_of(db, name), 0)
    add(db, name, {"a": 1, "b": 2})
    runner.combine()  # what is imported, cached or compiled at first
    add(db, name, {"a": 1, "b": 2})
    entered: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in file.parents:
            entered.add(str(file.relative_to(PACKAGE)))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        result = runner.combine()
    finally:
        sys.setprofile(before)

    assert result.reported == 2
    # Other tests of the process may have imported cq.aio, which takes the place of the runtime's calls.
    outside = sorted(each for each in entered if not each.startswith(("store/", "aio/")))
    assert len(outside) <= MAX_FILES, outside
