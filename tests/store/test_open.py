"""`cq.open`: which store a URL means, where the URL comes from, and one line for each that means none."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from cq import store
from cq.errors import InvalidUrl, NotAStore, StoreUnreachable
from cq.store import DEFAULT_URL, foundationdb
from cq.store.embedded import Database


@pytest.fixture(autouse=True)
def _no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CQ_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The cluster files that were asked for; none is opened."""
    asked: list[str | None] = []
    monkeypatch.setattr(foundationdb, "open_cluster", asked.append)
    return asked


def put(db: Any, value: bytes) -> None:
    db.transact(lambda tr: tr.set(b"k", value))


def value(db: Any) -> bytes | None:
    found: bytes | None = db.transact(lambda tr: tr.get(b"k").value)
    return found


def test_embedded_opens_a_file_and_makes_it_if_there_is_none(tmp_path: Path) -> None:
    put(store.open("embedded:one.db"), b"1")

    assert (tmp_path / "one.db").exists()
    assert isinstance(store.open("embedded:one.db"), Database)
    assert value(store.open(f"embedded:{tmp_path}/one.db")) == b"1"


def test_the_url_says_who_may_use_a_new_store(tmp_path: Path) -> None:
    store.close(store.open("embedded:mine.db"))
    store.close(store.open("embedded:ours.db?mode=0660"))

    assert stat.S_IMODE((tmp_path / "mine.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ours.db").stat().st_mode) == 0o660
    assert store.located("embedded:ours.db?mode=0660") == ("embedded", "ours.db")
    assert store.absolute("embedded:ours.db?mode=660") == f"embedded:{tmp_path}/ours.db"


@pytest.mark.parametrize("digits", ["", "0060", "0200", "0777", "1660", "rw"])
def test_permissions_that_lock_the_owner_out_or_mean_nothing_are_refused(tmp_path: Path, digits: str) -> None:
    with pytest.raises(InvalidUrl, match=r"write \?mode=0660 to share a new store with its group"):
        store.open(f"embedded:ours.db?mode={digits}")
    assert list(tmp_path.iterdir()) == []


def test_without_a_url_the_environment_decides_and_else_cq_db(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(store.open(), b"default")
    monkeypatch.setenv("CQ_STORE", "embedded:named.db")
    put(store.open(), b"named")

    assert value(store.open(DEFAULT_URL)) == b"default"
    assert value(store.open("embedded:named.db")) == b"named"


def test_an_empty_variable_is_no_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CQ_STORE", "")

    put(store.open(), b"1")

    assert (tmp_path / "cq.db").exists()


def test_a_url_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CQ_STORE", "nonsense:")

    put(store.open("embedded:mine.db"), b"1")

    assert (tmp_path / "mine.db").exists()


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))

    put(store.open("embedded:~/cq.db"), b"1")

    assert (home / "cq.db").exists()


def test_fdb_opens_the_default_cluster_or_the_named_one(clusters: list[str | None]) -> None:
    store.open("fdb:")
    store.open("fdb:/path/to/fdb.cluster")

    assert clusters == [None, "/path/to/fdb.cluster"]


def test_fdb_without_a_cluster_file_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDB_CLUSTER_FILE", "nowhere.cluster")

    with pytest.raises(
        StoreUnreachable, match=r"cannot read the cluster file nowhere\.cluster: No such file"
    ):
        store.open("fdb:")


@pytest.mark.parametrize(
    "url", ["", "cq.db", "/data/cq.db", "sqlite:cq.db", "EMBEDDED:cq.db", "fdb", "embedded"]
)
def test_what_names_no_store_is_refused_with_what_would(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        store.open(url)

    assert str(caught.value) == (
        f"the store {url!r} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster"
    )


@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize(
    "url", ["postgresql://cq:secret@host/reports", "mysql://host/reports?password=secret"]
)
def test_the_password_of_another_kind_of_database_is_not_shown(
    url: str, is_argument: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_STORE", url)

    with pytest.raises(InvalidUrl, match=r"the store '[a-z]+:\.\.\.' .*names no store") as caught:
        store.open(url if is_argument else None)

    assert "secret" not in str(caught.value)


def test_an_embedded_store_needs_a_path() -> None:
    with pytest.raises(
        InvalidUrl, match="'embedded:' names no file: write embedded:PATH, for example embedded:cq"
    ):
        store.open("embedded:")


def test_a_wrong_url_in_the_environment_is_said_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_STORE", "nonsense")

    with pytest.raises(InvalidUrl, match=r"the store 'nonsense' in \$CQ_STORE names no store"):
        store.open()


def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear reader, " * 100)

    with pytest.raises(NotAStore, match=r"letter\.txt") as caught:
        put(store.open(f"embedded:{file}"), b"1")

    assert "\n" not in str(caught.value)
    assert file.read_text() == "Dear reader, " * 100
