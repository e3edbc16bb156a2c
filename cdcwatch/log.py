"""The log: one line an event of consequence, as text or JSON, on stderr. Repeats are counted and told together.

Position, reason and the like stand in fields of their own in JSON: `_log.info(…, extra={"lsn": …})`.
Never in it: row values, passwords.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.lsn import format_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdcwatch.errors import CdcwatchError

FIELDS: Final = ("lsn", "table", "topic", "slot", "partition", "count", "reason", "remedy")
"""What a line may have beside its message."""
REPEATS_S: Final = 60.0
_NUMBER: Final = re.compile(r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b|(?<![\w.])(?<!\w-)\d+(?:\.\d+)?")
"""Positions too. Not what ends a name: `orders_2` is another table, `orders-2` another topic."""
_MOST_KEYS: Final = 1000


_table: Final[ContextVar[str]] = ContextVar("table", default="")


def told_of(error: CdcwatchError, *, lsn: int | None = None) -> dict[str, Any]:
    """For `extra=`: why, what to do about it, and where in the stream."""
    return {"reason": str(error), "remedy": error.remedy, **({} if lsn is None else at_lsn(lsn))}


def at_lsn(lsn: int) -> dict[str, Any]:
    """For `extra=`: where in the stream."""
    return {"lsn": format_lsn(lsn)}


@contextmanager
def about_table(name: str) -> Iterator[None]:
    """What is logged inside, and in threads of ours that are started inside, names this table; empty: none."""
    token = _table.set(name)
    try:
        yield
    finally:
        _table.reset(token)


class NamingThread(threading.Thread):
    """Its lines in the log name the table that those of whoever starts it do."""

    _context: Context | None = None

    def start(self) -> None:
        """As of Thread."""
        self._context = copy_context()
        super().start()

    def run(self) -> None:
        """As of Thread."""
        if self._context is not None:
            self._context.run(super().run)


class TableFilter(logging.Filter):
    """Names the table that a line is about."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Once a record, in the thread that logs."""
        table = _table.get()
        if table and not hasattr(record, "table"):
            record.table = table
            shown = table.replace("%", "%%") if record.args else table
            record.msg = f"{shown}: {record.msg}"
        return True


class JsonFormatter(logging.Formatter):
    """An object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message, and the fields that the line has."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class _Repeats:
    """The lines like one that was written, since then."""

    def __init__(self, since_s: float) -> None:
        self.since_s, self.count, self.things = since_s, 0, 0
        self.last: logging.LogRecord | None = None

    def add(self, record: logging.LogRecord) -> None:
        self.count, self.things, self.last = self.count + 1, self.things + getattr(record, "count", 0), record


class RepeatFilter(logging.Filter):
    """Lets a warning through once in a while; those like it are counted, and told together at its end.

    Alike are lines of one place that differ in numbers alone. Others (info: a change of state; error: an end) and lines
    with `extra={"is_summed": True}`, which count by themselves, pass.
    """

    def __init__(self, tell: Callable[[logging.LogRecord], object], *, interval_s: float = REPEATS_S) -> None:
        """`tell` gets the line that tells of the others."""
        super().__init__()
        self._tell, self._interval_s = tell, interval_s
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], _Repeats] = {}
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.levelno != logging.WARNING or getattr(record, "is_summed", False):
            return True
        key = (record.name, _NUMBER.sub("#", record.getMessage()))
        now_s = time.monotonic()
        self._tell_over(now_s)
        with self._lock:
            seen = self._seen.get(key)
            if seen is None:
                if len(self._seen) < _MOST_KEYS:
                    self._seen[key] = _Repeats(now_s)
                return True
            seen.add(record)
            if self._timer is None:
                self._timer = threading.Timer(seen.since_s + self._interval_s - now_s, self._time_is_over)
                self._timer.daemon = True
                self._timer.start()
        return False

    def flush(self) -> None:
        """Tells now what is still to be told: the process ends."""
        self._tell_over(float("inf"))

    def _time_is_over(self) -> None:
        with self._lock:
            self._timer = None
        self._tell_over(time.monotonic())
        with self._lock:
            waiting = [seen.since_s for seen in self._seen.values() if seen.count]
            if waiting and self._timer is None:
                rest_s = max(0.1, min(waiting) + self._interval_s - time.monotonic())
                self._timer = threading.Timer(rest_s, self._time_is_over)
                self._timer.daemon = True
                self._timer.start()

    def _tell_over(self, now_s: float) -> None:
        with self._lock:
            over = [key for key, seen in self._seen.items() if now_s - seen.since_s >= self._interval_s]
            told = [self._seen.pop(key) for key in over]
        for seen in told:
            if seen.last is not None:
                self._tell(_summed(seen.last, seen, min(self._interval_s, time.monotonic() - seen.since_s)))


def _summed(record: logging.LogRecord, seen: _Repeats, took_s: float) -> logging.LogRecord:
    """The last of the lines, how many there were, and of how many things they tell where they count any."""
    fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    whole = f", {seen.things} in all" if seen.things else ""
    message = f"{record.getMessage()} ({seen.count} more like it in {took_s:.0f} s{whole})"
    told = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, message, None, None)
    told.__dict__.update(fields, count=seen.things or seen.count, is_summed=True)
    return told


class _Handler(logging.StreamHandler[Any]):
    """Ends with what is still to be told."""

    repeats: RepeatFilter | None = None

    def close(self) -> None:
        if self.repeats is not None:
            repeats, self.repeats = self.repeats, None
            repeats.flush()
        super().close()


def configure_log(log_format: str, *, level: int = logging.INFO) -> None:
    """On stderr. `log_format`: `text` or `json`. `level` below info: nothing is held back."""
    handler = _Handler()
    handler.addFilter(TableFilter())
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    if level >= logging.INFO:
        handler.repeats = RepeatFilter(handler.handle)
        handler.addFilter(handler.repeats)
    root = logging.getLogger("cdcwatch")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(level)
