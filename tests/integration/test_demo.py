"""`cdcwatch demo` as a process: its books agree, and nothing is left of it, whenever it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdcwatch.local.binaries import _postgres_of_wheel
from tests.command import cdcwatch
from tests.services import scratch_directory
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

END_S = 150


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary directory for the demo to make its own in."""
    with scratch_directory() as path:
        yield path


def started(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cdcwatch", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "TMPDIR": str(place),
            "PGSSLMODE": "require",
            "CDCWATCH_TABLE__NAME": "elsewhere",
            "CDCWATCH_TABLE": "[]",
        },
    )


def left_of(place: Path) -> list[str]:
    """Files, and processes that name the place in their command line or work in it."""
    left = [str(path) for path in place.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            works_in = (process / "cwd").readlink()
        except OSError:
            continue
        if str(place) in command or works_in.is_relative_to(place):
            left.append(f"{process.name}: {command}")
    return left


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_table_topic_and_shop_agree_and_nothing_is_left(
    place: Path, plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plugin == "pgoutput":  # on the server of a Python package, as where no other is to be had
        (binaries,) = _postgres_of_wheel()
        monkeypatch.setenv("CDCWATCH_PG_BIN", str(binaries))
    demo = started(place, "--for", "6s", "--json")
    out, err = demo.communicate(timeout=END_S)
    assert (demo.returncode, err) == (0, ""), out
    summary = json.loads(out)
    assert summary["agree"] is True
    assert summary["problems"] == []
    assert all(one["agree"] for one in summary["comparisons"])
    assert len(summary["comparisons"]) > 10
    table, topic = summary["table"], summary["topic"]
    assert table["orders"] == topic["keys"] == topic["scheduled"] > 100
    assert table["orders"] == sum(table[name] for name in ("expired", "paid", "cancelled", "deleted", "pending"))
    assert table["expired"] == topic["expired"] > 30
    assert table["paid"] + table["cancelled"] + table["deleted"] == topic["cancelled"] > 20
    assert topic["moved"] > 0
    assert topic["events"] == sum(topic[name] for name in ("scheduled", "moved", "cancelled", "expired"))
    assert table["early"] == table["overdue"] == topic["early"] == topic["duplicates"] == topic["out_of_order"] == 0
    assert 0 < table["late_ms"]["p50"] <= table["late_ms"]["p99"] <= table["late_ms"]["max"]
    assert left_of(place) == []


def test_several_tables_agree_with_their_topics(place: Path) -> None:
    demo = started(place, "--for", "6s", "--json", "--tables", "several")
    out, err = demo.communicate(timeout=END_S)
    assert (demo.returncode, err) == (0, ""), out
    summary = json.loads(out)
    assert summary["agree"] is True
    assert list(summary["tables"]) == ["orders", "reservations", "coupons"]
    for found in summary["tables"].values():
        assert found["problems"] == []
        table, topic = found["table"], found["topic"]
        assert table["orders"] == topic["keys"] == topic["scheduled"] > 30
        assert table["expired"] == topic["expired"] > 10
        assert table["early"] == table["overdue"] == topic["duplicates"] == topic["out_of_order"] == 0
    seats = [one for one in summary["tables"]["reservations"]["comparisons"] if one["what"].startswith("seats taken")]
    assert [one["agree"] for one in seats] == [True]
    assert seats[0]["expected"] > 5
    assert left_of(place) == []


def test_two_at_once_end_when_interrupted_and_leave_nothing(place: Path) -> None:
    demos = [started(place, "--for", "300s") for _ in range(2)]
    try:
        wait_until(
            lambda: sum("READY\n" in log.read_text() for log in place.glob("*/cdcwatch.log")) == len(demos),
            END_S,
            "both services are ready",
        )
        for log in place.glob("*/demo.toml"):
            address = re.search(r'^listen = "(.+)"', log.read_text(), re.MULTILINE)
            assert address is not None
            with urllib.request.urlopen(f"http://{address[1]}/status", timeout=60) as answer:
                assert json.load(answer)["tables"][0]["name"] == "public.orders"
        for demo, number in zip(demos, (signal.SIGINT, signal.SIGTERM), strict=True):
            demo.send_signal(number)
        for demo in demos:
            out, err = demo.communicate(timeout=120)
            assert (demo.returncode, out) == (4, "")
            assert "cdcwatch: interrupted before the end" in err
            assert len(re.findall(r"^status page: http://127\.0\.0\.1:\d+/$", err, re.MULTILINE)) == 1
            assert "Traceback" not in err
    finally:
        for demo in demos:
            demo.kill()
    assert left_of(place) == []


@pytest.mark.parametrize("appears", ["postgres", "postgres/data/postmaster.pid", "kafka/kafka.log", "demo.toml"])
def test_interrupted_while_it_starts(place: Path, appears: str) -> None:
    demo = started(place, "--for", "300s")
    try:
        wait_until(lambda: list(place.glob(f"*/{appears}")), END_S, f"{appears} is there")
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=120)
    finally:
        demo.kill()
    assert (demo.returncode, out) == (4, "")
    assert "cdcwatch: interrupted before the end" in err
    assert left_of(place) == []


def test_what_this_machine_lacks_is_told_with_the_remedy(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDCWATCH_PG_BIN", str(place))
    demo = started(place, "--json")
    out, err = demo.communicate(timeout=120)
    assert (demo.returncode, out) == (3, "")
    assert err.splitlines()[0].endswith("holds no initdb and postgres")
    assert err.splitlines()[1].startswith("remedy: ")
    assert left_of(place) == []


def test_a_postgres_without_wal2json(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = place / "pg" / "bin"
    binaries.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (binaries / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.1'\n")
        (binaries / name).chmod(0o755)
    monkeypatch.setenv("CDCWATCH_PG_BIN", str(binaries))
    demo = started(place, "--json", "--plugin", "wal2json")
    _, err = demo.communicate(timeout=120)
    assert demo.returncode == 3
    assert err == (
        f"cdcwatch: PostgreSQL 16 in {binaries} has no wal2json\n"
        "remedy: cdcwatch demo --plugin pgoutput, or apt-get install postgresql-16-wal2json\n"
    )
    shutil.rmtree(place / "pg")
    assert left_of(place) == []


@pytest.mark.parametrize("text", ["soon", "0s", "-3s", "5 d"])
def test_a_duration_that_is_none(text: str) -> None:
    ended = cdcwatch("demo", "--for", text)
    assert ended.code == 2
    assert "write it as 20s, 2m or 1h" in ended.err
