"""`cq demo words`: exactly the counts of a plain Counter, also after files have changed and processes have died."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq.cli.demos import words
from cq.cli.demos.words import count_words
from cq.intake.documents import Documents
from cq.keys import QueueKeys
from cq.store.transact import transact
from tests.cli.conftest import Cli, Here
from tests.kit.processes import SECONDS, ended
from tests.kit.queues import event_of

MEMORY_MB = 200
SMALL = ("demo", "words", "--workers", "1")
"""A run of little to do."""
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
PACKAGES = [LIBRARY / package for package in ("email", "json", "asyncio")]


def words_of(text: str) -> Counter[str]:
    return Counter(part for part in re.split(r"[\W_]+", text.lower()) if re.fullmatch(r"[^\W\d]+", part))


def counted(*paths: Path) -> tuple[int, Counter[str]]:
    """How many of the files below are UTF-8, and how often each word occurs in them."""
    documents, total = 0, Counter[str]()
    for path in paths:
        for file in filter(Path.is_file, [path, *path.rglob("*")]):
            try:
                text = file.read_bytes().decode()
            except UnicodeDecodeError:
                continue
            documents += 1
            total.update(words_of(text))
    return documents, total


def top_of(total: Counter[str], number: int) -> list[list[Any]]:
    return [[word, count] for word, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))][
        :number
    ]


def values(db: Any) -> dict[str, int]:
    return dict(cq.CombineQueue("demo_words").scan(db))


def folder_of_texts(cli: Cli) -> Path:
    folder = cli.folder / "texts"
    (folder / "deeper").mkdir(parents=True)
    (folder / "one.txt").write_text("Häuser, houses: 3 houses_and 'HOUSES' ΣΊΣΥΦΟΣ\n")
    (folder / "deeper" / "two.txt").write_text("straße STRASSE don't stop\r\nnow" * 100)
    (folder / "empty.txt").write_text("")
    (folder / "binary.bin").write_bytes(b"\xff\xfe words")
    return folder


def test_it_prints_the_counts_and_the_numbers_of_what_it_read_and_ran(cli: Cli, demo_db: Any) -> None:
    folder = folder_of_texts(cli)
    (folder / "picture.png").write_bytes(b"\x89PNG")
    documents, total = counted(folder)

    shown = cli.run(*SMALL, "texts", "--top", "3", "--json")

    assert (shown.status, shown.err) == (0, "")
    (found,) = shown.rows()
    assert [found] == [
        {
            "documents": documents,
            "skipped": 2,
            "updates": sum(len(counted(file)[1]) for file in folder.rglob("*.txt")),
            "distinct": len(total),
            "top": top_of(total, 3),
        }
    ]
    assert values(demo_db) == total


def test_the_result_has_the_top_words_of_the_given_store_and_explains_itself(cli: Cli, db: Any) -> None:
    (cli.folder / "text").write_text("b " * 1500 + "a " * 2000 + "c")

    shown = cli.run(*SMALL, "text", "--top", "2", "--loaders", "1", "--store", cli.url)

    counted, head, *rows, columns, ran, store = shown.out.splitlines()
    assert counted == "3 different words in 1 file, by their counts:"
    assert [line.split() for line in (head, *rows)] == [
        ["word", "count", "weight"],
        ["a", "2,000", "9"],
        ["b", "1,500", "9"],
    ]
    assert columns.startswith("count: ")
    assert re.fullmatch("ran: .* 3 updates in all; 1 worker, which combined them", ran)
    assert store == f"the counts stay in the store: cq top demo_words --store {cli.url}"
    assert shown.err == ""
    assert values(db) == {"a": 2_000, "b": 1_500, "c": 1}
    assert not (cli.folder / "cq-demo.db").exists()


def test_it_leaves_the_store_and_the_table_of_the_application_alone(cli: Cli, here: Here) -> None:
    (cli.folder / "text").write_text("hello hello")
    (cli.folder / "cq.toml").write_text('store = "embedded:own.db"\n')
    for command in (
        ("configure", "words", "--combiner", "sum"),
        ("add", "words", "hello=1"),
        ("worker", "--drain"),
    ):
        assert here(*command).status == 0
    cli.environment["CQ_REPORTING_URL"] = f"sqlite:///{cli.folder / 'own-reporting.db'}"
    before = here("status", "--json").out, here("items", "words").out

    assert cli.run(*SMALL, "text").status == 0

    assert (here("status", "--json").out, here("items", "words").out) == before
    assert sorted(path.name for path in cli.folder.glob("*.db")) == [
        "cli.db",
        "cq-demo-reporting.db",
        "cq-demo.db",
    ]


@pytest.mark.sampled(3, among="demos")
def test_running_it_again_follows_the_files(
    cli: Cli, here: Here, demo_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = folder_of_texts(cli), cli.folder / "other"
    other.mkdir()
    (other / "kept.txt").write_text("kept kept")
    store = ("demo_words", "--store", "embedded:cq-demo.db")
    reporting = f"sqlite:///{cli.folder / 'cq-demo-reporting.db'}"

    def run(*paths: str) -> Any:
        (found,) = cli.run(*SMALL, *paths, "--json").rows()
        total = counted(folder, other)[1]
        with sqlalchemy.create_engine(reporting).connect() as connection:
            rows = connection.execute(sqlalchemy.text("SELECT key, value FROM demo_word_counts")).all()
        assert {row.key: row.value for row in rows} == values(demo_db) == total
        assert (found["distinct"], found["top"]) == (len(total), top_of(total, 20))
        (cloud,) = here("cloud", *store, "--json").rows()
        assert cloud["entries"][0]["score"] == max(total.values())
        return found

    run("texts", "other")
    assert run("texts", "other")["updates"] == 0
    (folder / "one.txt").write_text("houses and words")
    (folder / "deeper" / "two.txt").unlink()
    (folder / "empty.txt").write_bytes(b"\xff")
    (folder / "new.txt").write_text("new New")
    assert run("texts")["documents"] == 2
    kept = values(demo_db)
    (folder / "one.txt").unlink()
    cli.run(*SMALL, str(folder / "deeper"), str(folder / "new.txt"))
    assert values(demo_db) == kept, "what is not below the given paths stays"
    monkeypatch.setenv("CQ_DEMO_REPORTING_URL", reporting)  # as it was by default
    assert here("link", "verify", *store).status == 0


MEASURED = """
import resource, subprocess, sys
with open(sys.argv[1], "wb") as output:
    subprocess.run(sys.argv[2:], stdout=output, stderr=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.sampled(3, among="demos")
def test_it_counts_a_part_of_the_library_in_little_memory(cli: Cli, demo_db: Any) -> None:
    documents, total = counted(*PACKAGES)
    output = cli.folder / "output"
    # A process starts with the memory peak of its parent, so a small one has to be between it and the tests.
    command = [*cli.program, "demo", "words", *map(str, PACKAGES), "--json"]
    usage = ended(cli.python("-c", MEASURED, output, *command))

    found = json.loads(output.read_text())
    assert (found["documents"], found["distinct"], found["top"]) == (documents, len(total), top_of(total, 20))
    assert values(demo_db) == total
    if sys.platform.startswith("linux"):  # elsewhere in other units
        assert int(usage.out) < 1024 * MEMORY_MB, "of the largest of its processes"


def test_a_word_too_long_for_a_key_skips_its_file(cli: Cli, demo_db: Any) -> None:
    (cli.folder / "long").write_text("a " + "x" * 9000)
    (cli.folder / "short").write_text("a b")

    ended = cli.run(*SMALL, "long", "short")

    assert ended.status == 0
    assert "skipped, a key of 9,003 bytes exceeds the limit of 8,000" in ended.err
    assert values(demo_db) == {"a": 1, "b": 1}


# Dying


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes by /proc")


def children(pid: int) -> list[int]:
    """The worker processes of a demo."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in found if b"run_role" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_for_end(descriptor: int) -> None:
    """Wait for the process behind a descriptor of `os.pidfd_open`, also one that is not a child."""
    assert select.select([descriptor], [], [], SECONDS)[0], "a worker has outlived its demo"
    os.close(descriptor)


def wait_for_adds(db: Any, number: int, demo: subprocess.Popen[bytes]) -> None:
    """Wait for so many changes of a bucket's notification, by adds and by workers, or for the demo's end."""
    notification = QueueKeys("demo_words").notification(1, 0)
    for _ in range(number):
        watch = transact(db, lambda tr: tr.watch(notification))
        fired = event_of(watch)
        while not fired.wait(0.2):
            if os.waitid(os.P_PID, demo.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return  # it was faster than this: there is nothing to kill any more


@pytest.mark.sampled(3, among="demos")
@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_its_workers_end_with_it(cli: Cli, demo_db: Any, number: int) -> None:
    cq.configure(demo_db, "demo_words")
    demo = cli.start("demo", "words", str(LIBRARY), stderr=subprocess.DEVNULL)
    while len(workers := children(demo.pid)) < 2:
        assert demo.poll() is None, "it has ended without workers"
        time.sleep(0.01)
    workers = [os.pidfd_open(pid) for pid in workers]
    wait_for_adds(demo_db, 1, demo)

    demo.send_signal(number)

    assert demo.wait(SECONDS) == (130 if number == signal.SIGINT else -number)
    for worker in workers:
        wait_for_end(worker)


@pytest.mark.sampled(3, among="demos")
@linux
@pytest.mark.parametrize("seed", range(2))
def test_the_counts_are_exact_after_deaths_and_a_second_run(cli: Cli, demo_db: Any, seed: int) -> None:
    chance = random.Random(seed)
    cq.configure(demo_db, "demo_words")
    _, total = counted(*PACKAGES)
    demo = cli.start("demo", "words", *map(str, PACKAGES), stderr=subprocess.DEVNULL)
    wait_for_adds(demo_db, chance.randint(1, 20), demo)
    for worker in children(demo.pid)[: chance.randint(1, 2)]:
        os.kill(worker, signal.SIGKILL)
    wait_for_adds(demo_db, chance.randint(0, 20), demo)
    demo.kill()
    demo.wait()
    again = cli.run("demo", "words", *map(str, PACKAGES), "--json")

    assert again.rows()[0]["top"] == top_of(total, 20)
    assert values(demo_db) == total


@pytest.mark.sampled(3, among="demos")
@linux
def test_without_any_worker_left_it_combines_by_itself(cli: Cli, demo_db: Any) -> None:
    cq.configure(demo_db, "demo_words")
    _, total = counted(*PACKAGES)
    demo = cli.start("demo", "words", *map(str, PACKAGES), "--json")
    wait_for_adds(demo_db, 1, demo)
    for worker in children(demo.pid):
        os.kill(worker, signal.SIGKILL)

    demo.communicate(timeout=SECONDS)

    assert demo.returncode == 0
    assert values(demo_db) == total


def test_documents_that_were_half_stored_are_finished_or_forgotten(cli: Cli, demo_db: Any) -> None:
    """As a loader leaves them that dies between two parts of a large document."""
    folder = folder_of_texts(cli)
    cq.configure(demo_db, "demo_words")
    documents = Documents(cq.CombineQueue("demo_words"))
    for name in ("one.txt", "vanished.txt"):
        part = (os.fsencode(folder / name), 3, 1, {"left over": 1})
        assert cq.transact(demo_db, lambda tr: documents._put_part(tr, *part)) == 1  # noqa: B023 - runs at once

    cli.run(*SMALL, "texts")

    assert values(demo_db) == counted(folder)[1]


# Words and files


# Letters whose lower case depends on their neighbours (a final sigma) or is longer, what lower-casing looks
# across (apostrophes, dots, accents, soft hyphens), and what it does not.
SIGMAS, LONGER, ACROSS = "\u03a3\u03c3\u03c2", "\u0130\u0131\u00df", "'\u2019.:\u00b7\u0301\u00ad"
TEXTS = st.text(f"aB{SIGMAS}{LONGER}{ACROSS} 1_-,\n\r\t", max_size=60) | st.text(max_size=60)


@given(TEXTS)
def test_pieces_change_nothing(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Lower-casing a final sigma looks at its neighbours; no cut may come between them."""
    file = tmp_path_factory.getbasetemp() / "text"
    file.write_bytes(text.encode("utf-8", "replace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_CHUNK", 1)

        assert count_words(str(file)) == words_of(file.read_bytes().decode())
