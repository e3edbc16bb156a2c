"""`cdcwatch top` draws every state of a service in 80 columns and 24 lines."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from cdcwatch.cli.output import short_time
from cdcwatch.cli.picture import drawn

PART = {"ready": True, "reason": "streaming", "age_s": 0.1, "waiting_s": 0.0}
BUCKETS = [
    {"le_s": bound, "count": count} for bound, count in zip([*range(15), None], [0, 3, 9, 90, *[0] * 12], strict=True)
]
TOLD: dict[str, Any] = {
    "version": "0.1.0",
    "role": "all",
    "uptime_s": 125.0,
    "ready": True,
    "parts": {"reader": PART, "sink": {**PART, "reason": "open"}, "closer": {**PART, "reason": "working"}},
    "alarms": [],
    "slot": {
        "name": "cdcwatch_orders",
        "problem": None,
        "lag_bytes": 1 << 20,
        "retained_bytes": 5 << 30,
        "seconds_to_loss": 7200,
        "is_unlimited": False,
    },
    "sink": {"kind": "kafka", "queue_events": 1200, "queue_bytes": 1, "oldest_s": 0},
    "totals": {"events": 123456, "dead_letters": 0, "heard": 5, "closed": 1234567, "recovered": 0},
    "rates": {"changes": 12345.6, "events": 9.4, "heard": 3, "closed": 0, "closed public.orders": 7},
    "lateness": {
        "buckets": BUCKETS,
        "count": 102,
        "recent": {"count": 102, "p50_s": 0.0021, "p99_s": 0.017, "max_s": 2.5},
    },
    "tables": [{"name": "public.orders", "topic": "t", "pending": 77, "retrying": 0, "closed": 5}],
    "next": [
        {"table": "public.orders", "key": "9007199254740993", "deadline": "D", "in_s": 0.004},
        *[{"table": "public.orders", "key": "k" * 60, "deadline": "D", "in_s": 90061.0}] * 7,
    ],
    "events": [{"type": "deadline.cancelled", "table": "public.orders", "key": "k" * 60, "lsn": "F/1A2B3C4D"}] * 12,
}
ALARM = {"what": "lag", "message": "m" * 100, "remedy": "r" * 100}


def shown(told: dict[str, Any], trouble: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=24, color_system=None, force_terminal=False)
    console.print(drawn(told, width=80, height=24, trouble=trouble))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def several(count: int) -> dict[str, Any]:
    tables = [{**TOLD["tables"][0], "name": f"{'s' * 40}.orders{number}"} for number in range(count)]
    return {**TOLD, "tables": tables}


@pytest.mark.parametrize(
    "told",
    [
        TOLD,
        {**TOLD, "alarms": [ALARM] * 5, "ready": False},
        several(4),
        {**TOLD, "rates": None, "slot": {"name": "s", "problem": "there is no slot s"}},
        {**TOLD, "next": [], "events": []},
        {**TOLD, "next": [{**TOLD["next"][0], "key": None, "in_s": None}], "events": []},
        {
            **TOLD,
            "role": "close",
            "parts": {"subscriber": PART, "closer": PART},
            "sink": None,
            "slot": None,
            "events": [],
        },
        {**TOLD, "role": "sweep", "parts": {"closer": PART}, "sink": None, "slot": None, "events": []},
        {**TOLD, "role": "read", "parts": {"reader": PART, "sink": PART}, "next": []},
    ],
    ids=["well", "alarms", "several", "unknown", "nothing", "withheld", "close", "sweep", "read"],
)
def test_every_state_fits(told: dict[str, Any]) -> None:
    lines = shown(told)
    assert len(lines) <= 24
    assert [line for line in lines if len(line) > 80] == []
    assert lines[0].startswith("cdcwatch 0.1.0")


def test_the_longest_times_stand_in_one_line() -> None:
    recent = {"count": 4096, "p50_s": 0.123, "p99_s": 0.456, "max_s": 59.96}
    lines = shown({**TOLD, "lateness": {**TOLD["lateness"], "recent": recent}})
    assert any(line.rstrip().endswith("p50 123 ms  p99 456 ms  max 60.0 s") for line in lines)


def test_one_close_is_told_as_one() -> None:
    recent = {"count": 1, "p50_s": 0.0047, "p99_s": 0.0047, "max_s": 0.0047}
    lines = shown({**TOLD, "lateness": {**TOLD["lateness"], "recent": recent}})
    assert any(line.rstrip().endswith("of the last close") for line in lines)
    assert any(line.rstrip().endswith("max 4.7 ms") and line.startswith("Late ") for line in lines)


def test_what_stands_there() -> None:
    text = "\n".join(shown(TOLD))
    for said in (
        *("role all, up 2 min 5 s", "✓ all is well", "12,346 changes/s", "9.4 events/s", "77 pending", "0 closes/s"),
        *("lag 1.0 MB", "keeps 5.0 GB", "lost in 2 h 0 min", "1,200 in flight", "✓ streaming", "1,234,567 closed"),
        *("p50 2.1 ms", "p99 17 ms", "max 2.5 s", "9007199254740993", "4.0 ms", "cancelled", "F/1A2B3C4D"),
    ):
        assert said in text
    assert "no answer since" in shown(TOLD, "no answer since 12:00:00 (nobody answers)")[0]
    assert "! 1 alarm " in shown({**TOLD, "alarms": [ALARM]})[0] + " "


def test_a_server_without_a_limit_is_warned_of() -> None:
    unlimited = {**TOLD["slot"], "seconds_to_loss": None, "is_unlimited": True}
    assert "may fill the disk" in "\n".join(shown({**TOLD, "slot": unlimited}))
    unknown = {**unlimited, "is_unlimited": False}
    assert "may fill the disk" not in "\n".join(shown({**TOLD, "slot": unknown}))


@pytest.mark.parametrize("count", [1, 2])
def test_keys_and_names_are_shown_as_they_are_and_reach_no_terminal(count: int) -> None:
    for key, text in {"[/x]": "[/x]", "[b]k[/b]": "[b]k[/b]", "a\x1b[2Jb": "a\ufffd[2Jb", "a\nb": "a\ufffdb"}.items():
        tables = [{**TOLD["tables"][0], "name": f"[/t{number}]"} for number in range(count)]
        one = {"table": "", "key": key, "deadline": "D", "in_s": 1.0, "type": "deadline.moved", "lsn": "0/1"}
        lines = shown({**TOLD, "tables": tables, "next": [one], "events": [one]})
        assert "\n".join(lines).count(text) == 2
        assert not any("\x1b" in line for line in lines)
        assert ("[/t1]" in "\n".join(lines)) is (count > 1)


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0.0005, "0.5 ms"), (0.25, "250 ms"), (3.21, "3.2 s")])
def test_short_times(seconds: float | None, text: str) -> None:
    assert short_time(seconds) == text
