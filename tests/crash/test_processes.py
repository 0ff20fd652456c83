"""Processes of all kinds are killed, stopped and continued, and PostgreSQL too: in the end all counted once.

Every update is added, every request decided and every message delivered once. Adders, workers that combine and send,
and the reporting database's server go down and come back at random.
"""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.observers.links.spec import table
from tests.cli.conftest import Cli
from tests.crash.adder import VIEWS, WORDS
from tests.crash.processes import (
    Crash,
    assert_counted,
    assert_decided,
    assert_delivered,
    configure_stock_and_chat,
    expected_values,
)
from tests.kit.postgres import PostgresServer
from tests.kit.reporting_databases import new_schema


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
        cq.configure(db, queue, key=key, buckets=3, links=[table(queue, url_env=urls[queue])])
        assert cli.run("link", "init", queue).status == 0
    configure_stock_and_chat(db)
    added = Crash(cli, postgres, seed).run()
    assert_counted(cli, db, expected_values(seed, added))
    assert_decided(db, seed, added)
    assert_delivered(db, added)
