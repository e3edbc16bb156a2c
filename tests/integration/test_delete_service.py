"""`run` and `sweep` with `close.action = "delete"`: what subscribers, the dead letters and the role's rights come to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import cdcwatch, run_to_the_end, write_configuration
from tests.integration.test_install import PSQL, _install
from tests.oracle.subscriber import by_key
from tests.oracle.world import World
from tests.topic import read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

DELETE = '[close]\naction = "delete"\nattempts = 2\n'
REFUSED = """
CREATE TABLE payments (order_id bigint REFERENCES orders);
CREATE TABLE lines (order_id bigint REFERENCES orders ON DELETE CASCADE);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER keep BEFORE DELETE ON orders FOR EACH ROW WHEN (old.id = 4) EXECUTE FUNCTION keep()
"""


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_closes_have_expired_and_the_applications_deletes_are_cancelled(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, DELETE, plugin=plugin) as world:
        world.listen()
        world.install()
        world.connection.execute(REFUSED)
        # Of one batch the answer is lost: its orders are gone then, and were closed. Due in a moment: of what is due
        # before its commit is seen, the first batch would close nothing.
        with world.running(environment={"CDCWATCH_FAILPOINTS": "close.committed=raise@first"}) as process:
            world.connection.execute(
                "BEGIN; INSERT INTO orders (id, expires_at)"
                " SELECT n, clock_timestamp() + interval '1 s' FROM generate_series(1, 300) n;"
                " INSERT INTO payments VALUES (2); INSERT INTO lines SELECT n FROM generate_series(1, 300, 3) n; COMMIT"
            )
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(1000, 1009) n"
            )
            world.connection.execute("DELETE FROM orders WHERE id BETWEEN 1000 AND 1004")
            world.wait_nothing_due_but(2 + 5)
            wait_until(lambda: world.metric("cdcwatch_dead_letters_total") == 2, 60, "both are given up")
            # An order of the same key is another one.
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (9, clock_timestamp())")
            world.wait_nothing_due_but(2 + 5)
            world.wait_confirmed()
            letters = [json.loads(found.value) for found in read_topic(world.bootstrap_servers, f"{topic}.dead")]
            assert {letter["key"]["id"]: letter["reason"] for letter in letters} == {
                "2": "the close failed 2 times: SQLSTATE 23503 (ForeignKeyViolation, constraint payments_order_id_fkey)",
                "4": "the close failed 2 times: the DELETE removed no row: a trigger, or row-level security?",
            }
            counts = [
                world.metric(f'cdcwatch_closes_total{{outcome="{one}"}}') for one in ("closed", "found_closed", "gone")
            ]
            assert (counts[0] + counts[1], counts[1] > 0, counts[2]) == (299, True, 0)
            process.kill()
        world.connection.execute("DROP TRIGGER keep ON orders; DELETE FROM payments")
        explained = cdcwatch("explain", "9", "-c", world.configuration)
        assert explained.out.count("  expired  ") == 2, explained.said
        with world.running():
            world.wait_nothing_due_but(5)
            world.wait_confirmed()
        records = world.judge()
        assert world.scalar("SELECT count(*) FROM lines") == 0
        said = {key: [record.event["type"] for record in its] for key, its in by_key(records).items()}
        assert said[9] == ["deadline.scheduled", "deadline.expired"] * 2
        assert said[1000] == ["deadline.scheduled", "deadline.cancelled"]


def test_the_sweep_alone_deletes_what_is_overdue(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE carts (id bigint PRIMARY KEY, expires_at timestamptz);"
            "INSERT INTO carts SELECT n, now() - interval '1 s' FROM generate_series(1, 2500) n;"
            "INSERT INTO carts VALUES (3000, now() + interval '1 day'), (3001, NULL);"
            "CREATE INDEX due ON carts (expires_at) WHERE expires_at IS NOT NULL"
        )
        shop = write_configuration(
            tmp_path / "shop.toml",
            database.dsn,
            '[table]\nname = "carts"\nstatus = ""\nversion = ""\n[close]\naction = "delete"\n[telemetry]\nlisten = ""\n',
        )
        ended = run_to_the_end("sweep", "--once", "--json", "-c", shop)
        assert (ended.code, json.loads(ended.out)) == (0, {"closed": 2500, "left": 0}), ended.said
        assert connection.execute("SELECT array_agg(id ORDER BY id) FROM carts").fetchone() == ([3000, 3001],)


@pytest.mark.skipif(PSQL is None, reason="needs psql")
def test_the_role_of_the_script_may_delete_carts_and_is_told_what_it_lacks(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    role = f"worker_{database.name}"
    extra = f'[table]\nname = "carts"\nstatus = ""\nversion = ""\n{DELETE}'
    with World(database, kafka.bootstrap_servers, topic, tmp_path, extra, plugin="pgoutput") as world:
        world.connection.execute(
            "CREATE TABLE carts (id bigint PRIMARY KEY, customer text, expires_at timestamptz NOT NULL);"
            "INSERT INTO carts VALUES (1, 'a', '2999-01-01')"
        )
        done = _install(database, role=role, table="carts", status="", close="delete", identity="on")
        assert (done.returncode, done.stderr) == (0, ""), done
        try:
            assert _install(database, role=role, table="carts", status="", close="delete", identity="on").stderr == ""
            text = world.configuration.read_text()
            world.create_slot()  # the publication is its owner's to make
            dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role)
            world.configuration.write_text(text.replace(database.dsn, dsn))
            with world.running():
                world.connection.execute("INSERT INTO carts VALUES (2, 'b', clock_timestamp())")
                wait_until(lambda: world.scalar("SELECT count(*) FROM carts") == 1, 60, "the due cart is gone")
                world.wait_confirmed()
            told = [(record.key, record.event["type"], record.event["data"]["previous_deadline"] is not None)
                    for record in world.records()]  # fmt: skip
            assert sorted(told) == [
                ("1", "deadline.scheduled", False), ("2", "deadline.expired", True), ("2", "deadline.scheduled", False),
            ]  # fmt: skip

            def checks() -> dict[str, dict[str, str]]:
                found = json.loads(cdcwatch("check", "--json", "-c", world.configuration).out)["checks"]
                return {one["name"]: one for one in found}

            found = checks()
            assert {name for name, one in found.items() if one["state"] == "fail"} == set()
            assert {found[name]["state"] for name in ("identity", "index", "rights")} == {"ok"}
            for taken in ("DELETE", "UPDATE (id)"):
                world.connection.execute(f"REVOKE {taken} ON carts FROM {role}")  # type: ignore[call-overload]
                lacking = checks()["rights"]
                assert lacking["state"] == "fail"
                assert lacking["remedy"] == f"GRANT {taken} ON public.carts TO {role}"
                world.connection.execute(lacking["remedy"])  # type: ignore[call-overload]
            assert checks()["rights"]["state"] == "ok"
        finally:
            world.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")  # type: ignore[call-overload]
