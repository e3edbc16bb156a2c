"""Where a process begins: after the topic's record, with a read of the table, or not at all."""

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.errors import PreconditionError
from cdcwatch.handoff.progress import Origin, Progress, SnapshotMark
from cdcwatch.pipeline.beginning import require_no_gap, where_to_begin
from cdcwatch.slot.stream import parse_history
from cdcwatch.table import NO_PUBLICATION, PublicationStamp
from tests.fakes.slot import FACTS

ORIGIN = Origin(FACTS.system_identifier, FACTS.timeline, FACTS.database, "orders")
SEEN = SnapshotVisibility(3, 3, frozenset())


@pytest.mark.parametrize(
    ("ancestry", "found", "goes_on"),
    [
        (((1, 0x900),), Progress(ORIGIN, Position(0x900)), True),
        (((1, 0x900), (2, 0xA00)), Progress(ORIGIN, Position(0x900)), True),
        (((1, 0x8FF),), Progress(ORIGIN, Position(0x900)), False),
        (((1, 0x8FF), (2, 0xA00)), Progress(ORIGIN, Position(0x900)), False),
        (((2, 0xA00),), Progress(ORIGIN, Position(0x900)), False),
        ((), Progress(ORIGIN, Position(0x900)), False),
        (((1, 0x900),), Progress(ORIGIN, Position(0x800, 0x900, 3)), False),
        (((1, 0x901),), Progress(ORIGIN, Position(0x800, 0x900, 3)), True),
        (((1, 0x900),), Progress(ORIGIN, Position(0x800), SnapshotMark(0x901, SEEN)), False),
        (((1, 0x900),), Progress(ORIGIN, Position(0x800), SnapshotMark(0x900, SEEN)), True),
    ],
)
def test_a_new_timeline_is_no_gap_where_it_has_all_that_the_topic_tells(ancestry, found, goes_on):
    """Left at a position or after it; a transaction that the topic has in part; a read of the table."""
    facts = replace(FACTS, timeline=3, ancestry=ancestry, confirmed_flush_lsn=0x800)
    origin = replace(ORIGIN, timeline=3)
    with nullcontext() if goes_on else pytest.raises(PreconditionError, match="of timeline 1, and the server is on 3"):
        require_no_gap(facts, found, origin, server_lsn=0x10000)


def test_a_history_file_as_the_server_sends_it():
    text = "# made by hand\n1\t0/5000060\tno recovery target specified\n\n2\t1/A000000\tbefore 2026-11-30 10:00+00\n"
    assert parse_history(text) == ((1, 0x5000060), (2, 0x1_0A00_0000))
    assert parse_history(text.encode()) == parse_history(text)
    assert parse_history("") == ()


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize(
    ("found", "accepts", "again", "told"),
    [
        (None, False, False, (None, None)),
        (Progress(ORIGIN, Position(0x1000)), True, False, None),
        (Progress(ORIGIN, Position(0x1000)), False, True, (0x1000, None)),
        (Progress(ORIGIN, Position(0xFFF)), True, False, (0xFFF, "beyond the last event")),
        (Progress(ORIGIN, Position(0xFFF)), True, True, (0xFFF, "beyond the last event")),
    ],
)
def test_when_the_table_is_read_and_for_which_gap(is_exact, found, accepts, again, told):
    asked = []

    def publish(before, reason):
        asked.append((before and before.position.end_lsn, reason))
        return Progress(ORIGIN, Position(0x1800))

    start = where_to_begin(
        found,
        FACTS,
        ORIGIN,
        is_exact=is_exact,
        accept_gap=accepts,
        reads_again=again,
        server_lsn=lambda: 0x2000,
        publish_snapshot=publish,
    )
    assert len(asked) == (told is not None)
    if told is not None:
        ((before, reason),) = asked
        assert before == told[0]
        assert reason == told[1] or told[1] in reason
    expected = 0x1000 if told is None or not is_exact else 0x1800
    assert start.position == Position(expected)


def test_a_gap_that_nobody_accepted_is_not_read_over():
    with pytest.raises(PreconditionError, match="beyond the last event"):
        where_to_begin(
            Progress(ORIGIN, Position(0xFFF)),
            FACTS,
            ORIGIN,
            is_exact=True,
            accept_gap=False,
            reads_again=True,
            server_lsn=lambda: 0x2000,
            publish_snapshot=lambda _before, _reason: pytest.fail("the table was read"),
        )


AS_NOTED = PublicationStamp("6.751", "7.751")


@pytest.mark.parametrize(
    ("noted", "now", "is_gap"),
    [
        (AS_NOTED, AS_NOTED, False),
        (AS_NOTED, PublicationStamp("6.752", "7.751"), True),
        (AS_NOTED, PublicationStamp("6.751", "8.752"), True),
        (AS_NOTED, PublicationStamp("6.751", "8.752", goes_with_column=True), False),
        (AS_NOTED._replace(members=""), PublicationStamp("6.751", "8.752"), False),
        (AS_NOTED._replace(members=""), PublicationStamp("6.752", "7.751"), True),
        (NO_PUBLICATION, PublicationStamp("6.752", "7.751"), False),
        (AS_NOTED, NO_PUBLICATION, False),
    ],
    ids=[
        "same",
        "itself",
        "its members",
        "with a column",
        "as we said",
        "more than we said",
        "unknown",
        "wal2json now",
    ],
)
def test_a_publication_that_was_altered_while_nobody_looked(noted, now, is_gap):
    found = Progress(replace(ORIGIN, publication=noted), Position(0x1000))
    with pytest.raises(PreconditionError, match="was altered") if is_gap else nullcontext():
        require_no_gap(FACTS, found, replace(ORIGIN, publication=now), server_lsn=0x1000)
