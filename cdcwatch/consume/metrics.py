"""What a consumer counts, for Prometheus and for `Consumer.stats()`. docs/consume.md has the list."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
_COUNTED: Final = {
    "total": ("events", "Events that were heard and are settled: handled, repeated, or given up."),
    "handled": ("handled", "Events whose handler ended well."),
    "duplicates": ("duplicates", "Events that were handled before, and were not handled again."),
    "skipped": ("skipped", "Records that were passed over: another type, a tombstone, no event."),
    "errors": ("errors", "Attempts that failed."),
    "dead_letters": ("dead_letters", "Records that went to a dead-letter topic."),
    "taken_over": ("taken_over", "Events taken in hand whose former holder had been silent for a lease."),
    "lost": ("lost", "Events that another took over while they were handled here: handled twice, perhaps."),
}


@dataclass(frozen=True, slots=True)
class Stats:
    """Since the consumer was made. The names are those of the metrics."""

    total: int = 0
    handled: int = 0
    duplicates: int = 0
    skipped: int = 0
    errors: int = 0
    dead_letters: int = 0
    taken_over: int = 0
    lost: int = 0
    handling_s: float = 0.0
    store_unavailable: int = 0
    away: tuple[str, ...] = ()
    """Levels that don't answer now."""

    @property
    def duplicate_rate(self) -> float:
        """Of all events, between 0 and 1."""
        return self.duplicates / self.total if self.total else 0.0


class ConsumeFamilies:
    """The metrics in one registry, by group: several consumers may share it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["group"]
        self.counters = {
            name: Counter(f"cdcwatch_consume_{metric}", description, labels, registry=registry)
            for name, (metric, description) in _COUNTED.items()
        }
        self.handling = Histogram(
            "cdcwatch_consume_handling_seconds",
            "How long the handler took, by call.",
            labels,
            buckets=_BUCKETS,
            registry=registry,
        )
        self.ratio = Gauge(
            "cdcwatch_consume_duplicate_ratio",
            "Repeated events by all events, since the start.",
            labels,
            registry=registry,
        )
        self.unavailable = Counter(
            "cdcwatch_consume_store_unavailable",
            "Questions that a level of the record did not answer.",
            ["group", "store"],
            registry=registry,
        )
        self.up = Gauge("cdcwatch_consume_store_up", "1 while a level answers.", ["group", "store"], registry=registry)


_families: Final[WeakKeyDictionary[Collector, ConsumeFamilies]] = WeakKeyDictionary()
_families_lock: Final = threading.Lock()


def families_of(registry: CollectorRegistry) -> ConsumeFamilies:
    """Made once a registry."""
    with _families_lock:
        found = _families.get(registry)
        if found is None:
            found = _families[registry] = ConsumeFamilies(registry)
        return found


class GroupMetrics:
    """Those of one consumer."""

    def __init__(self, group: str, registry: CollectorRegistry | None = None) -> None:
        """`registry`: None: one of its own, that nobody reads."""
        self._families = families_of(registry if registry is not None else CollectorRegistry())
        self._group = group
        self._lock = threading.Lock()
        self._counts = dict.fromkeys([field.name for field in fields(Stats)][:8], 0)
        self._handling_s, self._unavailable = 0.0, 0
        self._away: set[str] = set()
        self._counters = {name: counter.labels(group) for name, counter in self._families.counters.items()}
        self._handling = self._families.handling.labels(group)
        self._families.ratio.labels(group).set_function(lambda: self.stats().duplicate_rate)

    def count(self, name: str, by: int = 1) -> None:
        """One of the fields of Stats that are counts of events."""
        if by:
            with self._lock:
                self._counts[name] += by
            self._counters[name].inc(by)

    def handled_in(self, took_s: float) -> None:
        """One call of the handler, however it ended."""
        with self._lock:
            self._handling_s += took_s
        self._handling.observe(took_s)

    def level_failed(self, store: str) -> None:
        """A question without an answer."""
        with self._lock:
            self._unavailable += 1
        self._families.unavailable.labels(self._group, store).inc()

    def level_is_up(self, store: str, *, is_up: bool) -> None:
        """It answers, or does not any more."""
        with self._lock:
            (self._away.discard if is_up else self._away.add)(store)
        self._families.up.labels(self._group, store).set(is_up)
        self._families.unavailable.labels(self._group, store)

    def stats(self) -> Stats:
        """As they stand."""
        with self._lock:
            return Stats(
                **self._counts,
                handling_s=self._handling_s,
                store_unavailable=self._unavailable,
                away=tuple(sorted(self._away)),
            )
