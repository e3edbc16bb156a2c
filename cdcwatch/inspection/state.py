"""A slot's state with what only the whole knows: the WAL rate over time, and the topic's progress beside the slot's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdcwatch.errors import CdcwatchError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.inspection.peek import system_identifier
from cdcwatch.lsn import format_lsn, parse_lsn
from cdcwatch.slot.outlook import Alarm, Thresholds, WalRate, alarms, time_to_loss_s
from cdcwatch.slot.rates import WalRates
from cdcwatch.slot.status import read_all, read_status

if TYPE_CHECKING:
    import psycopg

    from cdcwatch.handoff.bus import Bus
    from cdcwatch.settings import Settings
    from cdcwatch.slot.status import SlotStatus


class TopicProgress(Struct, frozen=True):
    """How far the topic's events go, beside what the slot has confirmed."""

    flush_lsn: str | None
    """Ours: every event up to there is in the topic; None when there is no record, or it can't be read."""
    problem: str | None = None
    """Why it can't be read."""
    gap: str | None = None
    """Why `run` would stop: the slot no longer holds what follows the topic."""


class SlotState(Struct, frozen=True):
    """One slot at one look."""

    status: SlotStatus
    rate: WalRate
    topic: TopicProgress | None
    """None for slots that are not the configured one, and without a sink."""
    alarms: tuple[Alarm, ...]

    @property
    def time_to_loss_s(self) -> float | None:
        """Forecast; None: never, or unknown."""
        return time_to_loss_s(self.status, self.rate)


class Watcher:
    """Looks again and again over one connection; rates are between its own looks."""

    def __init__(self, connection: psycopg.Connection[Any], settings: Settings, thresholds: Thresholds) -> None:
        self._connection, self._settings, self._thresholds = connection, settings, thresholds
        self._rates, self._bus = WalRates(connection), bus_of(settings)

    def sample(self) -> None:
        """Notes where the WAL ends, for the next look's rate."""
        self._rates.sample()

    def look(self, *, with_topic: bool = True) -> SlotState | None:
        """The configured slot; None when there is none."""
        rate = self._rates.look()
        status = read_status(self._connection, self._settings.slot.name)
        return None if status is None else self._state(status, rate, with_topic=with_topic)

    def look_at_all(self) -> list[SlotState]:
        """Every logical slot of the server."""
        rate = self._rates.look()
        return [self._state(status, rate, with_topic=False) for status in read_all(self._connection)]

    def _state(self, status: SlotStatus, rate: WalRate, *, with_topic: bool) -> SlotState:
        # After the slot: the topic's progress is never behind what was confirmed before.
        topic = self._topic(status, self._bus) if with_topic and self._bus is not None else None
        found = alarms(status, rate, self._thresholds)
        if topic is not None and topic.gap is not None and not status.is_lost:
            found.append(
                Alarm(
                    "gap",
                    topic.gap,
                    "cdcwatch recover, or cdcwatch run --accept-gap, reads the table again (docs/runbook.md)",
                )
            )
        return SlotState(status, rate, topic, tuple(found))

    def _topic(self, status: SlotStatus, bus: Bus) -> TopicProgress:
        try:
            progress = bus.progress()
        except CdcwatchError as error:
            return TopicProgress(None, problem=str(error))
        if progress is None:
            return TopicProgress(None)
        gap = None
        if progress.origin.system_identifier != system_identifier(self._connection):
            gap = "the topic's progress is of another database system"
        elif parse_lsn(status.confirmed_flush_lsn or "0/0") > progress.position.end_lsn:
            gap = f"slot {status.name} is beyond the topic's progress: changes between the two are lost to the topic"
        return TopicProgress(format_lsn(progress.position.end_lsn), gap=gap)
