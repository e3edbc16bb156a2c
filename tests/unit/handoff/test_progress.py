import orjson
import pytest
from msgspec.structs import replace

from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.handoff.progress import Origin, Progress, SnapshotMark, TableMark
from cdcwatch.table import Attachment, PublicationStamp

ORIGIN = Origin("7301234567890123456", 3, 'sh"op é', "cdcwatch_orders", 16401, "shop.orders")
PARTITIONS = (Attachment(16402, "751"), Attachment(16405, "752.760"))
POSITION = Position(0x1_01A2_B390, 0x1_01A2_B358, 2**31)
MARK = SnapshotMark(2**64 - 1, SnapshotVisibility(2**53 + 1, 2**63 - 1, frozenset({2**53 + 3, 2**53 + 1})))


@pytest.mark.parametrize(
    "progress",
    [
        Progress(ORIGIN, POSITION),
        Progress(ORIGIN, Position()),
        Progress(ORIGIN, POSITION, MARK),
        Progress(ORIGIN, POSITION, SnapshotMark(1, SnapshotVisibility(3, 3, frozenset()))),
        Progress(ORIGIN, POSITION, gap="renamed", partitions=PARTITIONS, additions=3),
        Progress(replace(ORIGIN, publication=PublicationStamp("16500.751", "16501.752")), POSITION),
    ],
)
def test_there_and_back(progress):
    back = Progress.from_json(progress.to_json())
    assert back == progress
    assert type(back.position) is Position


def test_the_record_as_other_versions_read_it():
    assert orjson.loads(Progress(ORIGIN, POSITION, MARK).to_json()) == {
        "system_identifier": "7301234567890123456",
        "timeline": 3,
        "database": 'sh"op é',
        "slot": "cdcwatch_orders",
        "table_oid": 16401,
        "table_name": "shop.orders",
        "end_lsn": "1/1A2B390",
        "commit_lsn": "1/1A2B358",
        "ordinal": 2147483648,
        "gap": None,
        "snapshot": {
            "lsn": "FFFFFFFF/FFFFFFFF",
            "xmin": "9007199254740993",
            "xmax": "9223372036854775807",
            "in_progress": ["9007199254740993", "9007199254740995"],
            "to_first_close": False,
            "tells_all": False,
        },
    }
    assert orjson.loads(Progress(ORIGIN, POSITION).to_json())["snapshot"] is None


def test_a_record_of_an_earlier_version():
    record = orjson.loads(Progress(ORIGIN, POSITION, MARK).to_json())
    del record["table_oid"], record["table_name"], record["gap"]
    back = Progress.from_json(orjson.dumps(record))
    assert (back.origin.table_oid, back.origin.table_name, back.partitions, back.additions) == (0, "", None, 0)
    assert back.origin.publication == PublicationStamp()


def test_a_record_that_knows_partitions_by_their_oids_alone():
    record = orjson.loads(Progress(ORIGIN, POSITION, partitions=PARTITIONS).to_json())
    assert record.pop("attached") == ["751", "752.760"]
    assert Progress.from_json(orjson.dumps(record)).partitions == (Attachment(16402), Attachment(16405))


def test_additions_tell_two_records_at_one_position_apart():
    before, after = (Progress(ORIGIN, POSITION, partitions=PARTITIONS, additions=n) for n in (1, 2))
    assert (before.covers(before), after.covers(before), before.covers(after)) == (True, True, False)
    assert not after.covers(Progress(ORIGIN, POSITION, gap="renamed", partitions=PARTITIONS, additions=2))


@pytest.mark.parametrize("value", [b"", b"{}", b"not json", b'{"snapshot":null}'])
def test_another_record_is_refused(value):
    with pytest.raises((ValueError, KeyError)):
        Progress.from_json(value)


def test_several_tables_stand_in_the_record_and_are_found_again_in_any_order():
    first, second, third = (
        TableMark(1, "a.orders"),
        TableMark(2, "b.orders", PublicationStamp("7", "8")),
        TableMark(3, "c"),
    )
    origin = Origin("7", 1, "shop", "s", *first, (second,))
    known = (Attachment(20, "5"),)
    progress = Progress(origin, Position(9, 8, 1), None, None, None, 3, (known,))
    record = Progress.from_json(progress.to_json())
    assert record == progress
    other_way_round = Origin("7", 1, "shop", "s", *second, (third, first))
    assert record.under(other_way_round).each_partitions == (known, None, None)
    alone = Origin("7", 1, "shop", "s", *second)
    assert record.under(alone).each_partitions == (known,)
    mark = SnapshotMark(5, SnapshotVisibility(1, 2, frozenset(), only_tables=frozenset({2, 1})))
    marked = Progress(origin, Position(9, 8, 1), mark, further_partitions=(None,))
    assert Progress.from_json(marked.to_json()).snapshot == mark


def test_the_record_of_one_table_is_as_it_was():
    record = orjson.loads(Progress(ORIGIN, Position(9, 8, 1)).to_json())
    assert "further_tables" not in record
    assert "additions" not in record
