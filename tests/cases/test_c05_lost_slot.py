"""C5: a lost slot is told apart from one that is behind, and so is the way out, which works."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg

from tests import services
from tests.command import ORDERS, cdcwatch, write_configuration
from tests.oracle.world import World
from tests.slots import QUIET, outrun

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Kafka


def test_c05_a_lost_slot_is_terminal_for_every_command(sparing: LocalPostgres, tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", sparing.dsn(), QUIET)
    with psycopg.connect(sparing.dsn(), autocommit=True) as connection:
        connection.execute(ORDERS)
        assert cdcwatch("slot", "create", "-c", shop).code == 0
    outrun(sparing)
    lost = cdcwatch("slot", "status", "-c", shop)
    assert lost.code == 1, lost
    assert "wal_status            lost" in lost.out
    assert "remedy: cdcwatch recover" in lost.err
    told = json.loads(cdcwatch("slot", "list", "--json", "-c", shop).out)
    assert [alarm["what"] for alarm in told[0]["alarms"]] == ["lost"]
    for arguments in (["create"], ["peek"], ["advance", "--to", "current", "--yes"]):
        refused = cdcwatch("slot", *arguments, "-c", shop)
        assert refused.code == 3, refused
        assert "is lost" in refused.err
        assert "remedy: cdcwatch recover" in refused.err
    checked = cdcwatch("check", "-c", shop)
    assert checked.code == 1
    assert "is lost" in checked.out
    assert cdcwatch("slot", "drop", "--yes", "-c", shop).code == 0


def test_c05_the_way_out_reads_the_table_again(
    sparing: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with (
        services.fresh_database(sparing) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path) as world,
    ):
        world.install()
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            world.wait_confirmed()
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2999-01-01')")
        outrun(sparing)
        refused = world.run()
        assert refused.wait() == 3
        assert "is lost" in world.log.read_text()
        assert cdcwatch("slot", "drop", "--yes", "-c", world.configuration).code == 0
        created = cdcwatch("slot", "create", "--snapshot", "-c", world.configuration)
        assert created.code == 0, created
        with world.running():  # no --accept-gap: the progress of the lost slot was forgotten
            world.wait_confirmed()
        assert "told to its subscribers as a gap" in world.log.read_text()
        told = [record for record in world.records() if record.event["data"]["snapshot"]]
        assert [record.key for record in told if not record.is_gap] == ["2"]
        assert {record.event["data"]["reason"] for record in told if record.is_gap} == {
            "the topic holds earlier events of the table, and no progress of this slot"
        }
