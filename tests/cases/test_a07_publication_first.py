"""A7: pgoutput looks for its publication as of each change: one that came after the slot is never found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import cdcwatch, start_cdcwatch, write_configuration
from tests.slots import QUIET, slots_named

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database


@pytest.fixture
def published(database: Database, slot: str, tmp_path: Path) -> Path:
    """A configuration for pgoutput."""
    return write_configuration(
        tmp_path / "pgoutput.toml",
        database.dsn,
        f'[slot]\nname = "{slot}"\nplugin = "pgoutput"\npublication = "Or ders"\n' + QUIET,
    )


def _publications(database: Database) -> list[tuple[str, str]]:
    with database.connect() as connection:
        return connection.execute("SELECT pubname::text, attnames::text FROM pg_publication_tables").fetchall()


def test_a07_the_publication_is_made_before_the_slot(database: Database, slot: str, published: Path) -> None:
    planned = cdcwatch("slot", "create", "--dry-run", "-c", published).out.splitlines()
    assert [line.split()[0] for line in planned[-2:]] == ["CREATE", "SELECT"]
    assert _publications(database) == []
    created = cdcwatch("slot", "create", "-c", published)
    assert created.code == 0, created
    assert _publications(database) == [("Or ders", "{id,status,expires_at,version}")]
    with database.connect() as connection:
        assert slots_named(connection, slot) == [("pgoutput", database.name)]
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
        # The column list holds the replica identity: the application's own changes still work.
        connection.execute("UPDATE orders SET version = 1; DELETE FROM orders")
    shown = json.loads(cdcwatch("slot", "peek", "--json", "-c", published).out)
    assert [change["event"]["type"] for change in shown["changes"]] == [
        "deadline.scheduled", "deadline.scheduled", "deadline.cancelled",
    ]  # fmt: skip
    assert cdcwatch("check", "-c", published).code == 0
    dropped = cdcwatch("slot", "drop", "--yes", "-c", published)
    assert 'DROP PUBLICATION "Or ders";' in dropped.out


def test_a07_a_publication_that_came_late_is_recognised_and_never_retried(
    database: Database, slot: str, published: Path
) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
        missing = cdcwatch("check", "-c", published)
        assert missing.code == 1
        assert 'fail  publication    there is no publication "Or ders", and slot' in missing.out
        connection.execute(
            'CREATE PUBLICATION "Or ders" FOR TABLE orders WITH (publish_via_partition_root = true)'
        )  # too late for that INSERT
    late = cdcwatch("check", "-c", published)
    assert late.code == 1
    assert "changes from before the publication was made" in late.out
    peeked = cdcwatch("slot", "peek", "-c", published)
    assert peeked.code == 3
    assert "remedy: cdcwatch slot advance --to current" in peeked.err
    # The remedy works, though what it skips can't be shown.
    assert cdcwatch("slot", "advance", "--to", "current", "--yes", "-c", published).code == 0
    assert cdcwatch("check", "-c", published).code == 0


def test_a07_a_publication_made_for_a_slot_that_failed_goes_with_it(
    database: Database, slot: str, published: Path
) -> None:
    with database.connect(autocommit=False) as blocker, database.connect() as connection:
        blocker.execute("CREATE TABLE other (id int); INSERT INTO other VALUES (1)")
        ended = cdcwatch("slot", "create", "--timeout", "2", "-c", published)
        assert ended.code == 3, ended
        assert "nothing was left behind" in ended.err
        assert _publications(database) == []
        process = start_cdcwatch("slot", "create", "-c", published)
        assert process.stderr is not None
        assert "waiting for a transaction" in process.stderr.readline()
        assert _publications(database) != []
        process.terminate()
        process.communicate(timeout=120)
        assert process.returncode == 4
        assert _publications(database) == []
        assert slots_named(connection, slot) == []


@pytest.mark.parametrize("what", ["slot", "publication"])
def test_a07_what_somebody_else_made_meanwhile_is_left_alone(
    database: Database, slot: str, published: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    from cdcwatch.slot import creation

    with database.connect() as connection:

        def meanwhile(_checks: object) -> None:
            if what == "slot":
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
            else:
                connection.execute('CREATE PUBLICATION "Or ders" FOR TABLE orders (id)')

        monkeypatch.setattr(creation, "require_met", meanwhile)
        refused = cdcwatch("slot", "create", "-c", published)
        assert refused.code == 3
        assert "made by somebody else meanwhile" in refused.err
        assert len(slots_named(connection, slot)) == int(what == "slot")
        assert _publications(database) == ([] if what == "slot" else [("Or ders", "{id}")])


@pytest.mark.parametrize(
    ("statement", "said", "remedy"),
    [
        ("FOR TABLE orders (id, status, expires_at)", "lacks the columns version", 'ALTER PUBLICATION "Or ders" SET'),
        ("FOR TABLE orders WHERE (status = 'pending')", "has a row filter", 'ALTER PUBLICATION "Or ders" SET'),
        (
            "FOR TABLE orders WITH (publish = 'insert')",
            "leaves out some kinds of change",
            "ALTER PUBLICATION \"Or ders\" SET (publish = 'insert, update, delete, truncate')",
        ),
        ("", "does not hold public.orders", 'ALTER PUBLICATION "Or ders" ADD TABLE public.orders'),
    ],
)
def test_a07_a_publication_that_does_not_do_is_mended_by_its_remedy(
    database: Database, published: Path, statement: str, said: str, remedy: str
) -> None:
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL" if "WHERE" in statement else "SELECT 1")
        connection.execute(f'CREATE PUBLICATION "Or ders" {statement}')  # type: ignore[call-overload]
        told = json.loads(cdcwatch("check", "--json", "-c", published).out)["checks"]
        flaw = next(one for one in told if one["name"] == "publication")
        assert flaw["state"] == "fail"
        assert said in flaw["message"]
        assert flaw["remedy"].startswith(remedy)
        connection.execute(flaw["remedy"])
    told = json.loads(cdcwatch("check", "--json", "-c", published).out)["checks"]
    assert next(one for one in told if one["name"] == "publication")["state"] == "ok"


@pytest.mark.parametrize("identity", ["FULL", "USING INDEX wide", "DEFAULT"])
def test_a07_the_applications_own_changes_work_whatever_the_replica_identity(
    database: Database, published: Path, identity: str
) -> None:
    """PostgreSQL refuses them where a column list lacks a column of the replica identity."""
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders ADD note text NOT NULL DEFAULT ''")
        connection.execute("CREATE UNIQUE INDEX wide ON orders (id, note)")
        connection.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}")  # type: ignore[call-overload]
        assert cdcwatch("slot", "create", "-c", published).code == 0
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
        connection.execute("UPDATE orders SET note = 'x'; DELETE FROM orders")
    assert cdcwatch("check", "-c", published).code == 0


def test_a07_an_identity_beyond_the_column_list_is_told_before_the_application_fails(
    database: Database, published: Path
) -> None:
    assert cdcwatch("slot", "create", "-c", published).code == 0
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders ADD note text; ALTER TABLE orders REPLICA IDENTITY FULL")
        connection.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            connection.execute("UPDATE orders SET version = 2")
        told = json.loads(cdcwatch("check", "--json", "-c", published).out)["checks"]
        flaw = next(one for one in told if one["name"] == "publication")
        assert "UPDATE and DELETE fail in the application" in flaw["message"]
        connection.execute(flaw["remedy"])
        connection.execute("UPDATE orders SET version = 2")


@pytest.mark.parametrize("identity", ["FULL", "USING INDEX wide"])
@pytest.mark.parametrize("others", ["", ", note"], ids=["some columns", "every column"])
def test_a07_a_column_list_that_the_identity_does_not_go_with_is_told_though_it_may_name_every_column(
    database: Database, published: Path, others: str, identity: str
) -> None:
    """No list goes with FULL, not even one of all columns; it does with an index whose columns it holds."""
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders ADD note text NOT NULL DEFAULT ''")
        connection.execute("CREATE UNIQUE INDEX wide ON orders (id, note)")
        connection.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}")  # type: ignore[call-overload]
        connection.execute(
            f'CREATE PUBLICATION "Or ders" FOR TABLE orders (id, status, expires_at, version{others})'  # type: ignore[call-overload]
        )
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
        told = json.loads(cdcwatch("check", "--json", "-c", published).out)["checks"]
        judged = next(one for one in told if one["name"] == "publication")
        if identity == "FULL" or not others:
            with pytest.raises(psycopg.errors.InvalidColumnReference):
                connection.execute("UPDATE orders SET version = 2")
            assert judged["state"] == "fail"
            assert "the replica identity of public.orders" in judged["message"]
            connection.execute(judged["remedy"])
            assert cdcwatch("check", "-c", published).code == 0
        else:
            assert judged["state"] == "ok"
        connection.execute("UPDATE orders SET version = 2")


def test_a07_a_role_that_may_not_make_it_is_given_the_statement(
    database: Database, slot: str, role: str, tmp_path: Path
) -> None:
    with database.connect() as connection:
        connection.execute(f"ALTER ROLE {role} REPLICATION; GRANT SELECT, UPDATE ON orders TO {role}")  # type: ignore[call-overload]
        plain = write_configuration(
            tmp_path / "plain.toml",
            psycopg.conninfo.make_conninfo(database.dsn, user=role),
            f'[slot]\nname = "{slot}"\nplugin = "pgoutput"\n' + QUIET,
        )
        refused = cdcwatch("slot", "create", "-c", plain)
        assert refused.code == 3
        remedy = refused.err.partition("remedy: ")[2].strip()
        assert remedy.startswith("as an owner of the table with CREATE in the database: CREATE PUBLICATION")
        connection.execute(remedy.partition(": ")[2])
        assert cdcwatch("slot", "create", "-c", plain).code == 0
