"""One question to many cells: who answers in time, and who does not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import cq
from cq.cells import Cells
from cq.cells.ask_all import gather
from cq.store.transact import transact


def test_cells_answer_at_once_and_the_others_are_named(tmp_path: Path) -> None:
    directory: Any = cq.open(f"embedded:{tmp_path}/directory.db")
    with Cells(directory) as cells:
        for name in ("a", "b", "failing", "late"):
            cells.add_cell(name, f"embedded:{tmp_path}/{name}.db")
            transact(cells.store(name), lambda tr, name=name: tr.set(b"name", name.encode()))  # type: ignore[misc]
        both = threading.Barrier(2)
        done = threading.Event()

        def ask(tr: Any) -> bytes:
            name: bytes = tr.get(b"name").value
            if name == b"failing":
                raise ValueError("no idea")
            if name == b"late":
                done.wait()
            else:
                both.wait()  # they are asked at once, or nobody answers
            return name

        found = gather(cells, ask, names=["a", "failing", "gone", "b"], timeout=30)
        late = gather(cells, ask, names=["late"], timeout=0.05)
        done.set()

        assert found.answers == {"a": b"a", "b": b"b"}
        assert found.missing["failing"] == "ValueError: no idea"
        assert found.missing["gone"].startswith("CellNotKnown: the directory has no cell 'gone'")
        assert (late.answers, late.missing) == ({}, {"late": "no answer within 0.05 s"})
        assert gather(cells, lambda tr: 1, timeout=30).answers == dict.fromkeys(
            ("a", "b", "failing", "late"), 1
        )
    directory.close()
