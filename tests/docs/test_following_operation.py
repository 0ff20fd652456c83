"""Pages about operation, each followed literally in an empty folder of its own: every block, in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.conftest import cluster_url
from tests.docs.pages import DOCS, Reader, blocks, steps
from tests.kit.processes import StartedProcesses, ended, wait_for_line

NONE: Mapping[str, str] = MappingProxyType({})


class Page(NamedTuple):
    """A page, and where the reader of the tests differs from a person at a terminal."""

    path: str
    left: Mapping[str, str] = NONE
    """Commands that are not run, by a part of their text, with the reason."""
    options: Mapping[str, str] = NONE
    """Options that answer a command's question, by the beginning of the command."""
    before: Mapping[str, str] = NONE
    """Python that makes the situation that a command is for."""
    has_worker: bool = False
    """Whether the page asks for a worker in another terminal."""


DEMO = "takes half a minute; tests/cli runs the demos"
COLLECTOR = "needs a collector of that name"
SERVER = "needs a PostgreSQL or MySQL server of that name"

OPEN = """
import cq
from cq.encoding.bounds import MAX_INT_BYTES
from cq.observers.top.index import top
from cq.observers.worker.worker import Worker

db = cq.open()
words = cq.CombineQueue("words")
"""
TOO_LARGE = f"""{OPEN}
for _ in range(2):
    db.transact(lambda tr: words.add(tr, {{"hello": 2**(8 * MAX_INT_BYTES) - 1}}))
Worker(db).drain()
"""
CONFIGURE = 'import cq\n\ncq.configure(cq.open(), "words", key=str, value=int, combiner="sum")\n'
COMBINE = f"{OPEN}\nWorker(db).drain()\n"
KEEP_A_TOP = f'{OPEN}\ncq.configure(db, "words", observers=[top()])\n'

PAGES = [
    Page("connect/outbox.md"),
    Page("connect/tables.md", left={"db.example": SERVER}),
    Page(
        "operate/workers.md",
        options={"cq purge": "--yes", "cq delete": "--yes"},
        before={"cq rebucket": COMBINE},
        has_worker=True,
    ),
    Page("operate/verify.md"),
    Page(
        "operate/problems.md",
        options={"cq aside drop": "--yes"},
        before={
            "cq status": CONFIGURE,
            "cq aside list": TOO_LARGE,
            "cq aside drop": COMBINE,
            "cq configure words --rebuild": KEEP_A_TOP,
        },
        has_worker=True,
    ),
    Page(
        "operate/monitor.md",
        left={
            "--metrics": "takes a fixed port, which another program may have",
            "export OTEL": COLLECTOR,
            "--processes 2": COLLECTOR,
        },
        has_worker=True,
    ),
    Page("operate/foundationdb.md", left={"": "needs a FoundationDB cluster: see below"}),
    Page(
        "systems/visits.md",
        left={
            "cq demo": DEMO,
            "--access-log": "needs a log of a web server, and does not end",
            "measure_visits": "takes minutes, on an idle machine",
        },
    ),
    Page("systems/monolith.md"),
    Page("systems/cells.md", left={"cq demo": DEMO}),
    Page("understand/embedded.md"),
]


class Following:
    """Types the commands of a page and runs its programs."""

    def __init__(self, reader: Reader, page: Page, exports: str = "") -> None:
        self._reader, self._page, self._exports = reader, page, exports

    def follow(self) -> None:
        """Save and run the files that the page names, and run its commands, in order."""
        for paragraph, language, block in steps(DOCS / self._page.path):
            if saved := re.search(r"[Ss]ave [^`]*\bas `([^`]+)`", paragraph):
                self._reader.save(saved[1], block)
                if "run it" in paragraph:
                    self._run(saved[1], block)
            elif language == "sh":
                self.type(block)
            else:
                assert language != "python", f"a reader does not know what to do with this:\n{block}"

    def type(self, script: str) -> str:
        """Run the commands of a script one by one; the output of the last one."""
        printed = ""
        for line in script.replace("\\\n", "").splitlines():
            printed = self._type(line)
        return printed

    def _run(self, name: str, program: str) -> None:
        """Run a program; it prints the lines below `# Prints:`."""
        status, printed = self._reader.type(f"{self._exports}python {name}")
        _, _, expected = program.partition("# Prints:\n")
        assert (status, printed) == (0, "".join(re.findall(r"^# (.*\n)", expected, flags=re.MULTILINE)))

    def _type(self, line: str) -> str:
        if any(part in line for part in self._page.left):
            return ""
        for command, program in self._page.before.items():
            if line.startswith(command):
                self._reader.save("before.py", program)
                self._run("before.py", program)
        if line.startswith("export "):
            self._exports += f"{line}\n"
            return ""
        if "--watch" in line:
            with self._reader.running(self._ending(line)):
                return ""
        status, printed = self._reader.type(f"{self._exports}{{ {self._ending(line)}\n}} 2>&1")
        assert (status, "Traceback" in printed) == (0, False), f"{line}\n{printed}"
        return printed

    def _ending(self, line: str) -> str:
        """The line, so that it ends and asks no question."""
        command = line.split(" #")[0].rstrip()
        if command.startswith("cq worker") and "--drain" not in command:
            return f"{command} --drain"
        added = [option for start, option in self._page.options.items() if command.startswith(start)]
        return " ".join([command, *added])


@contextmanager
def running_worker(reader: Reader) -> Iterator[None]:
    """A worker in another terminal, from its registration on."""
    with StartedProcesses(reader.folder) as processes:
        worker = processes.launch(str(reader.folder / ".venv/bin/cq"), "worker", env=reader.environment)
        wait_for_line(worker, b"tasks of this one")
        yield
        worker.terminate()
        ended(worker)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_is_followed_in_a_folder_of_its_own(reader: Reader, page: Page) -> None:
    with ExitStack() as stack:
        if page.has_worker:
            stack.enter_context(running_worker(reader))
        Following(reader, page).follow()


def test_a_link_to_postgresql_is_switched_on_by_the_same_commands(reader: Reader, postgres_url: str) -> None:
    page = Page("connect/tables.md", left={"export CQ_": "another URL"})
    following = Following(reader, page, f"export CQ_REPORTING_URL={shlex.quote(postgres_url)}\n")

    following.type(blocks(DOCS / page.path, "sh")[0])

    assert "4 keys checked, 0 differences" in following.type("cq link verify words")


def follow_views(reader: Reader, program: str) -> None:
    """Run the program of the page of clusters whose transactions only write."""
    assert reader.type("cq configure hits --combiner sum")[0] == 0
    reader.save("view.py", program)
    assert reader.type("python view.py")[0] == 0
    assert reader.type("cq get hits / /about --pending") == (0, "/\t2\n/about\t1\n")


def test_transactions_that_only_write_run_on_an_embedded_store(reader: Reader) -> None:
    follow_views(reader, blocks(DOCS / "operate" / "foundationdb.md", "python")[-1])


@pytest.mark.cluster
def test_the_page_of_clusters_is_followed_on_a_cluster(reader: Reader) -> None:
    """With the cluster file of the tests in the place of the one that the page names."""
    page = DOCS / "operate" / "foundationdb.md"
    url = cluster_url().partition("?")[0]
    reader.environment |= {"CQ_STORE": url, "FDB_CLUSTER_FILE": url.removeprefix("fdb:")}
    first, _ = blocks(page, "sh")
    program, in_a_prefix, only_writing = blocks(page, "python")
    reader.type("cq delete words --yes")  # of an earlier run

    assert reader.type(first.replace("fdb:/etc/foundationdb/fdb.cluster", url))[0] == 0
    assert reader.type("cq configure words --combiner sum")[0] == 0
    reader.save("save.py", program)
    assert reader.type("python save.py")[0] == 0
    assert reader.type("cq get words texts --pending") == (0, "texts\t1\n")
    follow_views(reader, only_writing)
    reader.type("cq delete hits --yes")
    reader.save("shop.py", in_a_prefix)
    _, there = reader.type("python shop.py")
    reader.type(f"cq delete words --yes --store '{there.strip()}'")  # also what an earlier run has left
    status, there = reader.type("python shop.py")
    assert status == 0
    assert reader.type(f"cq get words texts --pending --store '{there.strip()}'") == (0, "texts\t1\n")
    assert reader.type(f"cq delete words --yes --store '{there.strip()}'")[0] == 0
    assert reader.type("cq get words texts --pending") == (0, "texts\t1\n")
