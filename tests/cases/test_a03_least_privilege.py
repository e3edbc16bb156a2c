"""A3: the role of sql/install.sql runs everything and has no more, and what is taken from it is told with its GRANT."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.command import ORDERS, Ended, cdcwatch
from tests.endpoint import Endpoint
from tests.integration.test_install import PSQL, _install
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

pytestmark = pytest.mark.skipif(PSQL is None, reason="needs psql")


@pytest.fixture
def worker(database: Database) -> Iterator[str]:
    """Made by the script in a database that gives nothing to everybody."""
    name = f"worker_{database.name}"
    with database.connect() as connection:
        connection.execute(ORDERS)
        connection.execute(
            f"REVOKE ALL ON DATABASE {database.name} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC"
        )
    made = _install(database, role=name, identity="on")
    assert made.returncode == 0, made
    yield name
    with database.connect() as connection:
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def world(request: Any, database: Database, worker: str, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    plugin = getattr(request, "param", "wal2json")
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        if plugin == "pgoutput":  # the publication is its owner's to make
            world.create_slot()
        text = world.configuration.read_text()
        text = text.replace(database.dsn, psycopg.conninfo.make_conninfo(database.dsn, user=worker))
        world.configuration.write_text(text.replace("[slot]\n", "[slot]\nheartbeat_s = 0.1\n"))
        if plugin == "wal2json":
            world.create_slot()
        yield world


def asked(world: World, *arguments: str) -> Ended:
    ended = cdcwatch(*arguments, "-c", world.configuration)
    assert ended.code == 0, ended
    return ended


@pytest.mark.parametrize("world", ["wal2json", "pgoutput"], indirect=True)
def test_a03_the_role_of_the_script_runs_every_command(world: World) -> None:
    with world.running():
        world.connection.execute("INSERT INTO orders VALUES (1, 'pending', clock_timestamp())")
        world.wait_nothing_due()
        world.connection.execute("INSERT INTO orders VALUES (2, 'pending', '2999-01-01')")
        world.wait_confirmed()
        owners = "SELECT DISTINCT usename::text FROM pg_stat_activity WHERE application_name LIKE 'cdcwatch%%'"
        who = world.connection.execute(f"{owners} AND datname = %s", [world.database.name]).fetchall()  # type: ignore[call-overload]
        assert who == [(f"worker_{world.database.name}",)]
        checks = json.loads(asked(world, "check", "--json").out)["checks"]
        assert {one["name"] for one in checks if one["state"] == "fail"} == set()
        assert next(one for one in checks if one["name"] == "sweep")["message"].endswith("instances share the work")
        swept = "SELECT count(*) FROM cdcwatch.instances WHERE watched = 'orders'::regclass"
        wait_until(lambda: world.scalar(swept) == 1, 20, "it is registered")
        assert "deadline.expired" in asked(world, "events", "--from-beginning", "--json").out
        assert "2999-01-01" in asked(world, "pending").out
        assert "expired" in asked(world, "explain", "1").out
        assert world.slot in asked(world, "slot", "status").out
        listed = cdcwatch("slot", "list", "--json", "-c", world.configuration)
        assert listed.code in {0, 1}, "1: a slot of somebody else on this server is past a threshold"
        assert world.slot in listed.out
    assert world.scalar("SELECT count(*) FROM cdcwatch.instances") == 0, "it took its leave"
    assert "recovered" not in world.log.read_text()
    assert "heartbeat:" not in world.log.read_text(), "it needs no right"
    world.connection.execute("UPDATE orders SET expires_at = '2999-01-02' WHERE id = 2")
    assert "2999-01-02" in asked(world, "slot", "peek", "--explain").out
    asked(world, "slot", "advance", "--to", "current", "--yes")
    asked(world, "slot", "drop", "--yes")


def test_a03_it_has_no_right_more(database: Database, worker: str) -> None:
    with database.connect() as connection:
        given = connection.execute(
            """SELECT 'database', acl.privilege_type FROM pg_database, aclexplode(datacl) acl
                WHERE datname = current_database() AND acl.grantee = %(role)s::regrole
               UNION ALL SELECT 'schema ' || nspname, acl.privilege_type FROM pg_namespace, aclexplode(nspacl) acl
                WHERE acl.grantee = %(role)s::regrole
               UNION ALL SELECT relname, acl.privilege_type FROM pg_class, aclexplode(relacl) acl
                WHERE acl.grantee = %(role)s::regrole
               UNION ALL SELECT proname, acl.privilege_type FROM pg_proc, aclexplode(proacl) acl
                WHERE acl.grantee = %(role)s::regrole""",
            {"role": worker},
        ).fetchall()
        assert sorted(given) == [
            ("claims", "DELETE"),
            ("claims", "INSERT"),
            ("claims", "SELECT"),
            ("claims", "UPDATE"),
            ("database", "CONNECT"),
            ("instances", "DELETE"),
            ("instances", "INSERT"),
            ("instances", "SELECT"),
            ("instances", "UPDATE"),
            ("orders", "SELECT"),
            ("orders", "UPDATE"),
            ("schema cdcwatch", "USAGE"),
            ("schema public", "USAGE"),
        ]
        attributes = connection.execute(
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolreplication,"
            " (SELECT count(*) FROM pg_auth_members WHERE member = role.oid) FROM pg_roles role WHERE rolname = %s",
            [worker],
        ).fetchone()
        assert attributes == (False, False, False, False, True, 0)
    with psycopg.connect(psycopg.conninfo.make_conninfo(database.dsn, user=worker), autocommit=True) as ours:
        for forbidden in (
            "DELETE FROM orders",
            "INSERT INTO orders VALUES (9, 'pending', now())",
            "TRUNCATE orders",
            "CREATE TABLE public.mine (id int)",
            "CREATE TABLE cdcwatch.mine (id int)",
            "CREATE TEMPORARY TABLE mine (id int)",
            "CREATE PUBLICATION mine FOR ALL TABLES",
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "ALTER SYSTEM SET wal_level = 'replica'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ours.execute(forbidden)


TAKEN = {
    "SELECT": ("REVOKE SELECT ON orders FROM {role}", "GRANT SELECT ON public.orders TO {role}"),
    "UPDATE": ("REVOKE UPDATE ON orders FROM {role}", "GRANT UPDATE ON public.orders TO {role}"),
    "USAGE": ("REVOKE USAGE ON SCHEMA public FROM {role}", "GRANT USAGE ON SCHEMA public TO {role}"),
    "REPLICATION": ("ALTER ROLE {role} NOREPLICATION", "ALTER ROLE {role} REPLICATION"),
    "TEMPORARY": ("", "GRANT TEMPORARY ON DATABASE {database} TO {role}"),
    "CONNECT": ("REVOKE CONNECT ON DATABASE {database} FROM {role}", "GRANT CONNECT ON DATABASE"),
}


def test_a03_every_right_that_is_taken_away_is_told_with_its_grant(world: World, worker: str) -> None:
    world.configuration.write_text(world.configuration.read_text() + '[close]\nalso = "SELECT FROM closed"\n')

    def failing() -> dict[str, dict[str, Any]]:
        checks = json.loads(cdcwatch("check", "--json", "-c", world.configuration).out)["checks"]
        return {one["name"]: one for one in checks if one["state"] == "fail"}

    names = {"role": worker, "database": world.database.name}
    for right, (taking, grant) in reversed(TAKEN.items()):
        if taking:
            world.connection.execute(taking.format(**names))  # type: ignore[call-overload]
        found = wait_until(failing, 20, f"{right} is missed")
        told = next(one for one in found.values() if grant.format(**names) in one["remedy"])
        if right == "CONNECT":
            world.connection.execute(f"GRANT CONNECT ON DATABASE {names['database']} TO {worker}")
            continue
        assert right in told["message"]
        assert {one["unreachable"] for one in found.values()} == {False}
        world.connection.execute(told["remedy"])
        assert failing() == {}, right


def test_a03_it_may_claim_orders(world: World, worker: str) -> None:
    with Endpoint().serving() as endpoint:
        text = world.configuration.read_text()
        world.configuration.write_text(f'{text}[close]\naction = "claim"\n[close.claim]\nurl = "{endpoint.url}"\n')
        world.connection.execute("INSERT INTO orders VALUES (1, 'pending', clock_timestamp())")
        with world.running():
            closed = "SELECT count(*) FROM orders WHERE status = 'expired'"
            wait_until(lambda: world.scalar(closed) == 1, 60, "closed")
        assert endpoint.effects == {"1": 1}
        checks = json.loads(asked(world, "check", "--json").out)["checks"]
        assert {one["name"]: one["state"] for one in checks}["claims"] == "ok"
        world.connection.execute(f"REVOKE DELETE, INSERT ON cdcwatch.claims FROM {worker}")  # type: ignore[call-overload]
        checks = json.loads(cdcwatch("check", "--json", "-c", world.configuration).out)["checks"]
        (told,) = [one for one in checks if one["name"] == "claims"]
        assert told["state"] == "fail"
        assert told["remedy"] == f"GRANT INSERT, DELETE ON cdcwatch.claims TO {worker}"
        world.connection.execute(told["remedy"])
        assert asked(world, "check").code == 0
