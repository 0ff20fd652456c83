"""Settings: which of flag, environment, file and default counts, and what is said of a file that is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.cli.shared.settings import SETTINGS, options_of
from tests.cli.commands import CQ
from tests.cli.conftest import Cli, Here

APP = "import cq\napp = cq.App()\n"
LONGEST = """
import cq
app = cq.App()
app.queue("words", combiner=cq.Combiner("longest", 1, lambda key, values: max(values, key=len)))
"""
OPTIONS = {setting.name: dict(options_of(setting, CQ, ())) for setting in SETTINGS}
"""{setting: {words of a command: its option}}."""
CONCURRENCY = OPTIONS["worker.concurrency"]["worker",].default


@pytest.fixture
def bare(here: Here, monkeypatch: pytest.MonkeyPatch) -> Here:
    """The command where nothing is set."""
    monkeypatch.delenv("CQ_STORE")
    return here


def shown(here: Here, *args: str) -> dict[str, tuple[Any, str]]:
    """{setting: (value, where it comes from)} as `cq settings` has it."""
    ended = here("settings", "--json", *args)
    assert (ended.status, ended.err) == (0, "")
    return {row["setting"]: (row["value"], row["from"]) for row in ended.rows()}


def test_each_setting_is_an_option() -> None:
    """Of one command, or of all."""
    assert [name for name, options in OPTIONS.items() if not options] == []
    assert list(OPTIONS["worker.concurrency"]) == [("worker",)]
    assert {("worker",), ("configure",), ("get",), ("verify",), ("link", "init")} < OPTIONS["app"].keys()
    assert ("demo", "words") not in OPTIONS["store"]
    assert ("link", "init") in OPTIONS["store"]


def test_without_anything_set_all_are_the_defaults(bare: Here) -> None:
    found = shown(bare)

    assert list(found) == ["config", *OPTIONS, "env_names", "prefix", "reporting_url"]
    assert found.pop("reporting_url") == ("not set", "$CQ_REPORTING_URL")
    assert {source for _, source in found.values()} == {"default"}
    assert found["store"][0] == "embedded:cq.db"
    assert found["app"][0] is None
    assert found["worker.concurrency"][0] == CONCURRENCY


@pytest.mark.parametrize(
    ("flag", "variable", "file", "found"),
    [
        (True, True, True, ("embedded:flag.db", "--store")),
        (True, True, False, ("embedded:flag.db", "--store")),
        (True, False, True, ("embedded:flag.db", "--store")),
        (True, False, False, ("embedded:flag.db", "--store")),
        (False, True, True, ("embedded:variable.db", "$CQ_STORE")),
        (False, True, False, ("embedded:variable.db", "$CQ_STORE")),
        (False, False, True, ("embedded:file.db", "cq.toml")),
        (False, False, False, ("embedded:cq.db", "default")),
    ],
)
def test_the_strongest_counts_and_is_what_commands_use(
    bare: Here,
    monkeypatch: pytest.MonkeyPatch,
    flag: bool,
    variable: bool,
    file: bool,
    found: tuple[str, str],
) -> None:
    args = ["--store", "embedded:flag.db"] if flag else []
    if variable:
        monkeypatch.setenv("CQ_STORE", "embedded:variable.db")
    if file:
        Path("cq.toml").write_text('store = "embedded:file.db"')

    assert shown(bare, *args)["store"] == found
    assert list(Path().glob("*.db")) == []  # to show it opens nothing
    for command in (["feed", "configure", "chat"], ["feed", "list"]):
        assert bare(*command, *args).status == 0
        assert [f"embedded:{path}" for path in Path().glob("*.db")] == [found[0]]


def test_an_empty_variable_is_no_choice(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("cq.toml").write_text("[worker]\nconcurrency = 7")
    monkeypatch.setenv("CQ_WORKER_CONCURRENCY", "8")
    assert shown(here)["worker.concurrency"] == (8, "$CQ_WORKER_CONCURRENCY")
    monkeypatch.setenv("CQ_WORKER_CONCURRENCY", "")
    assert shown(here)["worker.concurrency"] == (7, "cq.toml")


@pytest.mark.parametrize("is_file", [False, True])
def test_the_app_is_a_setting_of_all_commands_that_need_its_code(
    here: Here, monkeypatch: pytest.MonkeyPatch, is_file: bool
) -> None:
    def set_app(value: str) -> None:
        if is_file:
            Path("cq.toml").write_text(f'app = "{value}"')
        else:
            monkeypatch.setenv("CQ_APP", value)

    Path("longest_app.py").write_text(LONGEST)
    set_app("longest_app:app")
    assert "longest@1" in here("configure", "words", "--value", "str").out
    assert here("add", "words", "a=x", "a=xyz").status == 0
    assert here("get", "words", "a", "--pending").out == "a\txyz\n"
    assert here("worker", "--drain").status == 0
    assert here("verify", "words").status == 0
    assert here("doctor").status in (0, 1)

    set_app("longest_app:nothing")
    for command in (["worker", "--drain"], ["get", "words", "a"], ["verify", "words"], ["doctor"]):
        ended = here(*command)
        assert ended.status == 2
        assert "--app 'longest_app:nothing' cannot be imported" in ended.err
    assert here("get", "words", "a", "--pending", "--app", "longest_app:app").status == 0
    assert here("status").status == 0


def test_an_application_that_raises_at_its_import_is_named_with_the_line(here: Any) -> None:
    Path("shop_settings.py").write_text("import json\n\ndef load():\n    return json.loads('')\n")
    Path("raising_app.py").write_text("import shop_settings\nshop_settings.load()\n")
    ended = here("worker", "--app", "raising_app:app")
    assert "line 1 column 1 (char 0) (shop_settings.py, line 4); `cq settings`" in ended.err
    assert "No module named 'no_app'; `cq settings`" in here("worker", "--app", "no_app:app").err


def leaves(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command with its words."""
    for name, each in getattr(command, "commands", {}).items():
        yield from leaves(each, *words, name)
    if not hasattr(command, "commands"):
        yield words, command


LEAVES = {words: command for words, command in leaves(CQ) if words[0] not in ("bench", "demo")}


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_the_store_and_the_app_of_each_command_are_settings(words: tuple[str, ...]) -> None:
    """So that all commands find them as those do that other tests run."""
    variables = {flag: option.envvar for option in LEAVES[words].params for flag in option.opts}

    assert variables["--store"] == "CQ_STORE"
    assert variables.get("--app", "CQ_APP") == "CQ_APP"


@pytest.mark.parametrize("queues", ["", '["words", "hits"]', '"words hits"'])
def test_a_worker_works_on_the_queues_of_its_settings(
    here: Here, monkeypatch: pytest.MonkeyPatch, queues: str
) -> None:
    for name in ("words", "hits", "others"):
        here("configure", name, "--combiner", "sum")
        here("add", name, "a=1")
    if queues:
        Path("cq.toml").write_text(f"[worker]\nqueues = {queues}")
    else:
        monkeypatch.setenv("CQ_WORKER_QUEUES", "words hits")

    assert here("worker", "--drain").status == 0

    assert [here("get", name, "a").status for name in ("words", "hits", "others")] == [0, 0, 3]
    assert shown(here)["worker.queues"][0] == ["words", "hits"]


def test_the_names_of_secrets_are_in_the_file_too(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_URL", "sqlite:///shop.db")
    monkeypatch.setenv("CQ_ENV_NAMES", "")  # of this process; the file changes it
    here("configure", "words", "--link", "export=sql:words,url_env=SHOP_URL")
    assert "list it in $CQ_ENV_NAMES" in here("link", "init", "words").err

    Path("cq.toml").write_text('env_names = ["SHOP_URL", "OTHER"]')

    assert here("link", "init", "words").status == 0
    monkeypatch.setenv("CQ_ENV_NAMES", "")
    assert shown(here)["env_names"] == ("SHOP_URL,OTHER", "cq.toml")
    monkeypatch.setenv("CQ_ENV_NAMES", "OTHER")
    assert shown(here)["env_names"] == ("OTHER", "$CQ_ENV_NAMES")
    assert "list it in $CQ_ENV_NAMES" in here("link", "check", "words").err


def test_all_that_an_app_declares_is_configured(here: Here) -> None:
    Path("shop.py").write_text(
        "import cq\nfrom cq.observers.feeds.observer import feed_spec\napp = cq.App()\n"
        'app.queue("orders", value=int, observers=[feed_spec("chat")], window="10m/10s")\n'
        'app.feed("chat", keep="30d")\n'
    )

    for _ in range(2):  # the second time changes nothing
        said = here("configure", "--app", "shop:app").out.splitlines()
        assert said[0] == "feed 'chat' is configured"  # first, as the queue reports to it
        assert said[1].startswith(
            "queue 'orders': key str, value int, combiner sum@1, buckets 1, observers feed@1"
        )
    assert here("feed", "list", "--json").rows()[0]["keep_seconds"] == 30 * 86_400
    refused = here("configure", "--app", "shop:app", "--buckets", "2")
    assert (refused.status, "expected the name of a queue for these options" in refused.err) == (2, True)
    assert "or --app with a cq.App that declares queues" in here("configure").err


def test_another_file_can_be_named(bare: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("cq.toml").write_text('store = "embedded:file.db"')
    Path("other.toml").write_text('store = "embedded:other.db"')
    assert shown(bare)["config"] == ("cq.toml", "current folder")

    monkeypatch.setenv("CQ_CONFIG", "other.toml")

    assert shown(bare)["config"] == ("other.toml", "$CQ_CONFIG")
    assert shown(bare)["store"] == ("embedded:other.db", "other.toml")


def test_of_the_reporting_database_only_the_variable_is_shown(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_REPORTING_URL", "postgresql://user:secret@host/database")

    assert shown(here)["reporting_url"] == ("set", "$CQ_REPORTING_URL")
    assert "secret" not in here("settings").out


def test_a_store_that_is_the_reporting_database_is_shown_without_its_password(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_STORE", "postgresql://report:secret@db/reports")

    assert shown(here)["store"] == ("postgresql:...", "$CQ_STORE")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("store = = 1", "cq.toml is not valid TOML: Invalid value (at line 1, column 9)"),
        (b'store = "\xff"', "cq.toml is not valid TOML: 'utf-8' codec can't decode"),
        ("a = " + "[" * 60_000, "cq.toml is not valid TOML: maximum recursion depth"),
        ('stor = "embedded:x.db"', "unknown key 'stor': expected one of store, "),
        ("[worker]\nspeed = 1", "unknown key 'worker.speed'"),
        ("[worker]\nconcurrency = 1.5", "cq.toml: worker.concurrency: "),
        ("[worker]\nconcurrency = 0", "cq.toml: worker.concurrency: "),
        ("env_names = 1", "expected env_names to be an array of names of environment variables"),
        ('env_names = ["a b"]', "expected env_names to be an array of names of environment variables"),
        ('[worker]\ngrace = "soon"', "cq.toml: worker.grace: expected a duration such as 90s"),
        ('reporting_url = "secret"', "'reporting_url' looks like the URL of a reporting database"),
        ('[worker]\nCQ_REPORTING_URL = "secret"', "set $CQ_REPORTING_URL in the environment"),
        ('[reporting]\nurl = "secret"', "set $CQ_REPORTING_URL in the environment"),
        ('store = "postgresql://user:secret@host/db"', "'store' looks like the URL of a reporting database"),
        (
            '[sql]\nurl = "postgresql://user:secret@host/db"',
            "'sql' looks like the URL of a reporting database",
        ),
        (
            'store = ["postgresql://user:secret@host/db"]',
            "'store' looks like the URL of a reporting database",
        ),
    ],
)
@pytest.mark.parametrize("command", ["settings", "status"])
def test_a_wrong_file_ends_with_2_and_a_line_that_names_it(
    here: Here, command: str, content: str | bytes, said: str
) -> None:
    Path("cq.toml").write_bytes(content if isinstance(content, bytes) else content.encode())

    ended = here(command)

    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("cq: cq.toml")
    assert ended.err.count("\n") == 1
    assert said in ended.err
    assert "secret" not in ended.err


@pytest.mark.parametrize(
    ("named", "said"),
    [("nothing.toml", "No such file"), (".", "Is a directory")],
)
def test_a_file_that_cannot_be_read_is_named(
    here: Here, monkeypatch: pytest.MonkeyPatch, named: str, said: str
) -> None:
    monkeypatch.setenv("CQ_CONFIG", named)

    ended = here("status")

    assert ended.status == 2
    assert ended.err.startswith(f"cq: cannot read the settings in {named}: {said}")
    assert ended.err.count("\n") == 1


APP_FILE = 'app = "shop:app"\n'


def test_the_worker_names_the_file_that_its_app_comes_from_once(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(APP)
    (cli.folder / "cq.toml").write_text(APP_FILE)

    for more in ([], ["--processes", "2"]):
        said = cli.run("worker", "--drain", *more).err
        assert said.count(f"the app shop:app is imported, which {cli.folder / 'cq.toml'} names\n") == 1
    lines = cli.run("worker", "--drain", "--log", "json").err.splitlines()
    assert [json.loads(line)["event"] for line in lines].count("app_named") == 1
    assert "is imported" not in cli.run("worker", "--drain", "--app", "shop:app").err


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o622])
@pytest.mark.parametrize("command", ["settings", "worker"])
def test_a_file_that_others_can_write_is_refused(here: Here, command: str, mode: int) -> None:
    Path("cq.toml").write_text(APP_FILE)
    Path("shop.py").write_text("raise SystemExit('this was run')")
    Path("cq.toml").chmod(mode)

    ended = here(command)

    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "can be written by other users, and settings can name code: run `chmod go-w cq.toml`" in ended.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("link", [False, True])
def test_a_file_or_link_of_another_user_is_refused_unless_it_is_named(
    here: Here, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    Path("target.toml").write_text("[worker]\nconcurrency = 5")
    if link:
        Path("cq.toml").symlink_to("target.toml")
    else:
        Path("target.toml").rename("cq.toml")
    assert shown(here)["worker.concurrency"] == (5, "cq.toml")

    os.chown("cq.toml", 54_321, -1, follow_symlinks=False)
    ended = here("worker", "--drain")
    monkeypatch.setenv("CQ_CONFIG", "cq.toml")

    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "belongs to another user (uid 54321), and settings can name code" in ended.err
    assert shown(here)["worker.concurrency"] == (5, "cq.toml")


@pytest.mark.parametrize(("grace", "seconds"), [('"1m30s"', 90), ("90", 90), ("0.5", 0.5)])
def test_a_duration_in_a_file_has_a_unit_or_is_in_seconds(here: Here, grace: str, seconds: float) -> None:
    Path("cq.toml").write_text(f"[worker]\ngrace = {grace}")

    assert shown(here)["worker.grace"][0] == seconds


def test_help_is_there_whatever_the_file_says(here: Here) -> None:
    Path("cq.toml").write_text("wrong")

    assert here("--help").status == 0
    assert here("--version").status == 0


def test_the_library_reads_no_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cli.folder)
    monkeypatch.delenv("CQ_STORE", raising=False)
    Path("cq.toml").write_text('store = "embedded:file.db"')

    db: Any = cq.open()
    db.close()

    assert [path.name for path in Path().glob("*.db")] == ["cq.db"]
