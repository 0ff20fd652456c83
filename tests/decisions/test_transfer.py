"""The example of transfers: money is conserved, and each transfer is decided once, while workers are killed."""

from __future__ import annotations

import importlib.util
import subprocess
from collections import Counter
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any, Final

import cq
from cq.admin.queue_status import is_drained
from cq.verify.queue import verify
from tests.kit.processes import SECONDS, StartedProcesses

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
ACCOUNTS: Final = ("ada", "bob", "cyd")
PAIRS: Final = list(permutations(ACCOUNTS, 2))
EACH: Final = 100
GROUPS: Final = 20
TOGETHER: Final = 10


def example() -> Any:
    spec = importlib.util.spec_from_file_location("transfer", EXAMPLES / "transfer.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_money_is_conserved_while_workers_are_killed(tmp_path: Path, processes: StartedProcesses) -> None:
    transfer, url, rng = example(), f"embedded:{tmp_path / 'test.db'}", Random(7)
    accounts, db = transfer.accounts, cq.open(url)
    transfer.app.configure_all(db)

    def start() -> subprocess.Popen[bytes]:
        # A worker of the same identity gets the tasks of its killed predecessor at once.
        command = (
            "-m",
            "cq",
            "worker",
            "--store",
            url,
            "--app",
            "transfer:app",
            "--id",
            "test",
            "accounts",
        )
        return processes.python(*command, cwd=EXAMPLES, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(tr: cq.Transaction) -> list[tuple[str, str, int, str]]:
        drawn = [(rng.choice(PAIRS), rng.randint(1, 60)) for _ in range(TOGETHER)]
        return [(payer, payee, n, accounts.ask(tr, payer, ["to", payee, n])) for (payer, payee), n in drawn]

    cq.transact(db, lambda tr: [accounts.ask(tr, each, ["in", EACH]) for each in ACCOUNTS])
    worker, transfers = start(), []
    for number in range(GROUPS):
        transfers += cq.transact(db, ask)
        if number % 10 == 5:
            worker.kill()
            worker.wait()
            worker = start()
        accounts.answer(db, transfers[-1][-1], timeout=SECONDS)
    while not is_drained(db, "accounts", wait=SECONDS):
        pass

    balances = Counter(dict.fromkeys(ACCOUNTS, EACH))
    answers = [accounts.answer(db, each[-1]) for each in transfers]
    for (payer, payee, amount, _), is_paid in zip(transfers, answers, strict=True):
        if is_paid:
            balances.update({payee: amount})
            balances.subtract({payer: amount})
    assert set(answers) == {True, False}
    assert dict(accounts.scan(db)) == balances
    assert balances.total() == EACH * len(ACCOUNTS)
    assert min(balances.values()) >= 0
    assert list(verify(db, "accounts")) == []
