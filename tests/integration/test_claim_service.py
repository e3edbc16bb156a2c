"""`run` with `close.action = "claim"`: what subscribers, the dead letters, the metrics and `check` tell of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.command import cdcwatch, run_to_the_end, write_configuration
from tests.endpoint import Answer, Endpoint
from tests.oracle.world import World
from tests.orders import make_claims
from tests.slots import QUIET
from tests.topic import read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

CLAIM = '[close]\naction = "claim"\n[close.claim]\nurl = "{url}"\nattempts = 2\n'


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_subscribers_hear_of_the_close_and_not_of_the_claim(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with (
        Endpoint().serving() as endpoint,
        World(
            database, kafka.bootstrap_servers, topic, tmp_path, CLAIM.format(url=endpoint.url), plugin=plugin
        ) as world,
    ):
        endpoint.answer = lambda request: {"2": Answer(422), "3": Answer(500)}.get(request.order, Answer())
        world.listen()
        make_claims(world.connection)
        world.install()
        # Claimed by a process that is gone: the first read finds it so, and this one takes it over.
        world.connection.execute(
            "INSERT INTO orders (id, status, expires_at, version) VALUES (9, 'closing', '2026-01-01 00:00+00', 1);"
            "INSERT INTO cdcwatch.claims VALUES ('orders', '9', gen_random_uuid(), gen_random_uuid(), 1, now(), now(),"
            " '2026-01-01 00:00+00', 'pending', 0, '')"
        )
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(1, 4) n"
            )
            claimed = "SELECT count(*) FROM orders WHERE status IN ('pending', 'closing')"
            wait_until(lambda: world.scalar(claimed) == 0, 60, "all have ended")
            wait_until(lambda: world.metric("cdcwatch_dead_letters_total") == 2, 60, "two were given up")
            world.wait_confirmed()
            assert world.metric('cdcwatch_closes_total{outcome="closed"}') == 3
            assert world.metric('cdcwatch_closes_total{outcome="claimed"}') == 4
            assert world.metric('cdcwatch_calls_total{answer="succeeded"}') == 3
            assert world.metric('cdcwatch_calls_total{answer="refused"}') == 1
            assert world.metric('cdcwatch_calls_total{answer="failed"}') == 2
            assert world.metric("cdcwatch_claims_at_hand") == 0
        told: dict[str | None, list[tuple[str, Any, Any]]] = {}
        for record in world.records():
            data = record.event["data"]
            said = (record.event["type"].removeprefix("deadline."), data["status"], data.get("reason"))
            told.setdefault(record.key, []).append(said)
        scheduled = ("scheduled", "pending", None)
        failed = ("cancelled", "close_failed", "close_failed")
        assert told == {
            "1": [scheduled, ("expired", "expired", None)],
            "2": [scheduled, failed],
            "3": [scheduled, failed],
            "4": [scheduled, ("expired", "expired", None)],
            "9": [("scheduled", "closing", None), ("expired", "expired", None)],
        }
        letters = [json.loads(found.value) for found in read_topic(world.bootstrap_servers, f"{topic}.dead")]
        assert {(letter["key"]["id"], letter["about"], letter["reason"]) for letter in letters} == {
            ("2", "close", "the close failed 1 time: HTTP 422"),
            ("3", "close", "the close failed 2 times: HTTP 500"),
        }
        assert endpoint.effects == {"1": 1, "4": 1, "9": 1}


def claim_lines(configuration: Path) -> dict[str, dict[str, Any]]:
    checks = json.loads(cdcwatch("check", "--json", "-c", configuration).out)["checks"]
    return {one["name"]: one for one in checks if one["name"] in {"claims", "claim_url", "status"}}


def test_check_looks_at_the_claims_and_at_the_address(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection, Endpoint().serving() as endpoint:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, status text CHECK (status <> 'close_failed'),"
            " expires_at timestamptz, version int)"
        )
        shop = write_configuration(tmp_path / "shop.toml", database.dsn, CLAIM.format(url=endpoint.url) + QUIET)
        found = claim_lines(shop)
        assert {name: one["state"] for name, one in found.items()} == {
            "status": "fail", "claims": "fail", "claim_url": "ok",
        }  # fmt: skip
        assert "sql/install.sql" in found["claims"]["remedy"]
        ended = run_to_the_end("run", "-c", shop)
        assert (ended.code, "there is no table cdcwatch.claims" in ended.err) == (3, True), ended.said
        make_claims(connection)
        assert claim_lines(shop)["claims"]["state"] == "ok"
        assert endpoint.requests == [], "nothing was called"
    write_configuration(shop, database.dsn, CLAIM.format(url="https://shop:s%40cret@127.0.0.1:1/close") + QUIET)
    found = claim_lines(shop)
    assert (found["claim_url"]["state"], found["claim_url"]["unreachable"]) == ("fail", True)
    assert "cret" not in json.dumps(found)
