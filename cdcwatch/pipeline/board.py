"""What `/status` says: the whole service at one look, for the status page and `cdcwatch top`.

Made when somebody asks, of figures that are there anyhow. Rates are between looks: without a look there is no cost,
and the first one has none. Of orders it holds keys and deadlines, nothing else; docs/security.md says who gets keys.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cdcwatch import __version__
from cdcwatch.instant import format_instant
from cdcwatch.pipeline.remedies import CLOCK_REMEDIES, remedy_of
from cdcwatch.table import key_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.close.agenda import Agenda
    from cdcwatch.pipeline.recent import RecentOutbox
    from cdcwatch.pipeline.slot_lookout import SlotLookout
    from cdcwatch.pipeline.watch import Watch
    from cdcwatch.settings import Settings
    from cdcwatch.telemetry import Metrics

NEXT: Final = 8
_RATE_S: Final = 5.0
"""Rates are over so long, where looks go back so far."""
_LEAST_S: Final = 0.25
_MOST_LOOKS: Final = 64
_LONGEST_KEY: Final = 120


class Vitals(Protocol):
    """As the endpoint has them."""

    def readiness(self) -> dict[str, Any]:
        """`ready`, and of each part whether it is and why not."""
        ...


class Shown(NamedTuple):
    """A table."""

    name: str
    topic: str
    action: str
    agenda: Agenda | None
    key_columns: int


class Board:
    """Filled in as the parts are made. `status` may be called from any thread."""

    def __init__(
        self,
        metrics: Metrics,
        vitals: Vitals,
        settings: Settings,
        *,
        outbox: RecentOutbox | None = None,
        slot: SlotLookout | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics, self._vitals, self._settings = metrics, vitals, settings
        self._outbox, self._slot, self._now_s = outbox, slot, now_s
        self._began_s = now_s()
        self._shown: Sequence[tuple[Settings, Agenda | None, int]] = ()
        self.watches: Sequence[Watch] = ()
        """Of a service with a stream."""
        self._looks: deque[tuple[float, dict[str, float]]] = deque(maxlen=_MOST_LOOKS)
        self._lock = threading.Lock()

    def show(self, tables: Sequence[tuple[Settings, Agenda | None, int]]) -> None:
        """The tables of a process without a stream: settings, agenda and how many columns the key has."""
        self._shown = tables

    def status(self, *, shows_keys: bool) -> dict[str, Any]:
        """The document. `shows_keys`: whether who asks may see keys of orders."""
        readiness, tables = self._vitals.readiness(), self._tables()
        parts = {name: part for name, part in readiness.items() if name != "ready"}
        totals = self._totals()
        closes = self._closes()
        return {
            "version": __version__,
            "role": self._metrics.role,
            "uptime_s": round(self._now_s() - self._began_s, 1),
            "ready": readiness["ready"],
            "parts": parts,
            "alarms": self._alarms(parts),
            "slot": self._slot_figures(),
            "sink": self._sink_figures(),
            "topic_noun": self._settings.topic_noun,
            "totals": {**totals, "closes_by_outcome": _summed(closes), "events_by_type": self._events_by_type()},
            "rates": self._rates({**totals, **{f"closed {name}": of.get("closed", 0) for name, of in closes.items()}}),
            "lateness": self._lateness(),
            "tables": [self._table(one, closes) for one in tables],
            "next": self._next(tables, shows_keys=shows_keys),
            "events": self._events(shows_keys=shows_keys),
            "shows_keys": shows_keys,
        }

    # -- figures -----------------------------------------------------------------------------------------------------

    def _tables(self) -> list[Shown]:
        if self.watches:
            return [watch.shown for watch in self.watches]
        return [
            Shown(one.table.name, one.topic, one.close.action, agenda, columns) for one, agenda, columns in self._shown
        ]

    def _totals(self) -> dict[str, float]:
        metrics = self._metrics
        closes = _by_labels(metrics.families.closes)
        return {
            "messages": _total(metrics.messages),
            "changes": _total(metrics.changes),
            "events": self._outbox.event_count if self._outbox else 0,
            "heard": _total(metrics.records_heard),
            "closed": sum(count for labels, count in closes if labels["outcome"] == "closed"),
            "recovered": _total(metrics.families.recovered),
            "replayed": _total(metrics.replayed),
            "dead_letters": _total(metrics.dead_letters),
            "close_reconnects": _total(metrics.families.reconnects),
        }

    def _closes(self) -> dict[str, dict[str, float]]:
        """By table, then by outcome."""
        names = list(self._metrics.closing)
        found: dict[str, dict[str, float]] = {name: {} for name in names}
        for labels, count in _by_labels(self._metrics.families.closes):
            found[labels.get("table", names[0])][labels["outcome"]] = count
        return found

    def _events_by_type(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for watch in self.watches:
            for kind, count in watch.event_counts.items():
                counts[kind] = counts.get(kind, 0) + count
        return counts

    def _rates(self, totals: dict[str, float]) -> dict[str, float] | None:
        """A second; None at the first look."""
        with self._lock:
            now_s = self._now_s()
            if not self._looks or now_s - self._looks[-1][0] >= _LEAST_S:
                self._looks.append((now_s, totals))
            before_s, before = next((look for look in self._looks if now_s - look[0] <= _RATE_S), self._looks[-1])
            if before_s == now_s and len(self._looks) > 1:
                before_s, before = self._looks[-2]  # the only one for long
        span_s = now_s - before_s
        if span_s < _LEAST_S:
            return None
        return {name: round((value - before.get(name, 0)) / span_s, 2) for name, value in totals.items()}

    def _lateness(self) -> dict[str, Any]:
        """The histogram since the start; the last closes' figures exactly."""
        buckets: dict[float, float] = {}
        for metric in self._metrics.families.lateness.collect():
            for sample in metric.samples:
                if sample.name.endswith("_bucket"):
                    bound_s = float(sample.labels["le"])
                    buckets[bound_s] = buckets.get(bound_s, 0) + sample.value
        counts, below = [], 0.0
        for bound_s, count in sorted(buckets.items()):
            counts.append({"le_s": bound_s if isfinite(bound_s) else None, "count": count - below})
            below = count
        recent_us = sorted(us for one in self._metrics.closing.values() for us in one.recent_lateness_us())
        return {"buckets": counts, "count": below, "recent": _quantiles(recent_us)}

    def _slot_figures(self) -> dict[str, Any] | None:
        if self._slot is None:
            return None
        name, sight = self._settings.slot.name, self._slot.latest
        if sight is None:
            return {"name": name, "problem": self._slot.problem or "not looked at yet"}
        status, left_s = sight.status, sight.seconds_to_loss
        return {
            "name": name,
            "problem": None,
            "age_s": round(self._now_s() - sight.at_s, 1),
            "active": status.active,
            "wal_status": status.wal_status,
            "confirmed_flush_lsn": status.confirmed_flush_lsn,
            "lag_bytes": status.lag_bytes,
            "retained_bytes": status.retained_bytes,
            "keep_bytes": status.keep_bytes,
            "wal_bytes_per_s": sight.rate.worse,
            "seconds_to_loss": left_s if isfinite(left_s) else None,
            "is_unlimited": status.keep_bytes is None,
        }

    def _sink_figures(self) -> dict[str, Any] | None:
        outbox = self._outbox
        if outbox is None:
            return None
        return {
            "kind": self._settings.sink.kind,
            "queue_events": outbox.unacknowledged_events,
            "queue_bytes": outbox.size_bytes,
            "oldest_s": round(outbox.oldest_age_s, 2),
        }

    # -- orders ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _table(one: Shown, closes: dict[str, dict[str, float]]) -> dict[str, Any]:
        facts = one.agenda.facts() if one.agenda is not None else None
        return {
            "name": one.name,
            "topic": one.topic,
            "action": one.action,
            "pending": facts.pending if facts else 0,
            "retrying": facts.retrying if facts else 0,
            "overdue_s": facts.overdue_us / 1e6 if facts else 0,
            "window_to": format_instant(facts.window_end_us) if facts else None,
            "closed": closes.get(one.name, {}).get("closed", 0),
        }

    @staticmethod
    def _next(tables: Sequence[Shown], *, shows_keys: bool) -> list[dict[str, Any]]:
        found = []
        for one in tables:
            if one.agenda is None:
                continue
            now_us = one.agenda.facts().now_us
            for due in one.agenda.nearest(NEXT):
                key = ", ".join(key_texts(due.key, one.key_columns))[:_LONGEST_KEY] if shows_keys else None
                in_s = None if now_us is None else (due.deadline_us - now_us) / 1e6
                row = {"table": one.name, "key": key, "deadline": format_instant(due.deadline_us), "in_s": in_s}
                found.append((due.deadline_us, row))
        found.sort(key=lambda pair: pair[0])
        return [row for _, row in found[:NEXT]]

    def _events(self, *, shows_keys: bool) -> list[dict[str, Any]]:
        recent = self._outbox.recent() if self._outbox else []
        return [{**event, "key": event["key"][:_LONGEST_KEY] if shows_keys else None} for event in recent]

    # -- alarms ------------------------------------------------------------------------------------------------------

    def _alarms(self, parts: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
        """Parts that are not ready, then the slot's thresholds, then the clocks."""
        found = [
            {"what": name, "message": f"{name}: {part['reason']}", "remedy": remedy_of(name, part["reason"])}
            for name, part in parts.items()
            if not part["ready"]
        ]
        sight = self._slot.latest if self._slot else None
        found += [
            {"what": alarm.what, "message": alarm.message, "remedy": alarm.remedy}
            for alarm in (sight.alarms if sight else ())
        ]
        for labels, value in _by_labels(self._metrics.clock_alarm):
            if value:
                about = labels["about"]
                message, remedy = CLOCK_REMEDIES[about]
                found.append({"what": f"clock {about}", "message": message, "remedy": remedy})
        return found


def _by_labels(family: Any) -> list[tuple[dict[str, str], float]]:
    """Of a counter or a gauge."""
    return [
        (sample.labels, sample.value)
        for metric in family.collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    ]


def _total(family: Any) -> float:
    return sum(value for _, value in _by_labels(family))


def _summed(closes: dict[str, dict[str, float]]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for by_outcome in closes.values():
        for outcome, count in by_outcome.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return counts


def _quantiles(ordered_us: list[int]) -> dict[str, Any]:
    """None while nothing was closed."""
    count = len(ordered_us)

    def at(share: float) -> float | None:
        return ordered_us[min(count - 1, int(share * count))] / 1e6 if count else None

    return {"count": count, "p50_s": at(0.5), "p99_s": at(0.99), "max_s": at(1.0)}
