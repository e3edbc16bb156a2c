"""Where the service would begin to publish, by the topic's progress record and the slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.kafka.bus import KafkaBus
from cdcwatch.handoff.progress import Origin, Progress, SnapshotMark
from cdcwatch.inspection.peek import Start, start_of
from cdcwatch.settings import KafkaSettings, Settings, SinkSettings
from tests.unit.test_preflight import SLOT

if TYPE_CHECKING:
    import pytest

ORIGIN = Origin("7", 1, "shop", "orders")
SLOT_AT_16 = replace(SLOT, confirmed_flush_lsn="0/10")
AT_32 = Progress(ORIGIN, Position(32, 24, 2))


def _start(
    patch: pytest.MonkeyPatch, found: Progress | Exception | None, settings: Settings | None = None, system: str = "7"
) -> Start:
    def read(_: KafkaBus) -> Progress | None:
        if isinstance(found, Exception):
            raise found
        return found

    patch.setattr(KafkaBus, "progress", read)
    return start_of(settings or Settings(), SLOT_AT_16, system)


def test_what_the_topic_holds_is_covered_where_events_and_progress_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _start(monkeypatch, AT_32) == Start(AT_32.position, None, ())
    at_least_once = Settings(kafka=KafkaSettings(delivery="at_least_once"))
    assert _start(monkeypatch, AT_32, at_least_once) == Start(Position(16), None, ())


def test_a_snapshot_counts_until_the_slot_has_passed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SnapshotVisibility(5, 5, frozenset())
    assert _start(monkeypatch, replace(AT_32, snapshot=SnapshotMark(20, seen))).snapshot == seen
    assert _start(monkeypatch, replace(AT_32, snapshot=SnapshotMark(16, seen))).snapshot is None


def test_what_else_decides_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, system, note in (
        (None, "7", "the first run publishes all open orders before"),
        (AT_32, "8", "of another database system"),
        (replace(AT_32, position=Position(8)), "7", "beyond the topic's progress"),
        (UnavailableError("Kafka: away", remedy="wait"), "7", "Kafka: away"),
    ):
        start = _start(monkeypatch, found, system=system)
        assert (start.covered, start.snapshot) == (Position(16), None)
        assert note in start.notes[0]
    assert _start(monkeypatch, AT_32, Settings(sink=SinkSettings(kind="none"))) == Start(Position(16), None, ())
