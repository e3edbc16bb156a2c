"""What a demo came to, for scripts and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from cdcwatch.deadline.rule import CANCELLED
from cdcwatch.lsn import format_lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.demo.figures import Lateness, Waiting
    from cdcwatch.demo.tally import Comparison, ShopCounts, TopicCounts

_NAME_WIDTH: Final = 7
_MEANING: Final = {CANCELLED: " (paid, cancelled or deleted)"}
"""Of types whose name alone misleads beside the table's statuses."""


class Summary(Struct, frozen=True):
    """The counts of the table and the topic, and every comparison that was made."""

    traffic_s: float
    statuses: Mapping[str, int]
    waiting: Waiting
    lateness: Lateness
    shop: ShopCounts
    topic: TopicCounts
    confirmed_flush_lsn: int
    last_commit_lsn: int
    """The newest commit that an event tells of."""
    comparisons: tuple[Comparison, ...] = ()
    """Empty: nothing was compared."""
    problems: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every comparison came out."""
        return bool(self.comparisons) and all(one.agrees for one in self.comparisons)

    @property
    def orders(self) -> int:
        """The table's rows, and those that were deleted from it."""
        return sum(self.statuses.values()) + self.shop.deleted

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        late, topic = self.lateness, self.topic
        return {
            "traffic_s": round(self.traffic_s, 3),
            "table": {
                "orders": self.orders,
                "expired": self.statuses.get("expired", 0),
                "paid": self.statuses.get("paid", 0),
                "cancelled": self.statuses.get("cancelled", 0),
                "deleted": self.shop.deleted,
                "pending": self.waiting.rows,
                "overdue": self.waiting.overdue_rows,
                "early": late.early_rows,
                "late_ms": {"p50": _rounded(late.p50_ms), "p99": _rounded(late.p99_ms), "max": _rounded(late.max_ms)},
            },
            "topic": {
                "events": topic.events,
                **{kind.removeprefix("deadline."): count for kind, count in topic.by_type.items()},
                "keys": topic.keys,
                "duplicates": topic.duplicates,
                "out_of_order": topic.out_of_order,
                "early": topic.early,
            },
            "slot": {
                "confirmed_flush_lsn": format_lsn(self.confirmed_flush_lsn),
                "last_commit_lsn": format_lsn(self.last_commit_lsn),
            },
            "comparisons": [
                {"what": one.what, "expected": one.expected, "found": one.found, "agree": one.agrees}
                for one in self.comparisons
            ],
            "problems": list(self.problems),
            "agree": self.agrees,
        }

    def text(self) -> str:
        """A few plain lines."""
        table, topic, late = self.document()["table"], self.topic, self.lateness
        ends = ", ".join(f"{table[name]:,} {name}" for name in ("expired", "paid", "cancelled", "deleted", "pending"))
        kinds = ", ".join(
            f"{count:,} {kind.removeprefix('deadline.')}{_MEANING.get(kind, '')}"
            for kind, count in topic.by_type.items()
        )
        rate = self.orders / self.traffic_s if self.traffic_s else 0.0
        lines = [
            ("shop", f"{self.orders:,} orders in {self.traffic_s:.1f} s, {rate:.0f} a second"),
            ("table", f"{ends}; early {late.early_rows}"),
            (
                "late",
                f"p50 {milliseconds(late.p50_ms)}, p99 {milliseconds(late.p99_ms)}, max {milliseconds(late.max_ms)}",
            ),
            ("topic", f"{topic.events:,} events of {topic.keys:,} orders: {kinds}"),
            ("", f"duplicates {topic.duplicates}, out of order {topic.out_of_order}"),
            (
                "slot",
                f"confirmed {format_lsn(self.confirmed_flush_lsn)}, last commit {format_lsn(self.last_commit_lsn)}",
            ),
        ]
        if self.comparisons:
            differing = [one for one in self.comparisons if not one.agrees]
            verdict = (
                f"NO: {len(differing)} of {len(self.comparisons)} comparisons differ"
                if differing
                else f"yes, in all {len(self.comparisons)} comparisons"
            )
            lines.append(("agree", f"{verdict}: of the table, the topic and what the shop did"))
            lines += [("", f"{one.what}: {one.expected} expected, {one.found} found") for one in differing]
            lines += [("", problem) for problem in self.problems]
        else:
            lines.append(
                (
                    "agree",
                    "stopped midway: not compared. With --for 20s the last orders expire first, then all is compared",
                )
            )
        return "\n".join(f"{name:<{_NAME_WIDTH}}{text}" for name, text in lines)


class Summaries(Struct, frozen=True):
    """Of several tables."""

    tables: Mapping[str, Summary]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Of all."""
        return tuple(one for summary in self.tables.values() for one in summary.comparisons)

    @property
    def agrees(self) -> bool:
        """Whether every table agrees with its topic and with what the shop did."""
        return all(summary.agrees for summary in self.tables.values())

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "tables": {name: summary.document() for name, summary in self.tables.items()},
            "agree": self.agrees,
        }

    def text(self) -> str:
        """Each table's lines under its name."""
        return "\n\n".join(f"{name}\n{summary.text()}" for name, summary in self.tables.items())


def milliseconds(value: float | None) -> str:
    """`2.4 ms`, or a dash."""
    return "-" if value is None else f"{value:,.1f} ms"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
