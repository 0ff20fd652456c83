"""The drill of the page about restores, followed literally: exports stop, and the ways out end without differences."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cq.cli.shared.exit_status import LEFT
from tests.cli.conftest import Here
from tests.cli.conftest import cli as cli
from tests.cli.conftest import here as here
from tests.cli.conftest import impatient as impatient
from tests.docs.pages import file_named, steps
from tests.kit.postgres import PostgresServer
from tests.kit.reporting_databases import postgres as postgres

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "backup.md"
TABLE = dict(
    re.findall(r"^\| (?:back up|restore) \| `(.+?)` \| `(.+?)` \|$", PAGE.read_text(), flags=re.MULTILINE)
)
"""{command for SQLite: command for PostgreSQL}."""


class Drill:
    """Types the commands of the page; commands of cq run in this process."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch, instead: dict[str, str]) -> None:
        self._here, self._monkeypatch, self._instead = here, monkeypatch, instead
        self.shown: list[str] = []

    def follow(self) -> None:
        """Do the steps, and compare the output with the text that the page shows after them."""
        printed = ""
        for paragraph, language, block in steps(PAGE):
            if name := file_named(paragraph):
                Path(name).write_text(block)
            elif language == "text":
                expected = ".*".join(map(re.escape, block.strip().split("...")))
                assert re.search(expected, printed), printed
                self.shown.append(block)
            elif "fdb" not in block:
                drained = LEFT if "status 5" in paragraph else 0
                printed = "".join(self._type(line, drained) for line in block.splitlines())

    def _type(self, line: str, drained: int) -> str:
        """Do a step; `drained` is the status with which a drain must end."""
        line = self._instead.get(line, line)
        words = shlex.split(line)
        if words[0] == "cq":
            done = self._here(*words[1:])
            assert done.status == (drained if words[1] == "worker" else 0), done.err
            return done.out + done.err
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._monkeypatch.setenv(name, self._instead.get(name, value))
            return ""
        subprocess.run(["/bin/sh", "-c", line], check=True, timeout=120)
        return ""


@pytest.fixture
def drill(here: Here, monkeypatch: pytest.MonkeyPatch) -> Drill:
    """On SQLite."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return Drill(here, monkeypatch, {})


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[sa.URL]:
    """A database of its own, as a backup has all schemas of a database."""
    server = sa.create_engine(postgres.url, isolation_level="AUTOCOMMIT")
    name = f"drill_{secrets.token_hex(8)}"
    with server.connect() as conn:
        conn.execute(sa.text(f"CREATE DATABASE {name}"))
    yield sa.make_url(postgres.url).set(drivername="postgresql", database=name)
    with server.connect() as conn:
        conn.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


def table(url: str | sa.URL) -> dict[str, int]:
    """The rows of the exported table."""
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        rows = conn.execute(sa.text("SELECT key, value FROM word_counts")).all()
    engine.dispose()
    return {row.key: row.value for row in rows}


@pytest.mark.usefixtures("impatient")
def test_the_drill_with_sqlite_stops_twice_and_ends_without_differences(drill: Drill) -> None:
    drill.follow()

    assert ["set back" in text for text in drill.shown] == [True, False, True, False, False]
    assert table("sqlite:///report.db") == {"hello": 11, "world": 2}


@pytest.mark.usefixtures("impatient")
def test_the_drill_with_postgresql_stops_twice_and_ends_without_differences(
    here: Here, monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer, database: sa.URL
) -> None:
    programs = postgres.programs
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    url = database.render_as_string(hide_password=False)
    drill = Drill(here, monkeypatch, {**TABLE, "CQ_REPORTING_URL": url})

    assert len(TABLE) == 2
    drill.follow()

    assert ["set back" in text for text in drill.shown] == [True, False, True, False, False]
    assert table(database.set(drivername="postgresql+psycopg")) == {"hello": 11, "world": 2}
