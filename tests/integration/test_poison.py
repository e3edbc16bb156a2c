"""Orders whose close the database refuses: singled out, given up after some attempts, the others on time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.command import cdcwatch
from tests.oracle.world import World
from tests.topic import read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN IF new.status = 'expired' AND new.id = 2 THEN RAISE 'secret %', new.id; END IF; RETURN new; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE orders ADD CHECK (status <> 'expired' OR id <> 4)
"""


@pytest.mark.parametrize(
    ("plugin", "delivery"), [("wal2json", "exactly_once"), ("pgoutput", "exactly_once"), ("wal2json", "at_least_once")]
)
def test_an_order_that_cannot_be_closed_becomes_a_dead_letter_and_the_others_are_closed(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, delivery: str
) -> None:
    with World(
        database,
        kafka.bootstrap_servers,
        topic,
        tmp_path,
        "[close]\nattempts = 2\n",
        kafka={"delivery": delivery},
        plugin=plugin,
    ) as world:
        world.listen()
        world.install()
        world.connection.execute(REFUSE)
        with world.running() as process:
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(1, 500) n"
            )
            world.wait_nothing_due_but(2)
            wait_until(lambda: world.metric("cdcwatch_dead_letters_total") == 2, 60, "both are given up")
            world.wait_confirmed()
            letters = [json.loads(found.value) for found in read_topic(world.bootstrap_servers, f"{topic}.dead")]
            assert {letter["key"]["id"]: letter["reason"] for letter in letters} == {
                "2": "the close failed 2 times: SQLSTATE P0001 (RaiseException)",
                "4": "the close failed 2 times: SQLSTATE 23514 (CheckViolation, constraint orders_check)",
            }
            assert {(letter["about"], letter["attempts"], letter["version"]) for letter in letters} == {("close", 2, 0)}
            assert cdcwatch("events", "--dead", "-c", world.configuration).out.count("the close failed 2 times") == 2
            process.kill()
        assert "secret" not in world.log.read_text()
        # What refuses it is mended, and any change of the order is a word to try again at once; so is a start.
        world.connection.execute("DROP TRIGGER refuse ON orders; ALTER TABLE orders DROP CONSTRAINT orders_check")
        with world.running():
            world.wait_nothing_due()
            world.wait_confirmed()
        world.judge(exactly_once=delivery == "exactly_once")
        assert len(read_topic(world.bootstrap_servers, f"{topic}.dead")) == 2, "nothing is told twice"


POISON = """
CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF new.status = 'expired' THEN
    CASE new.id
      WHEN 10 THEN RAISE 'secret %', new.id USING ERRCODE = '08001';
      WHEN 60 THEN RAISE 'secret %', new.id USING ERRCODE = '53400';
      WHEN 110 THEN RAISE 'secret %', new.id USING ERRCODE = '25006';
      WHEN 160 THEN PERFORM pg_sleep(60);
      WHEN 210 THEN PERFORM pg_terminate_backend(pg_backend_pid());
      WHEN 260 THEN RETURN NULL;
      ELSE NULL;
    END CASE;
  END IF;
  RETURN new;
END $$;
CREATE TRIGGER poison BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION poison()
"""


def test_poison_of_every_kind_at_once_is_told_apart_from_a_database_that_is_away(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, "[close]\nattempts = 2\n") as world:
        world.listen()
        world.install()
        world.connection.execute(POISON)
        world.connection.execute(f"ALTER DATABASE {database.name} SET statement_timeout = '500ms'")
        with world.running() as process:
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(1, 300) n"
            )
            world.wait_nothing_due_but(6)
            wait_until(lambda: world.metric("cdcwatch_dead_letters_total") == 6, 60, "each is given up")
            world.wait_confirmed()
            letters = [json.loads(found.value) for found in read_topic(world.bootstrap_servers, f"{topic}.dead")]
            said = {
                letter["key"]["id"]: letter["reason"].removeprefix("the close failed 2 times: ") for letter in letters
            }
            assert said == {
                "10": "SQLSTATE 08001 (SqlclientUnableToEstablishSqlconnection)",
                "60": "SQLSTATE 53400 (ConfigurationLimitExceeded)",
                "110": "SQLSTATE 25006 (ReadOnlySqlTransaction)",
                "160": "SQLSTATE 57014 (QueryCanceled)",
                "210": "the connection broke",
                "260": "the UPDATE changed no row: a trigger?",
            }
            assert "secret" not in json.dumps(world.readiness())
            process.kill()
        log = world.log.read_text()
        assert "secret" not in log
        assert "terminating connection" not in log
