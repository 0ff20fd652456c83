"""PostgreSQL: roles with few rights attack the outbox's trigger function, which runs with the rights of its owner."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

import cq
from cq.observers.links.outbox.operate import init
from cq.observers.links.outbox.watch import OutboxTrigger
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.target import LinkFailed
from tests.observers.outbox.outboxhelpers import SETTINGS, configure, insert, move, sql, table

OLD_FUNCTION = """
CREATE OR REPLACE FUNCTION cq_outbox_notify() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE waits boolean;
BEGIN
  EXECUTE 'SELECT EXISTS (SELECT 1 FROM ' || quote_ident(TG_TABLE_SCHEMA) || '.cq_outbox_progress WHERE waiting)'
  INTO waits;
  RETURN NULL;
END $$
"""
"""Reads the table of this name in the schema of whichever table the trigger is attached to."""

REFUSED = r"permission denied for function .*cq_outbox_notify"
HOOK = "CREATE TRIGGER {} AFTER INSERT ON bait FOR EACH STATEMENT EXECUTE FUNCTION {}.cq_outbox_notify()"


class Eve:
    """A role that may log in and has a schema of its own, and nothing else. It may name objects of the outbox's schema.

    Attributes:
        name: of the role, and of its schema.
        victim: the schema of the outbox.
    """

    def __init__(self, url: str) -> None:
        self.name = f"eve_{secrets.token_hex(6)}"
        self.victim = sql("SELECT current_schema()")[0][0]
        self._admin = sa.create_engine(url)
        self._administer(
            f"CREATE ROLE {self.name} LOGIN",
            f"CREATE SCHEMA {self.name} AUTHORIZATION {self.name}",
            f"GRANT USAGE ON SCHEMA {self.victim} TO {self.name}",
        )
        mine = sa.make_url(url).set(username=self.name)
        self.engine = sa.create_engine(mine.update_query_dict({"options": f"-csearch_path={self.name}"}))

    def run(self, *statements: str) -> None:
        """Run statements as this role, in one transaction."""
        with self.engine.begin() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)

    def prepare(self) -> None:
        """Put a view in place of the outbox's table into the own schema. Who reads it makes this role a superuser."""
        self.run(
            "CREATE FUNCTION seize() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
            f"EXECUTE 'ALTER ROLE {self.name} SUPERUSER'; RETURN true; END $$",
            "CREATE VIEW cq_outbox_progress AS SELECT seize() AS waiting",
            "CREATE TABLE bait (x integer)",
        )

    def attach(self) -> None:
        """Attach the outbox's function to the own table."""
        self.run(HOOK.format("hook", self.victim))

    @property
    def is_superuser(self) -> bool:
        return bool(sql("SELECT rolsuper FROM pg_roles WHERE rolname = :name", name=self.name)[0][0])

    def drop(self) -> None:
        self.engine.dispose()
        self._administer(f"DROP OWNED BY {self.name} CASCADE", f"DROP ROLE {self.name}")
        self._admin.dispose()

    def _administer(self, *statements: str) -> None:
        with self._admin.begin() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)


@pytest.fixture
def eve(postgres_url: str) -> Iterator[Eve]:
    made = Eve(postgres_url)
    yield made
    made.drop()


def problems() -> list[str]:
    """What is wrong with the trigger of the outbox."""
    database = ReportingDatabase(env=SETTINGS.url_env)
    with database.reading() as (conn, _):
        found = OutboxTrigger.of(conn, None).problems(conn)
    database.close()
    return found


def test_another_role_cannot_attach_the_function_to_a_table_of_its_own(db: Any, name: str, eve: Eve) -> None:
    configure(db, name)
    eve.prepare()
    with pytest.raises(sa.exc.ProgrammingError, match=REFUSED):
        eve.attach()

    assert not eve.is_superuser


def test_a_function_that_is_attached_elsewhere_reads_the_outbox_s_own_table_only(
    db: Any, name: str, eve: Eve
) -> None:
    """An administrator has granted the right to attach it."""
    configure(db, name)
    sql(f"GRANT EXECUTE ON FUNCTION cq_outbox_notify() TO {eve.name}")
    eve.prepare()
    eve.attach()
    eve.run("INSERT INTO bait VALUES (1)")

    assert not eve.is_superuser


def test_objects_of_other_schemas_do_not_change_what_the_function_calls(db: Any, name: str, eve: Eve) -> None:
    """The search path of the inserting session, and its temporary objects, do not count."""
    configure(db, name)
    move(db, name)  # a worker waits: the function notifies
    sql(f"GRANT INSERT ON cq_outbox TO {eve.name}")
    eve.prepare()
    eve.run(
        f"CREATE FUNCTION {eve.name}.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM seize(); END $$",
        "CREATE TEMP VIEW cq_outbox_progress AS SELECT seize() AS waiting",
        f"SET search_path = {eve.name}, pg_temp, pg_catalog",
        f"INSERT INTO {eve.victim}.cq_outbox (queue, key_json, update_json) VALUES ('x', '1', '1')",  # noqa: S608
    )

    assert not eve.is_superuser
    assert len(table()) == 1


def test_init_replaces_an_unsafe_function_also_where_another_role_has_attached_it(
    db: Any, name: str, eve: Eve
) -> None:
    configure(db, name)
    sql(OLD_FUNCTION)
    sql("GRANT EXECUTE ON FUNCTION cq_outbox_notify() TO PUBLIC")
    eve.prepare()
    eve.attach()
    before = problems()
    eve.run("INSERT INTO bait VALUES (1)")
    seized = eve.is_superuser
    sql(f"ALTER ROLE {eve.name} NOSUPERUSER")
    init(db, name, SETTINGS)
    eve.run("INSERT INTO bait VALUES (2)")
    with pytest.raises(sa.exc.ProgrammingError, match=REFUSED):
        eve.run(HOOK.format("another_hook", eve.victim))

    assert seized  # what the other tests attempt does work where it is not prevented
    assert "not the present one" in before[0]
    assert "every role may" in before[1]
    assert problems() == []
    assert not eve.is_superuser


@pytest.mark.parametrize("granted", ["the schema", "a table"])
def test_init_by_a_superuser_is_refused_where_another_role_can_replace_the_tables(
    db: Any, name: str, eve: Eve, granted: str
) -> None:
    """The owner of a schema may drop a table in it, and create a view of its name, which the function would read."""
    if granted == "the schema":
        sql(f"ALTER SCHEMA {eve.victim} OWNER TO {eve.name}")
    else:
        configure(db, name)
        sql("DROP FUNCTION cq_outbox_notify CASCADE")
        sql(f"ALTER TABLE cq_outbox_progress OWNER TO {eve.name}")
    cq.configure(db, name)
    with pytest.raises(LinkFailed, match=f"as the role {eve.name}"):
        init(db, name, SETTINGS, trigger=True)
    functions = sql(
        "SELECT 1 FROM pg_proc WHERE proname = 'cq_outbox_notify' AND pronamespace = :schema ::regnamespace",
        schema=eve.victim,
    )

    assert functions == []


def test_init_by_an_administrator_who_is_no_superuser_is_refused_where_another_role_owns_the_schema(
    db: Any, name: str, eve: Eve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A managed PostgreSQL gives its customer such an administrator."""
    administrator = f"admin_{secrets.token_hex(6)}"
    sql(f"CREATE ROLE {administrator} LOGIN CREATEROLE")
    sql(f"GRANT USAGE, CREATE ON SCHEMA {eve.name} TO {administrator}")
    url = eve.engine.url.set(username=administrator).render_as_string(hide_password=False)
    cq.configure(db, name)
    refused = pytest.raises(LinkFailed, match=f"administrator {administrator}, and the role {eve.name} can")
    try:
        with monkeypatch.context() as patch, refused:
            patch.setenv(SETTINGS.url_env, url)
            init(db, name, SETTINGS, trigger=True)
    finally:
        sql(f"DROP OWNED BY {administrator} CASCADE")
        sql(f"DROP ROLE {administrator}")


def test_a_superuser_s_function_is_reported_once_another_role_can_replace_the_tables(
    db: Any, name: str, eve: Eve
) -> None:
    configure(db, name)
    before = problems()
    sql(f"ALTER SCHEMA {eve.victim} OWNER TO {eve.name}")

    assert before == []
    assert "rights of the administrator postgres" in problems()[0]


def test_the_owner_of_the_schema_needs_no_more_rights(
    db: Any, name: str, eve: Eve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its init makes a function that works, and runs with its own rights."""
    cq.configure(db, name)
    monkeypatch.setenv(SETTINGS.url_env, eve.engine.url.render_as_string(hide_password=False))
    init(db, name, SETTINGS)
    found = problems()
    insert(name, {"a": 1})
    move(db, name)
    owner = sql(
        "SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE proname = 'cq_outbox_notify' "
        "AND pronamespace = :schema ::regnamespace",
        schema=eve.name,
    )

    assert found == []
    assert owner[0][0] == eve.name


@pytest.mark.parametrize("trigger", [True, False])
def test_init_with_and_without_the_trigger(db: Any, name: str, postgres_url: str, trigger: bool) -> None:
    cq.configure(db, name)
    init(db, name, SETTINGS, trigger=trigger)
    other = f"{name}-other"
    cq.configure(db, other)
    init(db, other, SETTINGS)  # leaves it as it is
    first = notifies()
    init(db, name, SETTINGS, trigger=not trigger)
    init(db, other, SETTINGS)

    assert first is trigger
    assert notifies() is not trigger
    assert problems() == []


def notifies() -> bool:
    return bool(
        sql("SELECT 1 FROM pg_trigger WHERE tgrelid = 'cq_outbox'::regclass AND tgname = 'cq_outbox_notify'")
    )
