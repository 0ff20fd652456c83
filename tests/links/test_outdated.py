"""Workers that lack something for a link, or have an outdated configuration of it: only they do not work on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.config.queue import read_config, write_config
from cq.keys.link import links_of
from cq.links import Source, Target
from cq.observers.links.registry import opened_link, tasks_of
from cq.observers.links.spec import links_in
from cq.observers.links.target import LinkFailed
from cq.observers.monitoring.link_status import link_status
from cq.store.transact import transact
from cq.testing import drain
from tests.kit.queues import add, configured, stored

URL = "CQ_OUTDATED_URL"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, f"sqlite:///{tmp_path}/report.db")


def test_a_worker_that_has_not_noticed_the_removal_of_a_link_leaves_nothing(
    db: Any, name: str, table: None
) -> None:
    cq.configure(db, name, links=[links.table("t", url_env=URL)])
    config = transact(db, lambda tr: read_config(tr.snapshot, name))
    observer = links_in(config)["export"]
    tasks = tasks_of(db, None, config, observer)
    admin.remove_observer(db, name, observer.name)
    assert stored(db, links_of(name)) == []
    late = tasks_of(db, None, config, observer)  # a worker that opens it now
    for task in [*tasks, *late]:
        task.run()  # the table is missing, which a keeper notes
    assert stored(db, links_of(name)) == []
    assert link_status(db, name) == []


def test_a_target_that_cannot_be_made_fails_its_link_only(db: Any, name: str) -> None:
    app = cq.App()

    @app.target("broken")
    def broken(source: Source) -> Target:
        raise ValueError("no address")

    app.target("number")(lambda source: 5)
    cq.configure(db, name, links=[links.app("broken"), links.app("number")])
    add(db, name, {"a": 1})
    drain(db, name, app=app)
    assert dict(cq.CombineQueue(name).scan(db)) == {"a": 1}
    errors = {each.link: each.error for each in link_status(db, name)}
    assert "ValueError: no address" in errors["broken"]
    assert "expected the target 'number' of the application to be a cq.links.Target" in errors["number"]
    with pytest.raises(LinkFailed, match="no address"), opened_link(db, name, "broken", app=app):
        pass


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "has settings that are invalid for its kind"),
        ({"to": "unknown"}, "has settings that are invalid for its kind"),
        ({"to": "sql"}, "has settings that are invalid for its kind"),
        ({"to": "sql", "table": 1}, "expected a name of 1 to 63 printable bytes"),
    ],
)
def test_settings_that_no_link_has_make_it_unreadable(
    db: Any, name: str, settings: dict[str, Any], error: str
) -> None:
    config = configured(db, name, put=[links.table("t", url_env=URL)])
    wrong = replace(config, observers=(replace(config.observers[0], settings=settings),))
    transact(db, lambda tr: write_config(tr, wrong))
    (found,) = link_status(db, name)
    assert found.state == "unreadable"
    assert error in found.error
    with pytest.raises(cq.errors.InvalidConfiguration, match=error), opened_link(db, name):
        pass


@pytest.mark.parametrize(
    "text",
    [
        "https://u:SECRET@h",
        "hook=https://u:SECRET@h",
        "hook=webhook:https://u:a,SECRET@h",
        "hook=webhook:CQ_X,secret=whsec_SECRET",
        "r=sql:t,url=postgresql://u:SECRET@h",
        "r=sql:postgresql://u:SECRET@h/db",
        "k=kafka:u:SECRET@b:9092",
        "SECRET/x=sql:t",
    ],
)
def test_messages_show_no_secrets(text: str) -> None:
    with pytest.raises(cq.errors.InvalidConfiguration) as raised:
        links.parse_link(text)
    assert "SECRET" not in str(raised.value)
