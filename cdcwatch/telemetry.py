"""Metrics and the log. One place for every metric's name and unit.

https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime
from math import inf, nan
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cdcwatch.close.timekeeping import ALARMS
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.close.attempt import Answer
    from cdcwatch.close.outcome import Outcome
    from cdcwatch.close.timekeeping import ClockFigures
    from cdcwatch.errors import CdcwatchError

_DEAD_LETTER_LOG_S: Final = 1.0
_LATENESS_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)

_log = logging.getLogger(__name__)


class Metrics:
    """What the rooms count. Gauges are read when somebody asks."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
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
        self._closes = Counter("cdcwatch_closes", "Due orders by what became of them.", ["outcome"], registry=registry)
        self._lateness = Histogram(
            "cdcwatch_lateness_seconds",
            "Closed minus deadline, by the database's clock.",
            buckets=_LATENESS_BUCKETS_S,
            registry=registry,
        )
        self._batch = Histogram(
            "cdcwatch_close_batch_seconds", "A batch of closes, start to commit.", registry=registry
        )
        self._calls = Counter(
            "cdcwatch_calls", "Calls of close.claim.url by what they came to.", ["answer"], registry=registry
        )
        self._call = Histogram("cdcwatch_call_seconds", "A call of close.claim.url.", registry=registry)
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
        self._recovered = Counter(
            "cdcwatch_recovered",
            "Overdue orders that the sweep found in the table and closed; beside a stream that works 0.",
            registry=registry,
        )
        self._sweep_looks = Counter(
            "cdcwatch_sweep_looks", "Looks at all that is overdue in the table.", registry=registry
        )
        self._sweep_fallbacks = Counter(
            "cdcwatch_sweep_fallbacks",
            "Looks of the sweep that read the primary instead of the standby.",
            ["reason"],
            registry=registry,
        )
        for reason in ("delay", "away", "not_a_standby"):
            self._sweep_fallbacks.labels(reason)
        self._heard = Counter(
            "cdcwatch_heard",
            "--role close: records of the topic by what they came to: applied, or why they tell nothing here.",
            ["record"],
            registry=registry,
        )
        self._close_reconnects = Counter("cdcwatch_close_reconnects", "Closing connections lost.", registry=registry)

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when the page is."""
        Gauge(f"cdcwatch_{name}", description, registry=self.registry).set_function(value)

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

    def batch_settled(self, outcomes: Mapping[Outcome, int], lateness_us: Sequence[int], batch_us: int) -> None:
        """After every batch of closes: outcomes, how late each close was, how long the batch took."""
        for outcome, count in outcomes.items():
            self._closes.labels(outcome).inc(count)
        for late_us in lateness_us:
            self._lateness.observe(late_us / 1e6)
        self._batch.observe(batch_us / 1e6)

    def given_up(self, count: int) -> None:
        """So many orders failed to close for the last time."""
        self._dead_letters.labels("close").inc(count)

    def called(self, answer: Answer, call_us: int) -> None:
        """After every call of an external action."""
        self._calls.labels(answer).inc()
        self._call.observe(call_us / 1e6)

    def recovered(self, count: int) -> None:
        """So many orders were closed that the sweep had found."""
        self._recovered.inc(count)

    def looked(self) -> None:
        """The sweep has looked at all that is overdue."""
        self._sweep_looks.inc()

    def fell_back(self, reason: str) -> None:
        """The sweep read the primary instead of the standby."""
        self._sweep_fallbacks.labels(reason).inc()

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

    def database_lost(self, error: CdcwatchError) -> None:  # noqa: ARG002
        """A closing connection broke or could not be made."""
        self._close_reconnects.inc()


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
