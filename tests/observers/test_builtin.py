"""Settings of built-in observers that no specification returns: workers refuse them before they run the observer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cq.config.queue import QueueConfig
from cq.encoding.codec import ValueType
from cq.errors import CodeMismatch, InvalidConfiguration
from cq.observers.builtin import FACTORIES
from cq.observers.export.spec import export_spec
from cq.observers.top.index import top
from cq.store.embedded import Database
from tests.helpers import configured

TOP = dict(top(5).settings)
EXPORT = dict(export_spec("words").settings)
URL = "postgresql://me:secret@host/db"


@pytest.fixture
def config(tmp_path: Path) -> QueueConfig:
    with Database(tmp_path / "x.db") as db:
        return configured(db, "words")


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("top", {}, "observer 'top' of queue 'words' has settings that are invalid"),
        ("top", {**TOP, "n": 0}, "expected n of a top to be"),
        ("top", {**TOP, "score": "x"}, "observer 'top' of queue 'words' has settings that are invalid"),
        ("top", {**TOP, "more": 1}, "observer 'top' of queue 'words' has settings that are invalid"),
        ("export", {**EXPORT, "url": URL}, "observer 'export' of queue 'words' has settings that are invalid"),
        ("export", {**EXPORT, "url_env": URL}, "expected the name of an environment variable"),
        ("export", {**EXPORT, "url_env": 5}, "expected the name of an environment variable"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused_without_their_values(
    config: QueueConfig, kind: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        FACTORIES[kind](config, settings, 1)

    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_valid_settings_are_accepted(config: QueueConfig) -> None:
    for kind, settings in (("top", TOP), ("export", EXPORT)):
        assert callable(FACTORIES[kind](config, settings, 1))


def test_functions_of_an_application_are_asked_for(config: QueueConfig) -> None:
    with pytest.raises(CodeMismatch, match="start this process with --app"):
        FACTORIES["top"](config, {**TOP, "score": True}, 1)


def test_values_without_scores_have_no_top(config: QueueConfig) -> None:
    texts = replace(config, value=ValueType.parse("str"))

    with pytest.raises(InvalidConfiguration, match="of type str, which has no scores"):
        FACTORIES["top"](texts, TOP, 1)
