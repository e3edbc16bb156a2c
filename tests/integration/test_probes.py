"""What docker/kubernetes rests on: a standby is alive and not ready, and ready once it has taken over."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from cdcwatch.local.process import free_port
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


def _status(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=5) as answer:  # noqa: S310  our own
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0  # not there yet


def test_a_standby_is_alive_and_not_ready_until_it_takes_over(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.listen()
        world.install()
        listen = f"127.0.0.1:{free_port()}"
        standby = f"http://{listen}"
        with (
            world.running() as active,
            world.running(gets_ready=False, environment={"CDCWATCH_TELEMETRY__LISTEN": listen}),
        ):
            wait_until(lambda: "standby: the slot" in world.log.read_text(), 60, "the second stands by")
            wait_until(
                lambda: (_status(standby, "/healthz"), _status(standby, "/readyz")) == (200, 503), 20, "it is alive"
            )
            wait_until(lambda: _status(world.address, "/readyz") == 200, 20, "the first one works")
            active.stop()
            wait_until(lambda: _status(standby, "/readyz") == 200, 60, "it has taken over")
            assert _status(standby, "/healthz") == 200
