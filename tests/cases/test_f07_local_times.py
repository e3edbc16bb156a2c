"""F7, F1: deadlines without time zone, and those that never or always have come, through the whole program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

ZONE = "America/St_Johns"
TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL, expires_at {type} NOT NULL, version int NOT NULL,
                     closed_at timestamptz);
CREATE INDEX orders_open ON orders (expires_at) WHERE status = 'pending';
ALTER TABLE orders REPLICA IDENTITY FULL
"""
KINDS = [("timestamptz", ""), ("timestamp(3)", ZONE), ("date", ZONE)]


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
@pytest.mark.parametrize(("kind", "zone"), KINDS, ids=[kind for kind, _ in KINDS])
def test_f07_orders_are_closed_at_their_local_time_and_told_in_utc(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, kind: str, zone: str, plugin: str
) -> None:
    extra = f'[table]\ntime_zone = "{zone}"\n[close.set]\nclosed_at = "clock_timestamp()"\n'
    with World(database, kafka.bootstrap_servers, topic, tmp_path, extra, plugin=plugin) as world:
        connection = world.connection
        connection.execute(TABLE.format(type=kind))  # type: ignore[call-overload]
        world.create_slot()
        local = f"AT TIME ZONE '{zone}'" if zone else ""
        instant = f"expires_at::timestamp AT TIME ZONE '{zone}'" if zone else "expires_at"
        connection.execute(  # before the start: read from the table
            "INSERT INTO orders VALUES (1, 'pending', 'infinity', 0), (2, 'pending', '-infinity', 0),"  # type: ignore[call-overload]
            f" (3, 'pending', (clock_timestamp() - interval '25 h') {local}, 0),"
            f" (4, 'pending', (clock_timestamp() + interval '25 h') {local}, 0), (5, 'pending', '0044-03-15 BC', 0)"
        )
        with world.running():
            connection.execute(  # by the stream
                "INSERT INTO orders VALUES (11, 'pending', 'infinity', 0), (12, 'pending', '-infinity', 0),"  # type: ignore[call-overload]
                f" (13, 'pending', (clock_timestamp() + interval '700 ms') {local}, 0),"
                f" (14, 'pending', (clock_timestamp() + interval '25 h') {local}, 0), (15, 'pending', '294276-12-31', 0)"
            )
            connection.execute("UPDATE orders SET expires_at = 'infinity', version = 1 WHERE id = 14")
            connection.execute("UPDATE orders SET expires_at = '-infinity', version = 1 WHERE id = 4")
            due = {2, 3, 4, 5, 12, 13}
            wait_until(
                lambda: world.scalar("SELECT count(*) FROM orders WHERE status = 'expired'") == len(due), 30, "closes"
            )
            world.wait_confirmed()
        rows = connection.execute(
            f"SELECT id, status, closed_at >= {instant},"  # type: ignore[call-overload]
            f" to_char(({instant}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
            " FROM orders ORDER BY id"
        ).fetchall()
        assert {key for key, status, *_ in rows if status == "expired"} == due
        assert all(late for key, _, late, _ in rows if key in due)
        told: dict[str, list[tuple[str, str]]] = {}
        for record in world.records():
            data = record.event["data"]
            told.setdefault(str(record.key), []).append((record.event["type"].partition(".")[2], data["deadline"]))
        texts = {key: text for key, _, _, text in rows}
        assert "1" not in told
        assert "11" not in told
        assert told["2"] == told["12"] == [("scheduled", "-infinity"), ("expired", "-infinity")]
        for key in (3, 13):
            assert told[str(key)] == [("scheduled", texts[key]), ("expired", texts[key])]
        assert [kind for kind, _ in told["4"]] == ["scheduled", "moved", "expired"]
        assert [kind for kind, _ in told["14"]] == ["scheduled", "cancelled"]
        assert told["5"][0][1].startswith("-0043-03-15T")
        assert told["15"][0][1].startswith("+294276-12-31T")
