"""Metrics and the log. One place for every metric's name and unit.

https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime
from functools import partial
from math import inf, nan
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from cdcwatch.close.timekeeping import ALARMS
from cdcwatch.closing_metrics import ClosingFamilies, ClosingMetrics
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.close.timekeeping import ClockFigures

_DEAD_LETTER_LOG_S: Final = 1.0

_log = logging.getLogger(__name__)


class Metrics(ClosingMetrics):
    """What the rooms count. Gauges are read when somebody asks."""

    def __init__(self, tables: Sequence[str] = ()) -> None:
        """`tables`: names of the watched ones; where there are several, closing is counted by table."""
        registry = self.registry = CollectorRegistry()
        self._tables = tables
        super().__init__(ClosingFamilies(registry, is_by_table=len(tables) > 1))
        self._messages = Counter("cdcwatch_messages", "Messages of the output plugin.", registry=registry)
        self._changes = Counter("cdcwatch_changes", "Row changes of the watched table.", registry=registry)
        self._replayed = Counter(
            "cdcwatch_replayed", "Row changes that came again and gave no event again.", registry=registry
        )
        self._dead_letters = Counter(
            "cdcwatch_dead_letters",
            "Rows that could not be understood, and orders that could not be closed.",
            ["about"],
            registry=registry,
        )
        for about in ("row", "close"):
            self._dead_letters.labels(about)
        self._dead_letter_lock = threading.Lock()
        self._unlogged_dead_letters, self._last_dead_letter, self._dead_letters_logged_s = 0, "", -inf
        self._dead_letter_timer: threading.Timer | None = None
        self._received = Gauge("cdcwatch_received_lsn", "The last WAL position that came in.", registry=registry)
        self._clock_offset = Gauge(
            "cdcwatch_clock_offset_seconds", "The database's clock minus this machine's.", registry=registry
        )
        self._clock_uncertainty = Gauge(
            "cdcwatch_clock_uncertainty_seconds", "How far off the measured offset can be.", registry=registry
        )
        self._clock_jumps = Counter("cdcwatch_clock_jumps", "Jumps of the database's clock.", registry=registry)
        self._clock_drift = Gauge(
            "cdcwatch_clock_drift_ppm",
            "How fast the database's clock gains on this machine's monotonic one; NaN while it isn't known.",
            registry=registry,
        )
        self._clock_drift.set(nan)
        self._clock_alarm = Gauge(
            "cdcwatch_clock_alarm", "1 while a figure of the clocks is out of bounds.", ["about"], registry=registry
        )
        for about in ALARMS:
            self._clock_alarm.labels(about)
        self._slept = Counter("cdcwatch_suspended_seconds", "How long this machine has slept.", registry=registry)
        self._heard = Counter(
            "cdcwatch_heard",
            "--role close: records of the topic by what they came to: applied, or why they tell nothing here.",
            ["record"],
            registry=registry,
        )

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when the page is."""
        Gauge(f"cdcwatch_{name}", description, registry=self.registry).set_function(value)

    def gauge_each(self, name: str, description: str, value: Callable[[str], float]) -> None:
        """The same of every table, under its label where there are several."""
        if len(self._tables) <= 1:
            self.gauge(name, description, lambda: value(self._tables[0] if self._tables else ""))
            return
        gauge = Gauge(f"cdcwatch_{name}", description, ["table"], registry=self.registry)
        for table in self._tables:
            gauge.labels(table).set_function(partial(value, table))

    def read(self, *, messages: int, changes: int, replayed: int, received_lsn: int) -> None:
        """After every bite of the stream."""
        self._messages.inc(messages)
        self._changes.inc(changes)
        self._replayed.inc(replayed)
        self._received.set(received_lsn)

    def not_understood(self, *, count: int, last: str) -> None:
        """Some rows became dead letters; `last`: the last one's id and reason.

        A line in the log a second at most: what comes within a second of one is told together at the second's end.
        """
        self._dead_letters.labels("row").inc(count)
        with self._dead_letter_lock:
            self._unlogged_dead_letters += count
            self._last_dead_letter = last
            if self._dead_letter_timer is not None:
                return
            rest_s = self._dead_letters_logged_s + _DEAD_LETTER_LOG_S - time.monotonic()
            if rest_s > 0:
                self._dead_letter_timer = threading.Timer(rest_s, self.log_dead_letters)
                self._dead_letter_timer.daemon = True
                self._dead_letter_timer.start()
                return
        self.log_dead_letters()

    def log_dead_letters(self) -> None:
        """Logs those that wait for their second to end: when it does, and when the service ends."""
        with self._dead_letter_lock:
            if self._dead_letter_timer is not None:
                self._dead_letter_timer.cancel()
                self._dead_letter_timer = None
            count, last = self._unlogged_dead_letters, self._last_dead_letter
            if not count:
                return
            self._unlogged_dead_letters, self._dead_letters_logged_s = 0, time.monotonic()
        _log.warning(
            "%s could not be understood, the last is %s; see `cdcwatch events --dead`",
            counted(count, "row"),
            last,
        )

    def given_up(self, count: int) -> None:
        """So many orders failed to close for the last time."""
        self._dead_letters.labels("close").inc(count)

    def heard(self, *, applied: int, skipped: Mapping[str, int]) -> None:
        """After every batch of the topic's records."""
        self._heard.labels("applied").inc(applied)
        for why, count in skipped.items():
            self._heard.labels(why).inc(count)

    def clock_measured(self, figures: ClockFigures) -> None:
        """The database's clock was read."""
        self._clock_offset.set(figures.offset_us / 1e6)
        self._clock_uncertainty.set(figures.uncertainty_us / 1e6)
        self._clock_drift.set(nan if figures.drift_ppm is None else figures.drift_ppm)
        self._clock_jumps.inc(int(figures.jumped))
        self._slept.inc(figures.slept_us / 1e6)
        for about in ALARMS:
            self._clock_alarm.labels(about).set(int(about in figures.alarms))

    def of(self, table: str) -> Metrics | OfTable:
        """Where one table's closing counts: by its name where there are several. The first of them tells of clocks."""
        if len(self._tables) <= 1:
            return self
        return OfTable(self, table, tells_of_clocks=table == self._tables[0])


class OfTable(ClosingMetrics):
    """The figures of one table's closing, under its label."""

    def __init__(self, metrics: Metrics, table: str, *, tells_of_clocks: bool) -> None:
        super().__init__(metrics.families, (table,))
        self._metrics, self._tells_of_clocks = metrics, tells_of_clocks

    def given_up(self, count: int) -> None:
        """Of all tables together: the dead letters stand in each one's topic."""
        self._metrics.given_up(count)

    def clock_measured(self, figures: ClockFigures) -> None:
        """There is one database."""
        if self._tells_of_clocks:
            self._metrics.clock_measured(figures)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_log(log_format: str, *, level: int = logging.INFO) -> None:
    """One line an event of consequence, on stderr. `log_format`: `text` or `json`."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    root = logging.getLogger("cdcwatch")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(level)
