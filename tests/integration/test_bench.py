"""The bench measures the program as it is: one small part of it, from its command to its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.process import environment

ROOT = Path(__file__).parents[2]


def test_reading_is_measured_and_the_files_stay_as_they_are() -> None:
    before = (ROOT / "bench/results.json").read_bytes()
    options = ["--only", "read", "--events", "3000", "--rounds", "1", "--match", "wal2json, no sink", "--no-results"]
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *options],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {line.split("  ")[0]: line.split() for line in ended.stdout.splitlines() if "round" not in line}
    assert rows["pg_recvlogical, wal2json"][2] == "1.00"
    assert rows["cdcwatch, wal2json, no sink"][-1] == "yes"
    assert "seconds: read" in ended.stdout
    assert (ROOT / "bench/results.json").read_bytes() == before
