"""Settings of links: the environment variables that they may name, and what a worker lacks or has not noticed.

A store must not choose another program's secrets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.config.queue import Named, QueueConfig, read_config, write_config
from cq.encoding.codec import KeyType, ValueType
from cq.keys.link import links_of
from cq.links import CannotSend, Changes, LinkFailed, Source, Target
from cq.observers.links.registry import opened_link, tasks_of
from cq.observers.links.spec import is_for_cq, links_in
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.targets.brokers import read_settings
from cq.observers.links.targets.queue import QueueTarget
from cq.observers.links.targets.receiver import HttpReceiver, read_secrets
from cq.observers.monitoring.link_status import link_status
from cq.store.transact import transact
from cq.testing import MemoryTarget, drain
from tests.cli.conftest import Here, cli, here, impatient
from tests.kit.queues import add, configured, stored

__all__ = ["cli", "here", "impatient"]

FOREIGN = "SHOP_DATABASE_URL"
SECRET = "whsec_" + "QUJD" * 8
CONFIG = QueueConfig(
    "words", key=KeyType.parse(str), value=ValueType("int"), combiner=Named("sum", 1), observers=(), buckets=1
)
READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "a SQL table": ("sqlite:///x.db", lambda name: ReportingDatabase(env=name).check_url()),
    "a webhook": ("https://example.org/", lambda name: HttpReceiver(name, "CQ_WEBHOOK_SECRET").check()),
    "a secret": (SECRET, read_secrets),
    "another store": (
        "embedded:other.db",
        lambda name: QueueTarget(Source(b"", "words", "forward", 1), CONFIG, "words", name).check_settings(),
    ),
    "a topic": ("host:9092", read_settings),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CQ_ENV_NAMES", raising=False)
    monkeypatch.setenv("CQ_WEBHOOK_SECRET", SECRET)


@pytest.mark.parametrize("kind", READERS)
def test_a_variable_that_is_not_for_cq_is_not_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, read = READERS[kind]
    for name in (FOREIGN, "CQ_TEST_VARIABLE"):
        monkeypatch.setenv(name, text)
    read("CQ_TEST_VARIABLE")
    with pytest.raises(LinkFailed, match=r"'SHOP_DATABASE_URL' is not read .* or list it in \$CQ_ENV_NAMES"):
        read(FOREIGN)
    monkeypatch.setenv("CQ_ENV_NAMES", f"OTHER, {FOREIGN}")
    read(FOREIGN)


@pytest.mark.parametrize("name", ["SHOP", "cq_url", "", "XCQ_URL", None, 7, b"CQ_URL"])
def test_other_names_are_not_for_cq(name: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_ENV_NAMES", "OTHER,, ")
    assert not is_for_cq(name)


def test_a_command_says_what_to_do(here: Here, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOREIGN, "sqlite:///shop.db")
    monkeypatch.setenv("CQ_ENV_NAMES", FOREIGN)
    assert here("configure", "words", "--link", f"export=sql:words,url_env={FOREIGN}").status == 0
    assert here("link", "init", "words").status == 0
    monkeypatch.delenv("CQ_ENV_NAMES")
    assert "is not read for settings in a store" in here("link", "verify", "words").err
    assert "is not read for settings in a store" in here("verify", "words").err
    assert "is not read for settings in a store" in here("doctor").out


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--link", "hook=webhook:SHOP_HOOK,secret_env=SHOP_KEY"), ("SHOP_HOOK", "SHOP_KEY")),
        (("--webhook", "SHOP_HOOK"), ("SHOP_HOOK",)),
        (("--link", f"export=sql:words,url_env={FOREIGN}"), (FOREIGN,)),
        (("--link", f"there=queue:words,url_env={FOREIGN}"), (FOREIGN,)),
        (("--link", f"topic=kafka:words,url_env={FOREIGN}"), (FOREIGN,)),
        (("--export", "words"), ()),
    ],
)
def test_configure_says_which_variables_a_worker_does_not_read(
    here: Here, options: tuple[str, ...], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = here("configure", "words", *options)
    assert done.status == 0
    assert done.err.splitlines() == [
        f"cq: a worker does not read the environment variable '{name}': begin its name with CQ_, or list it in "
        "$CQ_ENV_NAMES, in the worker's environment"
        for name in names
    ]
    monkeypatch.setenv("CQ_ENV_NAMES", ", ".join(names))
    assert here("configure", "words", *options).err == ""


@pytest.mark.parametrize(
    ("spec", "package", "extra"),
    [
        (links.webhook(), "urllib3", "webhook"),
        (links.kafka("words"), "confluent_kafka", "kafka"),
    ],
)
def test_a_package_that_is_missing_is_named(
    db: Any, spec: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cq.configure(db, "words", links=[spec])
    for module in list(sys.modules):
        if module.startswith(("cq.observers.links.sql.", "cq.observers.links.targets.", f"{package}.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(cq.errors.MissingPackage, match=rf"run `pip install 'combine-queue\[{extra}\]'`"),
        opened_link(db, "words"),
    ):
        pass


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


PREVIOUS = "previous"


class Faulty(MemoryTarget):
    """A target whose connections cannot be closed; it returns what it should not, or names entries by its errors."""

    answer: Any = None

    def apply(self, changes: Changes) -> Any:
        if isinstance(self.answer, Exception):
            raise CannotSend("refused", {each.sequence: self.answer for each in changes.entries})
        return changes.previous if self.answer == PREVIOUS else self.answer

    def close(self) -> None:
        raise ValueError("it is closed already")


def test_faults_of_a_target_are_those_of_its_link_only(
    db: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Other tasks of the worker, and its own end, do not depend on a target that cannot be closed."""
    target, app = Faulty(), cq.App()
    app.target("faulty")(lambda source: target)
    cq.configure(db, name, links=[links.app("faulty")])
    add(db, name, {"a": 1})
    target.answer = True
    drain(db, name, app=app)
    (found,) = link_status(db, name)
    assert found.error == (
        "LinkFailed: `apply` of the target in memory has returned True, expected None or its position"
    )
    target.answer = PREVIOUS  # so that the changes follow it
    drain(db, name, app=app)
    (found,) = link_status(db, name)
    assert found.error == "LinkFailed: the target in memory refuses changes after '', its own position"
    target.answer = KeyError("a")
    drain(db, name, app=app)
    (found,) = link_status(db, name)
    assert (found.aside, found.rows) == (1, 1)  # it raises also without an entry
    with pytest.raises(CannotSend), opened_link(db, name, app=app) as link:
        link.check()
    assert "the target in memory cannot be closed: ValueError: it is closed already" in caplog.text


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
        "r=sql:t,url_env=postgresql://u:SECRET@h/db",
        "k=kafka:t,url_env=u:SECRET@b:9092",
        "f=queue:q,url_env=embedded:SECRET.db",
    ],
)
def test_messages_show_no_secrets(text: str) -> None:
    with pytest.raises(cq.errors.InvalidConfiguration) as raised:
        links.parse_link(text)
    assert "SECRET" not in str(raised.value)
