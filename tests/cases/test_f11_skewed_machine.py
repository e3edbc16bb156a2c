"""F11: the machine's clock is an hour off, or set by an hour while it runs: nothing early, and it is told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

INSERT = "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + n * interval '0.1 s' FROM generate_series(%s::int, %s) n"
SKEW = """
import os, pathlib, time
skew, real, real_ns = pathlib.Path(os.environ["SKEW_FILE"]), time.time, time.time_ns
time.time = lambda: real() + int(skew.read_text() or 0)
time.time_ns = lambda: real_ns() + int(skew.read_text() or 0) * 1_000_000_000
"""


@pytest.mark.parametrize("skew_s", [3600, -3600])
def test_f11_a_machine_an_hour_off_closes_nothing_early(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, skew_s: int
) -> None:
    (tmp_path / "skewed").mkdir()
    (tmp_path / "skewed/sitecustomize.py").write_text(SKEW)
    skew = tmp_path / "skew"
    skew.write_text(str(skew_s))
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.environment |= {"PYTHONPATH": str(tmp_path / "skewed"), "SKEW_FILE": str(skew)}
        world.install()
        world.listen()
        with world.running():
            world.connection.execute(INSERT, [1, 20])
            wait_until(
                lambda: abs(world.metric("cdcwatch_clock_offset_seconds") + skew_s) < 60, 60, "the offset is seen"
            )
            wait_until(lambda: world.metric("cdcwatch_clock_alarm") == 1, 60, "it is alarmed")
            told = "from this machine's: nothing is closed early"
            wait_until(lambda: told in world.log.read_text(), 60, "the log tells it")
            skew.write_text("0")
            world.connection.execute(INSERT, [21, 40])
            world.wait_nothing_due()
            wait_until(lambda: world.metric("cdcwatch_clock_alarm") == 0, 60, "measured again")
            back = "the clocks are within their bounds again"
            wait_until(lambda: back in world.log.read_text(), 60, "the log tells it")
            said = world.log.read_text()
            set_by_s = re.search(r"clock was set by ([+-][0-9.]+) s", said)
            assert set_by_s is not None
            assert abs(float(set_by_s[1]) + skew_s) < 60
            assert "has jumped" not in said
            world.wait_confirmed()
        world.judge()
