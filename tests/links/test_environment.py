"""Which environment variables the settings in a store may name: a store must not choose another program's secrets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq import links
from cq.config.queue import Named, QueueConfig
from cq.encoding.codec import KeyType, ValueType
from cq.links import LinkFailed, Source
from cq.observers.links.registry import opened_link
from cq.observers.links.spec import is_for_cq
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.targets.brokers import read_settings
from cq.observers.links.targets.queue import QueueTarget
from cq.observers.links.targets.receiver import HttpReceiver, read_secrets
from cq.observers.monitoring.link_status import link_status
from cq.observers.worker.worker import Worker
from cq.testing import assert_values
from tests.cli.conftest import Here, cli, here, impatient
from tests.kit.queues import add

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


@pytest.mark.parametrize("suffix", ["_FILE", "_CONFIG"])
def test_a_file_that_another_variable_names_is_not_read(
    suffix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(f"SHOP{suffix}", str(tmp_path / "none"))
    with pytest.raises(LinkFailed, match="'SHOP' is not read"):
        read_secrets("SHOP") if suffix == "_FILE" else read_settings("SHOP")


@pytest.mark.parametrize("name", ["SHOP", "cq_url", "", "XCQ_URL", None, 7, b"CQ_URL"])
def test_other_names_are_not_for_cq(name: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_ENV_NAMES", "OTHER,, ")
    assert not is_for_cq(name)


@pytest.mark.usefixtures("impatient")
def test_passes_go_on_though_a_worker_may_not_read_the_variable(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOREIGN, "http://127.0.0.1:1/")
    cq.configure(db, "words", links=[links.webhook(FOREIGN)])
    add(db, "words", {"a": 1})
    Worker(db).drain()
    assert_values(db, "words", {"a": 1})
    (status,) = link_status(db)
    assert "'SHOP_DATABASE_URL' is not read" in status.error


def test_a_command_says_what_to_do(here: Here, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOREIGN, "sqlite:///shop.db")
    monkeypatch.setenv("CQ_ENV_NAMES", FOREIGN)
    assert here("configure", "words", "--export", "words", "--reporting-url-env", FOREIGN).status == 0
    assert here("link", "init", "words").status == 0
    monkeypatch.delenv("CQ_ENV_NAMES")
    assert "is not read for settings in a store" in here("link", "verify", "words").err
    assert "is not read for settings in a store" in here("verify", "words").err
    assert "is not read for settings in a store" in here("doctor").out


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--webhook", "SHOP_HOOK", "--webhook-secret-env", "SHOP_KEY"), ("SHOP_HOOK", "SHOP_KEY")),
        (("--webhook", "CQ_HOOK", "--webhook-secret-env", "SHOP_KEY"), ("SHOP_KEY",)),
        (("--export", "words", "--reporting-url-env", FOREIGN), (FOREIGN,)),
        (("--forward", "words", "--forward-url-env", FOREIGN), (FOREIGN,)),
        (("--kafka", "words", "--kafka-env", FOREIGN), (FOREIGN,)),
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
        (links.table("report"), "sqlalchemy", "sql"),
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
        pytest.raises(LinkFailed, match=rf"run `pip install 'combine-queue\[{extra}\]'`"),
        opened_link(db, "words"),
    ):
        pass
