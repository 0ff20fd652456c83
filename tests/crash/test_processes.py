"""Processes of all kinds are killed, stopped and continued, and PostgreSQL too: in the end every update counted once.

Adders, workers that combine and export, and the reporting database's server go down and come back at random.
"""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.observers.export.spec import export_spec
from cq.testing import assert_drained, assert_values
from tests.cli.conftest import Cli
from tests.crash.adder import VIEWS, WORDS
from tests.crash.processes import Crash, expected_values, table_of
from tests.postgres import PostgresServer
from tests.reporting_databases import new_schema


@pytest.fixture
def urls(postgres: PostgresServer, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment variables that name the two reporting databases, by queue."""
    variables = {WORDS: "CQ_TEST_WORDS_URL", VIEWS: "CQ_TEST_VIEWS_URL"}
    found = {WORDS: new_schema(postgres.url), VIEWS: f"sqlite:///{cli.folder / 'views.db'}"}
    for queue, variable in variables.items():
        monkeypatch.setenv(variable, found[queue])
        cli.environment[variable] = found[queue]
    return variables


def test_whatever_is_killed_or_stopped_every_update_counts_once(
    cli: Cli, db: Any, postgres: PostgresServer, urls: dict[str, str], seed: int
) -> None:
    for queue, key in ((WORDS, str), (VIEWS, int)):
        cq.configure(db, queue, key=key, buckets=3, observers=[export_spec(queue, url_env=urls[queue])])
        assert cli.run("export", "init", queue).status == 0
    added = Crash(cli, postgres, seed).run()

    ended = cli.run("worker", "--drain")
    assert ended.status == 0, ended.err
    for queue, values in expected_values(seed, added).items():
        assert_values(db, queue, values)
        assert table_of(db, queue) == values
        verified = cli.run("export", "verify", queue, "--json")
        assert verified.status == 0, verified
        assert verified.rows()[-1]["rows"] == len(values)
    assert_drained(db)
