"""How long a slot lasts: WAL rate, time to loss, and the thresholds that alarm before. Pure.

https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-MAX-SLOT-WAL-KEEP-SIZE
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from cdcwatch.slot.status import SlotStatus


class WalRate(Struct, frozen=True):
    """Bytes of WAL a second."""

    now: float | None
    """Between two looks; None where there was one only."""
    average: float | None
    """Since the server's statistics were reset; None before PostgreSQL 14."""

    @property
    def worse(self) -> float | None:
        """The greater of the two: a forecast from a quiet second would promise too much."""
        known = [rate for rate in (self.now, self.average) if rate is not None]
        return max(known) if known else None


class Thresholds(Struct, frozen=True):
    """Beyond any of them a slot alarms."""

    lag_bytes: int = 1 << 30
    """Not confirmed yet."""
    retained_bytes: int = 16 << 30
    """Kept on the server's disk."""
    time_to_loss_s: float = 4 * 3600
    """By the forecast, if nothing more is confirmed."""
    xmin_age: int = 200_000_000
    """Transactions since the oldest catalog row that it keeps: autovacuum_freeze_max_age's default."""
    needs_reader: bool = False
    """A slot that nobody reads alarms too."""


class Alarm(Struct, frozen=True):
    """A threshold that is passed."""

    what: str
    message: str
    remedy: str


def time_to_loss_s(status: SlotStatus, rate: WalRate) -> float | None:
    """Seconds until the server drops WAL that the slot needs, if it stays where it is; None: never, or unknown."""
    bytes_per_s = rate.worse
    if status.is_lost:
        return 0.0
    if status.safe_wal_bytes is None or not bytes_per_s:
        return None
    return max(0.0, status.safe_wal_bytes / bytes_per_s)


def alarms(status: SlotStatus, rate: WalRate, thresholds: Thresholds) -> list[Alarm]:
    """Every threshold that is passed, the worst first."""
    if status.is_lost:
        reason = f" ({status.invalidation_reason})" if status.invalidation_reason else ""
        return [
            Alarm(
                "lost",
                f"slot {status.name} is lost: WAL that it needed is gone{reason}",
                "cdcwatch recover: a new slot, then what the topic lacks is read from the table",
            )
        ]
    found: list[Alarm] = []
    catch_up = "let cdcwatch run catch up, or raise max_slot_wal_keep_size and SELECT pg_reload_conf()"
    if status.is_past_threshold:
        found.append(
            Alarm(
                "wal_status",
                f"slot {status.name} is about to be lost: wal_status is {status.wal_status}",
                f"now: {catch_up}",
            )
        )
    left_s = time_to_loss_s(status, rate)
    if left_s is not None and left_s < thresholds.time_to_loss_s:
        found.append(
            Alarm("time_to_loss", f"slot {status.name} is lost in {left_s / 60:.0f} min at this WAL rate", catch_up)
        )
    if status.retained_bytes is not None and status.retained_bytes > thresholds.retained_bytes:
        found.append(
            Alarm(
                "retained",
                f"slot {status.name} keeps {_size(status.retained_bytes)} of WAL on the server's disk",
                "start cdcwatch run, or look what it waits for (/readyz); cdcwatch slot drop when nobody needs it",
            )
        )
    if status.lag_bytes is not None and status.lag_bytes > thresholds.lag_bytes:
        found.append(
            Alarm(
                "lag",
                f"slot {status.name} is {_size(status.lag_bytes)} behind",
                "start cdcwatch run, or look what it waits for (/readyz)",
            )
        )
    if status.catalog_xmin_age is not None and status.catalog_xmin_age > thresholds.xmin_age:
        found.append(
            Alarm(
                "xmin_age",
                f"slot {status.name} keeps vacuum from catalog rows of the last {status.catalog_xmin_age} transactions",
                "start cdcwatch run; the rows bloat the catalog until it confirms",
            )
        )
    if thresholds.needs_reader and not status.active:
        found.append(Alarm("inactive", f"slot {status.name} is read by nobody", "start cdcwatch run"))
    return found


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MB"
