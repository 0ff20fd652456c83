"""Two versions of cq on one store: today's code, and the first commit that stores rows and levels as today's does.

`OLD` is the first one whose passes add updates to windows and roll-ups. Its tree is unpacked from this repository, so
these tests are skipped in a shallow clone and in a source distribution. It runs with the dependencies that are
installed for today's tests, among them one that only it needs, not with those of its time, in processes of its own.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import cq
from cq.config.queue import read_config, write_config
from cq.store.transact import transact
from tests.cli.conftest import Cli, Here
from tests.cli.conftest import cli as cli
from tests.cli.conftest import db as db
from tests.cli.conftest import here as here
from tests.config.versions import needs_another
from tests.kit.processes import ROOT, StartedProcesses, ended, kill, wait_for_line, wait_until
from tests.kit.queues import add, configured, get

OLD: Final = "8102b8b3468a268ebbab728328c14b803ce0820d"
ADD: Final = """
import sys, cq
from cq.windows.window import Window
db, first, last = cq.open(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
words, recent = cq.CombineQueue("words"), Window("recent")
def change(tr):
    words.add(tr, {f"w{number % 5}": number, "all": 1}, once=f"operation {number}")
    recent.add(tr, {"all": number}, once=f"operation {number}")
for number in range(first, last):
    cq.transact(db, change)
    print(number, flush=True)
"""
READ: Final = """
import json, sys, cq
from cq.windows.window import Window
db = cq.open(sys.argv[1])
def items(tr, name):
    return dict(cq.CombineQueue(name).items(tr).items)
def total(tr):
    return Window("recent").get(tr, "all")
print(json.dumps([cq.transact(db, lambda tr: items(tr, "words")), cq.transact(db, total)]))
"""


class Version(StartedProcesses):
    """Starts programs of one version of cq."""

    def __init__(self, tree: Path, url: str) -> None:
        super().__init__(tree, {"PYTHONPATH": str(tree), "CQ_STORE": url})
        self._url = url

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """A command of `cq`."""
        return self.python("-m", "cq", *words)

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        """A worker with this identity, which has started; in place of a dead one it gets its tasks at once."""
        process = self.command("worker", "--id", name)
        wait_for_line(process, b" started: ")
        return process

    def adder(self, first: int, last: int) -> subprocess.Popen[bytes]:
        """Adds a transaction for each of these numbers, and prints the number after its commit."""
        return self.python("-c", ADD, self._url, first, last)

    def read(self) -> Any:
        """The values of both queues, as this version reads them."""
        return json.loads(done(self.python("-c", READ, self._url)))


class Versions(NamedTuple):
    """Two versions on one store."""

    old: Version
    new: Version


def done(process: subprocess.Popen[bytes], status: int = 0) -> str:
    """The output of a process that must end with this status; that of its errors, if it must fail."""
    found = ended(process)
    assert found.status == status, found.err
    return found.err if status else found.out


@pytest.fixture(scope="module")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The old version, as an installation of its wheel has it: its packages and its name and version."""
    git = ["git", "-C", str(ROOT), "archive", OLD, "cq", "observers", "cli"]
    try:
        archive = subprocess.run(git, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs git and the commit {OLD[:7]} of this repository")
    tree = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(tree, filter="data")
    facts = tree / "cq-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: cq\nVersion: 0.1.0\n")
    return tree


@pytest.fixture
def versions(old_tree: Path, cli: Cli) -> Iterator[Versions]:
    """Processes on the store that the fixtures `here` and `db` use."""
    with Version(old_tree, cli.url) as old, Version(ROOT, cli.url) as new:
        yield Versions(old, new)


def check(old: Version, db: Any, here: Here, operations: int) -> None:
    """Both versions read the right values, and today's code finds no difference in values, audit, window and tops."""
    words = {f"w{rest}": sum(range(rest, operations, 5)) for rest in range(5)}
    assert old.read() == [{**words, "all": operations}, sum(range(operations))]
    assert {key: get(db, "words", key) for key in words} == words
    assert get(db, "words", "all") == operations
    assert sum(dict(cq.CombineQueue("recent.1d").scan(db)).values()) == sum(range(operations))
    for name in ("words", "recent", "recent.slices", "recent.window", "recent.1d"):
        found = here("verify", name)
        assert found.status == 0, found.out + found.err


def test_one_version_combines_what_the_other_adds(versions: Versions, db: Any, here: Here) -> None:
    """Each configures a queue; in turns, one adds and the other combines. Repeated operations do not count again."""
    old, new = versions
    done(old.command("configure", "words", "--audit", "--top", "3"))
    assert here("configure", "recent", "--window", "86400/10", "--rollup", "1d:forever").status == 0
    done(old.command("configure", "recent.window", "--top"))

    done(new.adder(0, 30))
    done(old.command("worker", "--drain"))
    done(old.adder(0, 60))
    done(new.command("worker", "--drain"))

    check(old, db, here, 60)


def test_both_add_and_combine_at_once_while_they_are_killed(versions: Versions, db: Any, here: Here) -> None:
    """A worker and an adder of one version die, then those of the other; the adds are repeated from their first one."""
    assert here("configure", "words", "--audit", "--top", "3", "--buckets", "4").status == 0
    assert (
        here("configure", "recent", "--window", "86400/10", "--rollup", "1d:forever", "--buckets", "4").status
        == 0
    )
    assert here("configure", "recent.window", "--top").status == 0
    old = versions.old
    workers = [version.worker(f"worker {number}") for number, version in enumerate(versions)]

    for number, begin in ((0, 0), (1, 200)):
        dying, living = versions[number], versions[1 - number]
        killed, other = dying.adder(begin, begin + 100), living.adder(begin + 100, begin + 200)
        for _ in range(20):
            assert killed.stdout is not None
            assert killed.stdout.readline()
        wait_until(lambda: (get(db, "words", "all") or 0) > begin)  # noqa: B023 - runs at once
        kill(killed)
        kill(workers[number])
        workers[number] = dying.worker(f"worker {number}")
        done(dying.adder(begin, begin + 100))
        done(other)
    for worker in workers:
        worker.terminate()
        done(worker)
    assert here("worker", "--drain").status == 0

    check(old, db, here, 400)


def test_the_old_version_leaves_a_queue_alone_that_needs_what_it_lacks(versions: Versions, db: Any) -> None:
    old = versions.old
    for name in ("words", "recent", "other"):
        configured(db, name, **({"window": "86400/10"} if name == "recent" else {}))
        add(db, name, {"all": 1})
    config = transact(db, lambda tr: read_config(tr, "words"))
    needs_another(db, "words")
    stored = everything(db, "words")
    refused = "queue 'words' needs features that this version of cq lacks ('time travel'): use the version"

    assert refused in done(old.adder(0, 1), status=1)
    assert refused in done(old.command("worker", "--drain", "words"), status=1)

    assert refused in ended(old.command("worker", "--drain")).err
    assert everything(db, "words") == stored
    assert get(db, "other", "all") == 1
    transact(db, lambda tr: write_config(tr, config))
    done(old.command("worker", "--drain"))
    assert get(db, "words", "all") == 1


def everything(db: Any, name: str) -> list[tuple[bytes, bytes]]:
    """All keys and values of a queue."""
    begin = f"cq/q/{name}/".encode()
    return transact(db, lambda tr: [(row.key, row.value) for row in tr.get_range(begin, begin + b"\xff")])
