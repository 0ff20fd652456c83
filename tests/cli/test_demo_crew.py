"""The processes of demos: killed and begun anew until their work is done, and told apart from those that fail."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from threading import Event

import pytest

import cq
from cq.cli.demos.harness import DemoCrew, DemoFailed, run_worker
from cq.cli.shared.processes import ProcessFailed
from cq.errors import InvalidData
from cq.keys import membership as workerkeys
from tests.kit.processes import run_code


@dataclass(frozen=True)
class Appender:
    """Appends lines to a file, and goes on after those that are there."""

    path: Path
    lines: int

    def run(self, stop: Event) -> None:
        with self.path.open("a+") as file:
            file.seek(0)
            for number in range(len(file.readlines()), self.lines):
                file.write(f"{number}\n")
                file.flush()
                stop.wait(0.002)


def failing(stop: Event) -> None:
    raise InvalidData("told")


def test_processes_that_are_killed_go_on_until_all_is_done(tmp_path: Path) -> None:
    roles = {name: Appender(tmp_path / name, 2_000).run for name in ("one", "two")}
    with DemoCrew(roles, Random(1), kill_every=0.5) as crew:
        crew.run(lambda: crew.kills >= 2, seconds=60)
        crew.spare()
        crew.run(lambda: crew.ended == {"one", "two"}, seconds=60)
    for name in roles:
        assert (tmp_path / name).read_text().split() == [str(number) for number in range(2_000)]


def test_a_process_that_fails_ends_the_demo() -> None:
    with (
        pytest.raises(ProcessFailed, match="'bad' has failed: told"),
        DemoCrew({"bad": failing}, Random(1)) as crew,
    ):
        crew.run(lambda: False, seconds=60)


def test_what_takes_too_long_fails() -> None:
    with pytest.raises(DemoFailed, match="not done"), DemoCrew({}, Random(1)) as crew:
        crew.run(lambda: False, seconds=0.0)


def test_workers_combine_and_stop_in_good_order(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/store.db"
    db = cq.open(url)
    cq.configure(db, "words", key=str, value=int, combiner="sum")
    queue = cq.CombineQueue("words")
    cq.transact(db, lambda tr: queue.add(tr, {"a": 2}))
    with DemoCrew({"worker": partial(run_worker, url=url, queues=[])}, Random(1)) as crew:
        crew.run(lambda: cq.transact(db, lambda tr: queue.get(tr, "a")) == 2, seconds=60)
    # It has signed off, which one that is killed does not.
    assert not cq.transact(db, lambda tr: tr.get_range(*workerkeys.workers()).to_list())


HOLDING = """
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from cq.cli.demos.harness import DemoCrew

@dataclass(frozen=True)
class Holder:
    path: Path

    def run(self, stop):
        semaphore = multiprocessing.Semaphore(0)  # as the binding takes for each thread that waits
        is_second = self.path.exists()
        self.path.touch()
        if not is_second:
            stop.wait()

def main(path):
    with DemoCrew({"holder": Holder(path).run}, Random(1)) as crew:
        crew.run(path.exists, seconds=60)
        crew._kill("holder")
        crew.run(lambda: "holder" in crew.ended, seconds=60)
"""


def test_a_killed_process_leaves_no_semaphore(tmp_path: Path) -> None:
    (tmp_path / "holding.py").write_text(HOLDING)

    code = "import holding; from pathlib import Path; holding.main(Path('held'))"
    assert run_code(code, cwd=tmp_path) == (0, "", "")
