"""Metrics: what there is to count, by name and unit. What each means, and when to worry: docs/metrics.md.

https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from math import inf, nan
from platform import python_version
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from cdcwatch import __version__
from cdcwatch.close.timekeeping import ALARMS
from cdcwatch.closing_metrics import ClosingFamilies, ClosingMetrics
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

    from cdcwatch.close.timekeeping import ClockFigures

_DEAD_LETTER_LOG_S: Final = 1.0

_log = logging.getLogger(__name__)


class Metrics(ClosingMetrics):
    """What the rooms count. Gauges are read when somebody asks."""

    def __init__(self, tables: Sequence[str] = (), *, role: str = "all") -> None:
        """`tables`: names of the watched ones; where there are several, closing is counted by table."""
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build = Info("cdcwatch_build", "The version at work; always 1.", registry=registry)
        build.info({"version": __version__, "python": python_version(), "role": role})
        self.tables, self.role = tables, role
        super().__init__(ClosingFamilies(registry, is_by_table=len(tables) > 1))
        self.closing: dict[str, ClosingMetrics] = (
            {name: OfTable(self, name, tells_of_clocks=name == tables[0]) for name in tables}
            if len(tables) > 1
            else dict.fromkeys(tables or ("",), self)
        )
        """By table."""
        self.messages = Counter("cdcwatch_messages", "Messages of the output plugin.", registry=registry)
        self.changes = Counter("cdcwatch_changes", "Row changes of the watched table.", registry=registry)
        self.replayed = Counter(
            "cdcwatch_replayed", "Row changes that came again and gave no event again.", registry=registry
        )
        self.dead_letters = Counter(
            "cdcwatch_dead_letters",
            "Rows that could not be understood, and orders that could not be closed.",
            ["about"],
            registry=registry,
        )
        for about in ("row", "close"):
            self.dead_letters.labels(about)
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
        self.clock_alarm = Gauge(
            "cdcwatch_clock_alarm", "1 while a figure of the clocks is out of bounds.", ["about"], registry=registry
        )
        for about in ALARMS:
            self.clock_alarm.labels(about)
        self._slept = Counter("cdcwatch_suspended_seconds", "How long this machine has slept.", registry=registry)
        self.records_heard = Counter(
            "cdcwatch_heard",
            "--role close: records of the topic by what they came to: applied, or why they tell nothing here.",
            ["record"],
            registry=registry,
        )

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when the page is."""
        Gauge(f"cdcwatch_{name}", description, registry=self.registry).set_function(value)

    def counter(
        self, name: str, description: str, values: Callable[[], Mapping[str, float]], label: str | None = None
    ) -> None:
        """The same of what only rises: by the label's value, or under an empty one without a label."""
        self.registry.register(_Asked(name, description, values, label))

    def gauge_each(self, name: str, description: str, value: Callable[[str], float]) -> None:
        """The same of every table, under its label where there are several."""
        if len(self.tables) <= 1:
            self.gauge(name, description, lambda: value(self.tables[0] if self.tables else ""))
            return
        gauge = Gauge(f"cdcwatch_{name}", description, ["table"], registry=self.registry)
        for table in self.tables:
            gauge.labels(table).set_function(partial(value, table))

    def read(self, *, messages: int, changes: int, replayed: int, received_lsn: int) -> None:
        """After every bite of the stream."""
        self.messages.inc(messages)
        self.changes.inc(changes)
        self.replayed.inc(replayed)
        self._received.set(received_lsn)

    def not_understood(self, *, count: int, last: str) -> None:
        """Some rows became dead letters; `last`: the last one's id and reason.

        A line in the log a second at most: what comes within a second of one is told together at the second's end.
        """
        self.dead_letters.labels("row").inc(count)
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
            extra={"count": count, "reason": last.partition(": ")[2], "is_summed": True},
        )

    def given_up(self, count: int) -> None:
        """So many orders failed to close for the last time."""
        self.dead_letters.labels("close").inc(count)

    def heard(self, *, applied: int, skipped: Mapping[str, int]) -> None:
        """After every batch of the topic's records."""
        self.records_heard.labels("applied").inc(applied)
        for why, count in skipped.items():
            self.records_heard.labels(why).inc(count)

    def clock_measured(self, figures: ClockFigures) -> None:
        """The database's clock was read."""
        self._clock_offset.set(figures.offset_us / 1e6)
        self._clock_uncertainty.set(figures.uncertainty_us / 1e6)
        self._clock_drift.set(nan if figures.drift_ppm is None else figures.drift_ppm)
        self._clock_jumps.inc(int(figures.jumped))
        self._slept.inc(figures.slept_us / 1e6)
        for about in ALARMS:
            self.clock_alarm.labels(about).set(int(about in figures.alarms))

    def of(self, table: str) -> ClosingMetrics:
        """Where one table's closing counts: by its name where there are several. The first of them tells of clocks."""
        return self.closing.get(table, self)


class _Asked(Collector):
    """A counter that is asked for when the page is."""

    def __init__(
        self, name: str, description: str, values: Callable[[], Mapping[str, float]], label: str | None
    ) -> None:
        self._name, self._description, self._values = name, description, values
        self._labelnames = () if label is None else (label,)  # as the library's own have it

    def describe(self) -> Iterable[Metric]:
        """Its name, so that no other has it."""
        yield CounterMetricFamily(f"cdcwatch_{self._name}", self._description, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        """Its samples."""
        (family,) = self.describe()
        for label, value in self._values().items():
            family.add_metric([label] if self._labelnames else [], value)  # type: ignore[attr-defined]
        yield family


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
