"""The log: fields in JSON, and repeats that are told together."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, ClassVar

import pytest

from cdcwatch import log
from cdcwatch.errors import UnavailableError
from cdcwatch.log import JsonFormatter, RepeatFilter

if TYPE_CHECKING:
    from collections.abc import Callable


class _Later:
    """A timer that goes off when the test says so."""

    made: ClassVar[list[_Later]] = []

    def __init__(self, interval_s: float, call: Callable[[], None]) -> None:
        self.interval_s, self.call, self.daemon = interval_s, call, False

    def start(self) -> None:
        self.made.append(self)


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(log, "time", clock)
    monkeypatch.setattr(log.threading, "Timer", _Later)
    monkeypatch.setattr(_Later, "made", [])
    return clock


@pytest.fixture
def written(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RepeatFilter(handler.handle))
    logger = logging.getLogger("of a test of the log")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.INFO)
    return logger, stream


def test_warnings_that_differ_in_numbers_alone_are_counted_and_told_once(
    clock: _Clock, written: tuple[logging.Logger, io.StringIO]
) -> None:
    logger, stream = written
    for number in range(38):
        clock.now_s = 100.0 + number
        logger.warning("publisher: away; again in %.1f s", 0.2 * number)
    logger.warning("another thing")
    assert stream.getvalue() == "publisher: away; again in 0.0 s\nanother thing\n"
    (timer,) = _Later.made
    assert timer.daemon
    assert timer.interval_s == pytest.approx(59)
    clock.now_s = 160.0
    timer.call()
    told = stream.getvalue().splitlines()[2:]
    assert told == ["publisher: away; again in 7.4 s (37 more like it in 60 s)"]
    logger.warning("publisher: away; again in %.1f s", 5)
    assert stream.getvalue().splitlines()[3:] == ["publisher: away; again in 5.0 s"], "and then it is news again"


def test_what_differs_in_a_name_is_another_line(clock: _Clock, written: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = written
    names = ["orders_2025", "orders_2026", "orders-1", "orders-2", "shop.7", "shop.8", "40P01", "40001"]
    for name in names:
        logger.warning("the partition %s was rewritten", name)
    assert len(stream.getvalue().splitlines()) == len(names)
    for text in (
        "server process 17, 0/16B3740",
        "server process 18, 1/AF",
        "ipv4#10.0.0.1:9092: after 2ms",
        "ipv4#10.0.0.1:9093: after 13ms",
    ):
        logger.warning(text)
    assert len(stream.getvalue().splitlines()) == len(names) + 2


def test_what_repeats_count_is_added_up(clock: _Clock, written: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = written
    for count in (1, 50, 7):
        logger.warning("%d orders given up", count, extra={"count": count})
    clock.now_s = 160.0
    _Later.made[0].call()
    assert stream.getvalue().splitlines()[1:] == ["7 orders given up (2 more like it in 60 s, 57 in all)"]


def test_what_changes_a_state_ends_or_counts_by_itself_is_never_held_back(
    clock: _Clock, written: tuple[logging.Logger, io.StringIO]
) -> None:
    logger, stream = written
    for _ in range(3):
        logger.info("reader: the stream goes on")
        logger.error("it ends")
        logger.warning("2 rows could not be understood", extra={"is_summed": True})
    assert len(stream.getvalue().splitlines()) == 9
    assert _Later.made == []


def test_the_end_of_the_process_tells_what_waits(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger("cdcwatch")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", True)
    monkeypatch.setattr(root, "level", root.level)
    log.configure_log("json")
    for _ in range(3):
        root.warning("away", extra={"lsn": "0/1", "reason": "refused"})
    root.handlers[0].close()
    first, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["lsn"], first["reason"], first["level"]) == ("away", "0/1", "refused", "warning")
    assert (last["message"], last["lsn"], last["count"]) == ("away (2 more like it in 0 s)", "0/1", 2)


def test_json_has_the_fields_and_nothing_else_that_a_record_carries() -> None:
    record = logging.LogRecord("cdcwatch.x", logging.INFO, "x.py", 1, "said %s", ("so",), None)
    record.__dict__.update(lsn="0/1A", table="public.orders", password="secret")  # type: ignore[arg-type]
    told = json.loads(JsonFormatter().format(record))
    assert set(told) == {"time", "level", "logger", "message", "lsn", "table"}
    assert told["message"] == "said so"


def test_lines_of_a_tables_threads_name_it_and_those_of_others_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger("cdcwatch")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(root, name, getattr(root, name))
    log.configure_log("json", level=logging.DEBUG)
    threads = []
    for table in ("shop.100%", ""):
        with log.about_table(table):
            threads.append(log.NamingThread(target=lambda: root.warning("%d not closed", 3)))
            threads[-1].start()
        threads[-1].join()
    root.warning("of all")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["message"], one.get("table")) for one in told] == [
        ("shop.100%: 3 not closed", "shop.100%"),
        ("3 not closed", None),
        ("of all", None),
    ]


def test_an_error_is_told_with_its_remedy_and_where() -> None:
    error = UnavailableError("it is away", remedy="wait")
    assert log.told_of(error) == {"reason": "it is away", "remedy": "wait"}
    assert log.told_of(error, lsn=0x1A) == {"reason": "it is away", "remedy": "wait", "lsn": "0/1A"}
    assert set(log.told_of(error, lsn=1)) <= set(log.FIELDS)
