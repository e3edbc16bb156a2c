"""`slot peek|advance|drop|status|list`, `explain` and the broker's half of `check`, on real servers."""

from __future__ import annotations

import io
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cdcwatch.configuration import load_settings
from cdcwatch.handoff.kafka.ledger import find_progress
from cdcwatch.lsn import parse_lsn
from tests.command import cdcwatch, start_cdcwatch, write_configuration
from tests.oracle.world import World
from tests.services import create_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

CHANGES = """
INSERT INTO orders VALUES (1, 'pending', '2030-01-01'), (2, 'paid', '2030-01-01');
UPDATE orders SET expires_at = '2031-01-01', version = 1 WHERE id = 1;
UPDATE orders SET version = 2 WHERE id = 2;
DELETE FROM orders WHERE id = 2
"""


@pytest.fixture
def world(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        yield world


def _json(*arguments: str | Path) -> Any:
    return json.loads(cdcwatch(*arguments, "--json").out)


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_peek_shows_the_events_that_run_then_publishes(database: Database, slot: str, shop: Path, plugin: str) -> None:
    assert cdcwatch("slot", "create", "--plugin", plugin, "-c", shop).code == 0
    with database.connect() as connection:
        for statement in CHANGES.split(";"):
            connection.execute(statement)  # type: ignore[call-overload]
        position = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        before = connection.execute(position, [slot]).fetchall()
        connection.execute("ALTER ROLE CURRENT_USER IN DATABASE %s SET datestyle = 'German'" % database.name)  # noqa: UP031  # type: ignore[call-overload]
    explained = cdcwatch("slot", "peek", "--explain", "-c", shop).out.splitlines()
    assert [line.split(maxsplit=3)[1:] for line in explained[1:6]] == [
        ["insert", "1", "scheduled 2030-01-01T00:00:00.000000Z"],
        ["insert", "2", "- status paid is not open"],
        ["update", "1", "scheduled 2031-01-01T00:00:00.000000Z"],
        ["update", "2", "cancelled (paid) 2030-01-01T00:00:00.000000Z"],
        ["delete", "2", "cancelled (deleted) -"],
    ]
    assert cdcwatch("slot", "peek", "-n", "2", "-c", shop).out.splitlines()[-2:] == [
        "and 1 change without an event: --explain tells why",
        "there are more: -n N",
    ]
    with database.connect() as connection:
        assert connection.execute(position, [slot]).fetchall() == before


def test_peek_agrees_with_the_topic_and_knows_what_it_holds(world: World) -> None:
    with world.running("--role", "read"):
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2030-01-01')")
        world.wait_confirmed()
    world.connection.execute("UPDATE orders SET expires_at = '2031-01-01', version = version + 1 WHERE id = 1")
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2030-01-01')")
    waiting = _json("slot", "peek", "-c", world.configuration)["changes"]
    with world.running("--role", "read"):
        world.wait_confirmed()
    published = [record.event for record in world.records()]
    assert [one["event"] for one in waiting if one["event"]] == published[-len(waiting) :]
    assert _json("slot", "peek", "--explain", "-c", world.configuration)["changes"] == []


def test_peek_finds_the_tables_changes_behind_thousands_of_others(database: Database, slot: str, shop: Path) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        connection.execute("CREATE TABLE other (id int)")
        connection.execute("DO $$ BEGIN FOR n IN 1..600 LOOP INSERT INTO other VALUES (n); COMMIT; END LOOP; END $$")
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
    found = _json("slot", "peek", "-n", "5", "-c", shop)
    assert [one["key"] for one in found["changes"]] == ["1"]
    assert found["is_all"] is True


def test_advance_shows_what_it_skips_and_asks(
    database: Database, slot: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        for statement in CHANGES.split(";"):
            connection.execute(statement)  # type: ignore[call-overload]

        def position() -> int:
            row = connection.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [slot]
            ).fetchone()
            assert row is not None
            return parse_lsn(row[0])

        start = position()
        for answer, code in (("n\n", 1), ("", 2)):
            monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
            asked = cdcwatch("slot", "advance", "--to", "current", "-c", shop)
            assert asked.code == code
            assert "changes of the table    5 (1 delete, 2 insert, 2 update)" in asked.out
            assert "events never published  4 (2 cancelled, 2 scheduled)" in asked.out
            assert "open deadlines          1 that the topic would not learn" in asked.out
            assert position() == start
            assert "nothing is closed until `run --accept-gap`; then" in asked.out
        for wrong, said in (
            ("0/1", "lies behind the slot"),
            ("FFFFFF/0", "lies beyond the server's WAL"),
            ("tomorrow", "takes an LSN or `current`"),
        ):
            refused = cdcwatch("slot", "advance", "--to", wrong, "--yes", "-c", shop)
            assert refused.code == 2
            assert said in refused.err
            assert position() == start
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
        moved = cdcwatch("slot", "advance", "--to", "current", "-c", shop)
        assert moved.code == 0, moved
        assert position() > start
    assert "no change of the table is waiting" in cdcwatch("slot", "peek", "-c", shop).out


def test_advance_up_to_an_lsn_leaves_the_rest(database: Database, slot: str, shop: Path) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        connection.execute("INSERT INTO orders VALUES (2, 'pending', '2030-01-01')")
    assert "    1 (1 insert)" in cdcwatch("slot", "advance", "--to", row[0], "--yes", "-c", shop).out
    assert [one["key"] for one in _json("slot", "peek", "-c", shop)["changes"]] == ["2"]


def test_advance_says_how_run_goes_on_and_that_is_so(world: World) -> None:
    with world.running("--role", "read"):
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
        world.wait_confirmed()
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2999-01-01')")
    moved = cdcwatch("slot", "advance", "--to", "current", "--yes", "-c", world.configuration)
    assert "cdcwatch run --accept-gap" in moved.out
    told = cdcwatch("slot", "status", "-c", world.configuration)
    assert told.code == 1
    assert "is beyond the topic's progress" in told.err
    assert "remedy: cdcwatch recover, or cdcwatch run --accept-gap" in told.err
    refused = cdcwatch("check", "-c", world.configuration)
    assert refused.code == 1
    assert "fail  gap            run stops: the slot stands at " in refused.out
    assert "remedy: cdcwatch run --accept-gap" in refused.out
    assert world.run("--role", "read").wait() == 3
    with world.running("--role", "read", "--accept-gap"):
        world.wait_confirmed()
    assert cdcwatch("slot", "status", "-c", world.configuration).code == 0
    well = cdcwatch("check", "-c", world.configuration)
    assert well.code == 0, well
    assert "ok    gap            the slot holds what follows" in well.out
    told = [record for record in world.records() if record.event["data"]["snapshot"]]
    assert [record.key for record in told if not record.is_gap] == ["2"]


def test_drop_shows_what_was_never_read(
    database: Database, slot: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
    asked = cdcwatch("slot", "drop", "-c", shop)
    assert asked.code == 2
    assert "changes of the table    1 (1 insert)" in asked.out
    assert "open deadlines          1 that the topic would not learn" in asked.out
    assert "nothing is closed until `slot create` and" in asked.out


def test_create_with_snapshot_publishes_open_orders_though_the_topic_has_progress(world: World) -> None:
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
    settings = load_settings(world.configuration)
    with world.running("--role", "read"):
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2999-01-01')")
        world.wait_confirmed()
    assert find_progress(settings.kafka, world.slot) is not None
    hinted = cdcwatch("slot", "create", "-c", world.configuration)
    assert "The topic holds progress of a slot of this name" in hinted.out
    planned = cdcwatch("slot", "create", "--snapshot", "--dry-run", "-c", world.configuration)
    assert f"would forget the progress of {world.slot}" in planned.out
    assert find_progress(settings.kafka, world.slot) is not None
    forced = cdcwatch("slot", "create", "--snapshot", "-c", world.configuration)
    assert forced.code == 0, forced
    assert "The first run publishes all open orders" in forced.out
    assert find_progress(settings.kafka, world.slot) is None
    with world.running("--role", "read"):
        world.wait_confirmed()
    world.wait_topic_committed()
    assert sorted(str(record.key) for record in world.events()) == ["1", "2"], "what the topic knows is not told again"
    assert [record.partition for record in world.records() if record.is_gap] == [0, 1, 2]


def test_a_snapshot_that_cannot_be_promised_makes_no_slot(database: Database, slot: str, shop: Path) -> None:
    away = shop.with_name("away.toml")
    away.write_text(shop.read_text().replace("none", "kafka") + '[kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    refused = cdcwatch("slot", "create", "--snapshot", "-c", away)
    assert refused.code == 1
    assert "no slot was made" in refused.err
    assert cdcwatch("slot", "create", "--snapshot", "-c", shop).code == 2
    with database.connect() as connection:
        assert not connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchall()


def test_status_tells_the_topics_progress_beside_the_slots(world: World) -> None:
    with world.running("--role", "read"):
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
        world.wait_confirmed()
        told = _json("slot", "status", "-c", world.configuration)
        assert parse_lsn(told["topic"]["flush_lsn"]) >= parse_lsn(told["confirmed_flush_lsn"])
        assert told["owner"]["application_name"] == "cdcwatch"
        assert told["alarms"] == []
        assert told["wal_bytes_per_s"] >= 0
        assert told["wal_bytes_per_s_average"] > 0
    away = world.configuration.with_name("away.toml")
    away.write_text(world.configuration.read_text().replace(world.bootstrap_servers, "127.0.0.1:1"))
    unknown = cdcwatch("slot", "status", "-c", away)
    assert unknown.code == 0, "the slot's own state is known"
    assert "topic's flush_lsn     unknown: Kafka" in unknown.out


def test_status_and_list_watch_until_a_signal(database: Database, slot: str, shop: Path) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    for command in ("status", "list"):
        process = start_cdcwatch("slot", command, "--watch", "--interval", "0.1", "--json", "-c", shop)
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        first = looks[0] if command == "status" else next(one for one in looks[0] if one["name"] == slot)
        assert first["name"] == slot
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")


def test_list_shows_every_slot_and_marks_ours(database: Database, slot: str, shop: Path) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    foreign = f"foreign_{database.name}"
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [foreign])
    lines = cdcwatch("slot", "list", "--interval", "0", "-c", shop).out.splitlines()
    assert any(line.startswith("* ") and "wal2json" in line for line in lines)
    assert any(line.startswith("  ") and "test_dec" in line for line in lines)
    assert {one["name"] for one in _json("slot", "list", "-c", shop)} >= {slot, foreign}


def test_explain_tells_an_orders_story(world: World) -> None:
    world.connection.execute(
        "INSERT INTO orders (id, expires_at) VALUES (1, now() + interval '10 minutes'), (2, 'infinity'), (3, '2999-01-01')"
    )
    with world.running("--role", "read"):
        world.wait_confirmed()
        world.connection.execute("UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 3")
        world.connection.execute("DELETE FROM orders WHERE id = 2")
        world.wait_confirmed()
    soon = _json("explain", "1", "-c", world.configuration)
    assert soon["window"] == "in the heap of a running service"
    assert 500 < soon["row"]["in_s"] < 600
    assert [event["type"] for event in soon["events"]] == ["deadline.scheduled"]
    paid = _json("explain", "3", "-c", world.configuration)
    assert (paid["row"]["is_open"], paid["window"]) == (False, "not in the heap: its status is not open")
    assert [event["type"] for event in paid["events"]] == ["deadline.scheduled", "deadline.cancelled"]
    gone = _json("explain", "2", "-c", world.configuration)
    assert (gone["row"], gone["window"]) == (None, "no such row: nothing to close")
    assert (
        cdcwatch("explain", "3", "-c", world.configuration).out.splitlines()[-1].endswith("2999-01-01T00:00:00.000000Z")
    )


def test_explain_tells_of_a_due_order_that_nobody_reads_the_slot(database: Database, slot: str, shop: Path) -> None:
    with database.connect() as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'pending', now()), (2, 'pending', '2999-01-01')")
    gone = _json("explain", "1", "-c", shop)
    assert gone["window"] == f"due, and there is no slot {slot}: only a sweep would close it"
    assert gone["remedy"].startswith("make it: cdcwatch slot create")
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    lines = cdcwatch("explain", "1", "-c", shop).out.splitlines()
    place = lines.index(f"window      due, and nobody reads slot {slot}: only a sweep would close it")
    assert lines[place + 1] == "            remedy: cdcwatch run"
    assert _json("explain", "2", "-c", shop)["remedy"] is None
    with start_cdcwatch("run", "--role", "read", "-c", shop) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
            read = _json("explain", "1", "-c", shop)
            assert (read["remedy"], read["window"][:23]) == (None, "due: closed by the next")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def test_explain_shows_a_truncate_once_whatever_partitions_there_are(world: World) -> None:
    with world.running("--role", "read"):
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
        world.connection.execute("TRUNCATE orders")
        world.wait_confirmed()
    everywhere = [record for record in world.records() if record.event["subject"] == "*"]
    assert len(everywhere) > 1
    told = _json("explain", "1", "-c", world.configuration)["events"]
    assert [event["data"].get("reason") for event in told] == [None, "truncated"]
    partition = next(record.partition for record in world.records() if record.event["subject"] == "1")
    assert told[1]["id"].endswith(f"-p{partition}")
    assert len(_json("explain", "2", "-c", world.configuration)["events"]) == 1


def test_explain_says_how_to_write_a_key(database: Database, slot: str, shop: Path) -> None:
    wrong = cdcwatch("explain", "abc", "-c", shop)
    assert wrong.code == 2
    assert "that is no key of public.orders (id bigint)" in wrong.err
    assert "as SQL writes it: cdcwatch explain 4711\n" in wrong.err
    many = cdcwatch("explain", "1", "2", "-c", shop)
    assert "has 1 column (id), and 2 texts came" in many.err
    assert "cdcwatch explain ID (-- before one that begins with a minus)" in many.err
    assert json.loads(cdcwatch("explain", "--json", "-c", shop, "--", "-5").out)["key"] == {"id": "-5"}


def test_check_asks_the_broker_without_touching_the_transactional_id(world: World, kafka: Kafka) -> None:
    with world.running("--role", "read") as process:
        checks = {one["name"]: one for one in _json("check", "-c", world.configuration)["checks"]}
        assert {checks[name]["state"] for name in ("kafka", "topic", "progress", "transactional")} == {"ok"}
        assert checks["plugin"]["message"] == "wal2json is at work"
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
        world.wait_confirmed()  # not fenced
        assert process.is_running
    create_topic(kafka, f"{world.topic}.x.progress", partitions=2)
    other = world.configuration.with_name("other.toml")
    other.write_text(world.configuration.read_text().replace(f'"{world.topic}"', f'"{world.topic}.x"'))
    failed = cdcwatch("check", "-c", other)
    assert failed.code == 1
    assert f"fail  topic          Kafka has no topic {world.topic}.x" in failed.out
    assert "has 2 partitions and must have one" in failed.out


def test_exit_codes_tell_what_is_missing_from_what_is_away(database: Database, slot: str, shop: Path) -> None:
    away = shop.with_name("away.toml")
    away.write_text(shop.read_text().replace("none", "kafka") + '[kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    assert cdcwatch("check", "-c", shop).code == 0
    unreachable = cdcwatch("check", "-c", away)
    assert unreachable.code == 3
    assert "fail  kafka" in unreachable.out
    assert "127.0.0.1:1" in unreachable.out
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    assert cdcwatch("check", "-c", away).code == 1
    broker = '[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
    nowhere = write_configuration(shop.with_name("nowhere.toml"), "host=127.0.0.1 port=1 dbname=shop", broker)
    both = cdcwatch("check", "-c", nowhere)
    assert both.code == 3
    assert ("fail  database" in both.out, "fail  kafka" in both.out) == (True, True)
    assert both.err.count("\n") == 2


def test_a_long_transaction_is_told_before_a_slot_waits_for_it(database: Database, slot: str, shop: Path) -> None:
    from cdcwatch.slot import session_checks

    with (
        database.connect(autocommit=False, application_name="migrate") as blocker,
        pytest.MonkeyPatch.context() as patch,
    ):
        blocker.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        patch.setattr(session_checks, "LONG_TRANSACTION_S", 0.5)

        def told() -> str:
            checks = _json("check", "-c", shop)["checks"]
            return str(next(one for one in checks if one["name"] == "transactions")["message"])

        wait_until(lambda: f"pid {blocker.info.backend_pid}, migrate" in told(), 20, "the transaction is old enough")
