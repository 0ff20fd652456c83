"""The pages followed literally: each in an empty folder of its own, every block in order, as a reader would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import parse
from tests.conftest import cluster_url
from tests.docs.pages import DOCS, ROOT, Page, Reader, blocks
from tests.kit.processes import StartedProcesses, ended, wait_for_line
from tests.kit.sketches import needs_sketches

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

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

FOLLOWED = [
    Page("connect/index.md"),
    Page("connect/target.md"),
    Page("connect/topics.md"),
    Page("connect/webhooks.md"),
    Page("count/application.md"),
    Page("count/add.md"),
    Page("count/combiners.md", has_sketches=True),
    Page("count/decide.md"),
    Page("count/emitter.md"),
    Page("count/frameworks.md"),
    Page("count/observers.md"),
    Page("count/testing.md"),
    Page("count/time.md", has_sketches=True),
    Page("count/tops.md"),
    Page("systems/feeds.md"),
    Page("systems/tags.md"),
    Page("connect/outbox.md", left={"cq doctor": "says that no worker runs for the outbox"}),
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


@contextmanager
def running_worker(reader: Reader) -> Iterator[None]:
    """A worker in another terminal, from its registration on."""
    with StartedProcesses(reader.folder) as processes:
        worker = processes.launch(str(reader.folder / ".venv/bin/cq"), "worker", env=reader.environment)
        wait_for_line(worker, b"tasks of this one")
        yield
        worker.terminate()
        ended(worker)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.path, marks=[needs_sketches] * page.has_sketches) for page in FOLLOWED],
)
def test_a_page_is_followed_in_an_empty_folder(reader: Reader, page: Page) -> None:
    with ExitStack() as stack:
        if page.has_worker:
            stack.enter_context(running_worker(reader))
        reader.follow(page)


def test_a_link_to_postgresql_is_switched_on_by_the_same_commands(reader: Reader, postgres_url: str) -> None:
    page = Page("connect/tables.md", left={"export CQ_": "another URL"})
    reader.exports = f"export CQ_REPORTING_URL={shlex.quote(postgres_url)}\n"

    reader.follow_commands(page, blocks(DOCS / page.path, "sh")[0])

    assert "4 keys checked, 0 differences" in reader.follow_commands(page, "cq link verify words 2>&1")


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


def test_the_page_of_an_application_has_the_code_of_the_example() -> None:
    declared, *_ = blocks(DOCS / "count/application.md", "python")

    assert declared in (DOCS / "examples/orders.py").read_text()


def commands_shown() -> Iterator[tuple[str, str]]:
    """Each command `cq ...` in the shell blocks of all pages."""
    for page in PAGES:
        if page.name == "cli.md":
            continue
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s*(?:&&|\||;)\s*", line):
                    words = shlex.split(part, comments=True)
                    if words[:1] and Path(words[0]).name == "cq":
                        yield page.name, " ".join(map(shlex.quote, words[1:]))


@pytest.mark.parametrize(("page", "command"), sorted(set(commands_shown())))
def test_commands_that_are_shown_have_the_words_that_the_command_line_takes(page: str, command: str) -> None:
    parse([word for word in shlex.split(command) if not word.startswith((">", "<"))])
