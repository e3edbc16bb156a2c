"""What closing counts; where several tables are watched, under the label `table`.

https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from cdcwatch.close.attempt import Answer
    from cdcwatch.close.outcome import Outcome
    from cdcwatch.close.timekeeping import ClockFigures
    from cdcwatch.errors import CdcwatchError

_LATENESS_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
RECENT_CLOSES = 4096
"""Their lateness is remembered, each by itself."""
FALLBACKS = ("delay", "away", "not_a_standby")


class ClosingFamilies:
    """The metrics themselves."""

    def __init__(self, registry: CollectorRegistry, *, is_by_table: bool) -> None:
        self.is_by_table = is_by_table
        labels = ["table"] if is_by_table else []

        def counter(name: str, description: str, *own: str) -> Counter:
            return Counter(f"cdcwatch_{name}", description, [*own, *labels], registry=registry)

        def histogram(name: str, description: str, **options: Any) -> Histogram:
            return Histogram(f"cdcwatch_{name}", description, labels, registry=registry, **options)

        self.closes = counter("closes", "Due orders by what became of them.", "outcome")
        self.lateness = histogram(
            "lateness_seconds", "Closed minus deadline, by the database's clock.", buckets=_LATENESS_BUCKETS_S
        )
        self.batch = histogram("close_batch_seconds", "A batch of closes, start to commit.")
        self.calls = counter("calls", "Calls of close.claim.url by what they came to.", "answer")
        self.call = histogram("call_seconds", "A call of close.claim.url.")
        self.recovered = counter(
            "recovered", "Overdue orders that the sweep found in the table and closed; beside a stream that works 0."
        )
        self.sweep_looks = counter("sweep_looks", "Looks at all that is overdue in the table.")
        self.sweep_fallbacks = counter(
            "sweep_fallbacks", "Looks of the sweep that read the primary instead of the standby.", "reason"
        )
        self.reconnects = counter("close_reconnects", "Closing connections lost.")


class ClosingMetrics:
    """One table's."""

    def __init__(self, families: ClosingFamilies, table: tuple[str, ...] = ()) -> None:
        """`table`: its name, where others are counted beside it."""
        self.families, self._table = families, table
        self._recent_us: deque[int] = deque(maxlen=RECENT_CLOSES)
        if table or not families.is_by_table:  # the whole of several counts nothing itself
            for reason in FALLBACKS:
                self._at(families.sweep_fallbacks, reason)
            for family in (families.recovered, families.sweep_looks, families.reconnects):
                self._at(family)

    def _at(self, family: Any, *labels: str) -> Any:
        names = (*labels, *self._table)
        return family.labels(*names) if names else family

    def batch_settled(self, outcomes: Mapping[Outcome, int], lateness_us: Sequence[int], batch_us: int) -> None:
        """After every batch of closes: outcomes, how late each close was, how long the batch took."""
        families = self.families
        for outcome, count in outcomes.items():
            self._at(families.closes, outcome).inc(count)
        self._recent_us.extend(lateness_us)
        lateness = self._at(families.lateness)
        for late_us in lateness_us:
            lateness.observe(late_us / 1e6)
        self._at(families.batch).observe(batch_us / 1e6)

    def recent_lateness_us(self) -> list[int]:
        """Of the last closes, in no order that matters."""
        return list(self._recent_us)

    def given_up(self, count: int) -> None:
        """So many orders failed to close for the last time."""
        raise NotImplementedError

    def clock_measured(self, figures: ClockFigures) -> None:
        """The database's clock was read."""
        raise NotImplementedError

    def called(self, answer: Answer, call_us: int) -> None:
        """After every call of an external action."""
        self._at(self.families.calls, answer).inc()
        self._at(self.families.call).observe(call_us / 1e6)

    def recovered(self, count: int) -> None:
        """So many orders were closed that the sweep had found."""
        self._at(self.families.recovered).inc(count)

    def looked(self) -> None:
        """The sweep has looked at all that is overdue."""
        self._at(self.families.sweep_looks).inc()

    def fell_back(self, reason: str) -> None:
        """The sweep read the primary instead of the standby."""
        self._at(self.families.sweep_fallbacks, reason).inc()

    def database_lost(self, error: CdcwatchError) -> None:  # noqa: ARG002
        """A closing connection broke or could not be made."""
        self._at(self.families.reconnects).inc()
