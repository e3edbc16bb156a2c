import struct

import pytest

from cdcwatch.errors import DecodeError
from cdcwatch.slot.protocol import (
    KEEPALIVE,
    XLOG_DATA,
    XLOG_DATA_HEADER_BYTES,
    Keepalive,
    parse_keepalive,
    standby_status_update,
    start_lsn,
    start_replication,
)

KEEPALIVE_BYTES = bytes.fromhex("6b0000000101a2b3900002f48c72ef0d80")


def test_a_keepalive():
    assert KEEPALIVE_BYTES[0] == KEEPALIVE
    assert parse_keepalive(KEEPALIVE_BYTES + b"\x00") == Keepalive(0x1_01A2_B390, reply_requested=False)
    assert parse_keepalive(memoryview(KEEPALIVE_BYTES + b"\x01")) == Keepalive(0x1_01A2_B390, reply_requested=True)
    assert parse_keepalive(b"k" + b"\xff" * 8 + bytes(9)).wal_end == 2**64 - 1


@pytest.mark.parametrize("length", [1, 8, 17])
def test_a_keepalive_cut_short(length):
    with pytest.raises(DecodeError, match="cut short") as caught:
        parse_keepalive((KEEPALIVE_BYTES + b"\x01")[:length])
    assert caught.value.remedy


def test_xlog_data():
    message = b"w" + struct.pack("!QQq", 0x1_0000_00FF, 0x2_0000_0000, -5) + b'{"action":"B"}'
    assert message[0] == XLOG_DATA
    assert start_lsn(memoryview(message)) == 0x1_0000_00FF
    assert message[XLOG_DATA_HEADER_BYTES:] == b'{"action":"B"}'


def test_a_status_update_says_received_flushed_applied_time_and_whether_to_answer():
    update = standby_status_update(received_lsn=0x1_0000_0003, flush_lsn=2, at_us=-1)
    assert update.hex() == "72" + "0000000100000003" + "0000000000000002" * 2 + "ff" * 8 + "00"
    asking = standby_status_update(received_lsn=2**64 - 1, flush_lsn=0, at_us=0, reply_requested=True)
    assert asking.hex() == "72" + "ff" * 8 + "00" * 24 + "01"


def test_the_command_quotes_names_and_values():
    command = start_replication('o"dd', {"format-version": "2", "add-tables": r"a\'.b"})
    assert command == b"""START_REPLICATION SLOT "o""dd" LOGICAL 0/0 ("format-version" '2', "add-tables" 'a\\''.b')"""
    assert b" LOGICAL 16/B374D848 (" in start_replication("s", {"x": "y"}, from_lsn="16/B374D848")
