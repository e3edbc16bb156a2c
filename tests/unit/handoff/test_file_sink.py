"""The journal: torn, cut, rotated, full, moved away, somebody else's."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdcwatch.deadline.event import DeadLetter, Event, GapEvent
from cdcwatch.deadline.position import Position
from cdcwatch.errors import ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.handoff.file import segments
from cdcwatch.handoff.file.journal import HEADER, encoded, encoded_named, read_line
from cdcwatch.handoff.file.sink import FileSink, newest_commit
from cdcwatch.handoff.file.tail import FileTail
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.handoff.sink import Batch
from cdcwatch.handoff.told import Told
from cdcwatch.settings import FileSettings, Settings, SinkSettings, TableEntry

if TYPE_CHECKING:
    from pathlib import Path

SLOT = "orders_slot"
ORIGIN = Origin("7301234567890123456", 1, "shop", SLOT)


def _progress(number: int) -> Progress:
    return Progress(ORIGIN, Position(0x1000 + number, 0xFFF + number, number))


def _event(key: str, topic: str = "") -> Event:
    value = orjson.dumps(
        {"id": f"0/1-{key}", "time": "2026-11-30T10:15:00.000000Z", "type": "deadline.scheduled", "subject": key}
    )
    return Event(key.encode(), value, topic)


def _batch(number: int, *keys: str) -> Batch:
    return Batch([_event(key) for key in keys], _progress(number), range(number, number + 1), 0)


def _opened(where: FileSettings, slot: str = SLOT) -> FileSink:
    sink = FileSink(where, slot)
    sink.open()
    return sink


def _keys(where: FileSettings, **how: bool) -> list[str]:
    tail = FileTail(where, **how)
    found = [(one.key or b"-").decode() for one in tail.so_far()]
    tail.close()
    return found


@pytest.fixture
def where(tmp_path: Path) -> FileSettings:
    return FileSettings(path=str(tmp_path / "deadlines.jsonl"))


def _path(where: FileSettings) -> Path:
    from pathlib import Path

    return Path(where.path)


@given(key=st.text(), topic=st.sampled_from(["", "orders", 'a"b']), value=st.dictionaries(st.text(), st.text()))
def test_a_line_gives_back_what_was_written(key: str, topic: str, value: dict[str, str]) -> None:
    data = orjson.dumps(value)
    event = Event(key.encode(errors="replace"), data, topic)
    line = encoded_named(event)
    assert read_line(encoded(event)) == ("", *read_line(line)[1:])
    assert line.count(b"\n") == 1
    assert read_line(line) == (topic, key.encode(errors="replace"), data, False)
    assert orjson.loads(line)["event"] == value


def test_dead_letters_gaps_and_truncates_have_lines_too() -> None:
    letter = DeadLetter(None, orjson.dumps({"id": "0/9-1", "reason": "no"}), "")
    assert read_line(encoded(letter)) == ("", b"0/9-1", letter.value, True)
    gap = GapEvent(None, b'{"id":"gap-0/9","source":"x"}', "")
    assert read_line(encoded(gap)) == ("", b"\0gap-0/9", b'{"id":"gap-0/9-p0","source":"x"}', False)
    truncate = Event(None, b'{"id":"0/9-1","source":"x"}', "")
    assert read_line(encoded(truncate)) == ("", None, b'{"id":"0/9-1-p0","source":"x"}', False)


def test_torn_anywhere_it_is_mended_to_the_batch_before(where: FileSettings) -> None:
    """As a process leaves it that dies in the middle of a batch, at every byte of it."""
    sink = _opened(where)
    sink.publish([_batch(1, "a", "b")])
    whole = _path(where).stat().st_size
    sink.publish([_batch(2, "c", "d")])
    sink.close()
    data = _path(where).read_bytes()
    for cut in range(whole, len(data) + 1):
        _path(where).write_bytes(data[:cut])
        held = _progress(2) if cut == len(data) else _progress(1)
        keys = ["a", "b", "c", "d"] if cut == len(data) else ["a", "b"]
        assert _held(where) == held
        assert _keys(where) == keys
        again = FileSink(where, SLOT)
        assert again.open() == held
        assert _path(where).stat().st_size == (cut if cut == len(data) else whole)
        again.close()


def _held(where: FileSettings) -> Progress | None:
    """As who only looks sees it."""
    commit = newest_commit(where, SLOT)
    return None if commit is None else commit.progress


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(hole=st.integers(0, 400), length=st.integers(1, 200))
def test_a_power_cut_that_lost_a_page_before_the_last_line_loses_the_batch(
    where: FileSettings, hole: int, length: int
) -> None:
    _path(where).unlink(missing_ok=True)
    sink = _opened(where)
    sink.publish([_batch(1, "a")])
    whole = _path(where).stat().st_size
    sink.publish([_batch(2, *map(str, range(8)))])
    end = _path(where).stat().st_size
    sink.close()
    data = bytearray(_path(where).read_bytes())
    batch = end - whole
    at = whole + hole % batch
    data[at : min(at + length, end)] = bytes(min(at + length, end) - at)
    _path(where).write_bytes(data)
    again = FileSink(where, SLOT)
    assert again.open() == _progress(1)
    assert _keys(where) == ["a"]
    again.publish([_batch(2, "x")])
    again.close()
    assert _keys(where) == ["a", "x"]


def test_a_file_of_somebody_else_is_left_as_it_is(where: FileSettings) -> None:
    for content in (b'{"orders":[]}\n', b"x", HEADER[:-1]):
        _path(where).write_bytes(content)
        with pytest.raises(PreconditionError, match="no journal"):
            FileSink(where, SLOT).open()
        assert _path(where).read_bytes() == content


def test_an_empty_file_of_somebody_else_too(where: FileSettings) -> None:
    _path(where).touch()
    with pytest.raises(PreconditionError, match="no journal"):
        FileSink(where, SLOT).open()


def test_a_full_disk_loses_nothing_and_is_told(where: FileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = _opened(where)
    sink.publish([_batch(1, "a")])
    size = _path(where).stat().st_size
    real, left = os.write, [300]

    def short(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(left[0], len(data))
        left[0] -= taken
        return real(descriptor, data[:taken])

    with monkeypatch.context() as patch:
        patch.setattr(segments.os, "write", short)
        with pytest.raises(UnavailableError, match="No space left") as caught:
            sink.publish([_batch(2, *map(str, range(20)))])
    assert "make room" in caught.value.remedy
    assert _path(where).stat().st_size == size
    sink.acknowledged()
    assert sink.open() == _progress(1)
    sink.publish([_batch(2, "b")])
    assert _keys(where) == ["a", "b"]
    sink.close()


def test_what_could_not_be_synced_is_not_acknowledged(where: FileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = _opened(where)

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("cdcwatch.handoff.file.sink.os.fdatasync", fails)
        with pytest.raises(UnavailableError):
            sink.publish([_batch(1, "a")])
    assert sink.acknowledged() == []
    assert _keys(where) == []
    assert sink.open() is None
    sink.close()


def test_every_acknowledged_batch_was_synced_before(where: FileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = _opened(where)
    synced: list[int] = []
    real = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr("cdcwatch.handoff.file.sink.os.fdatasync", noted)
    for number in range(1, 4):
        sink.publish([_batch(number, str(number))])
        assert synced[-1] == _path(where).stat().st_size
    assert len(synced) == 3
    sink.close()


def test_a_file_moved_away_is_noticed_and_another_one_made(
    where: FileSettings, caplog: pytest.LogCaptureFixture
) -> None:
    sink = _opened(where)
    sink.publish([_batch(1, "a")])
    _path(where).rename(f"{where.path}.bak")
    with pytest.raises(UnavailableError, match="moved or deleted"):
        sink.publish([_batch(2, "b")])
    assert sink.open() is None
    assert "was made anew" in caplog.text
    sink.close()


def _rotating(where: FileSettings, **how: int) -> FileSettings:
    return FileSettings(path=where.path, **{"rotate_bytes": 2000, **how})


def test_rotation_keeps_every_event_and_every_slots_progress(where: FileSettings) -> None:
    where = _rotating(where)
    other = _opened(where, "another_slot")
    other.publish([_batch(99, "other")])
    sink = _opened(where)
    for number in range(1, 40):
        sink.publish([_batch(number, f"k{number}")])
    other.close()
    sink.close()
    assert len(segments.numbered(_path(where))) > 3
    assert _keys(where) == ["other", *(f"k{number}" for number in range(1, 40))]
    assert FileSink(where, "another_slot").open() == _progress(99)
    assert FileSink(where, SLOT).open() == _progress(39)
    told = FileSink(where, SLOT).survey(lambda count: Told("cdcwatch:x", (), partitions=count))
    assert told.partitions == 1


def test_old_files_go_as_configured(where: FileSettings) -> None:
    where = _rotating(where, keep_files=2)
    sink = _opened(where)
    for number in range(1, 40):
        sink.publish([_batch(number, f"k{number}")])
    sink.close()
    kept = segments.numbered(_path(where))
    assert len(kept) == 2
    assert kept[0].name != "deadlines.jsonl.000001"
    assert _keys(where)[-1] == "k39"


@pytest.mark.parametrize("step", ["hardlink_to", "rename"])
def test_a_crash_in_the_middle_of_a_rotation(where: FileSettings, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    where = _rotating(where)
    sink = _opened(where)
    keys: list[str] = []

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    def publish_on() -> None:
        for number in range(1, 40):
            keys.append(f"k{number}")
            sink.publish([_batch(number, keys[-1])])

    with monkeypatch.context() as patch:
        patch.setattr(type(_path(where)), step, dies)
        with pytest.raises(KeyboardInterrupt):
            publish_on()
    sink.close()
    assert _path(where).with_name("deadlines.jsonl.new").exists()
    assert _keys(where) == keys
    again = FileSink(where, SLOT)
    assert again.open() == _progress(len(keys))
    again.publish([_batch(77, "last")])
    again.close()
    assert _keys(where) == [*keys, "last"]
    assert not _path(where).with_name("deadlines.jsonl.new").exists()


def test_a_reader_follows_through_rotation_and_sees_nothing_uncommitted(where: FileSettings) -> None:
    where = _rotating(where)
    sink = _opened(where)
    sink.publish([_batch(1, "k1")])
    tail = FileTail(where)
    assert [one.key for one in tail.so_far()] == [b"k1"]
    tail.follow()
    sink._write_events([_event("never")])  # written, and not committed
    assert tail.came(0) is None
    found = []
    for number in range(2, 40):
        sink.publish([_batch(number, f"k{number}", "second")])
        while (record := tail.came(0)) is not None:
            found.append(record.key)
    while (record := tail.came(0)) is not None:
        found.append(record.key)
    assert found == [key for number in range(2, 40) for key in (b"k%d" % number, b"second")]
    tail.close()
    late = FileTail(where)
    assert [one.key for one in late.last(3)] == [b"second", b"k39", b"second"]
    assert len(late.last(60)) == 60
    assert len(late.last(1000)) == 77
    assert [one.key for one in late.about(b"k20", 5, 1000)] == [b"k20"]
    offsets = [one.offset for one in late.so_far()]
    assert offsets == sorted(set(offsets))
    assert late.last(1)[0].timestamp_ms == 1796033700000
    late.close()
    sink.close()


def test_a_writer_that_died_over_its_batch_is_cleaned_up_after_by_another_slots(where: FileSettings) -> None:
    first, second = _opened(where), _opened(where, "another_slot")
    first.publish([_batch(1, "a")])
    first._write_events([_event("never")])
    first.close()
    second.publish([_batch(5, "b")])
    second.close()
    assert _keys(where) == ["a", "b"]
    assert FileSink(where, SLOT).open() == _progress(1)


def test_lines_of_several_tables_name_their_topic(where: FileSettings) -> None:
    sink = FileSink(where, SLOT, ["orders", "bookings"])
    sink.open()
    assert sink.made_topics == {"orders", "bookings"}
    events = [_event("1", "orders"), _event("2", "bookings")]
    sink.publish([Batch(events, _progress(1), range(3), 0)])
    sink.close()
    entries = (TableEntry(name="orders", topic="orders"), TableEntry(name="bookings", topic="bookings"))
    whole = Settings(sink=SinkSettings(kind="file"), file=where, tables=entries)
    for one, key in zip(whole.each(), (b"1", b"2"), strict=True):
        tail = bus_of(one).tail(is_ended=lambda: False)
        assert [record.key for record in tail.so_far()] == [key]
        tail.close()
    told = [record.key for record in FileTail(where, "orders", takes_unnamed=True).so_far()]
    assert told == [b"1"]


def test_progress_is_forgotten_on_request(where: FileSettings) -> None:
    whole = Settings(sink=SinkSettings(kind="file"), file=where)
    bus = bus_of(whole)
    assert bus.forget_progress() is False
    sink = _opened(where, whole.slot.name)
    sink.publish([_batch(1, "a")])
    sink.close()
    assert bus.progress() == _progress(1)
    assert bus.forget_progress() is True
    assert bus.progress() is None
    assert FileSink(where, whole.slot.name).open() is None
    with pytest.raises(ConfigurationError, match="no consumer group"):
        bus.member(None)


def test_a_lock_that_is_held_names_the_process(where: FileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcwatch.handoff.file.lock._WAIT_S", 0.05)
    sink = _opened(where)
    program = (
        "import fcntl, sys\n"
        f"file = open({where.path + '.lock'!r})\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UnavailableError, match=f"another process holds .*{os.getpid()}"):
            sink.publish([_batch(1, "a")])
        holder.stdin.close()
    sink.publish([_batch(1, "a")])
    sink.close()


def test_checks(where: FileSettings) -> None:
    whole = Settings(sink=SinkSettings(kind="file"), file=where)
    assert [one.state for one in bus_of(whole).checks()] == ["ok", "ok"]
    sink = _opened(where, whole.slot.name)
    letter = DeadLetter(None, orjson.dumps({"id": "0/9-1", "reason": "no"}), "")
    sink.publish([Batch([_event("a"), letter], _progress(1), range(3), 0)])
    sink.publish([_batch(2, "b")])
    found = bus_of(whole).checks()[0]
    assert found.state == "warn"
    assert "1 dead letter" in found.message
    assert "0/1002" in found.message
    assert _keys(where, dead=True) == ["0/9-1"]
    sink.close()
    missing = Settings(sink=SinkSettings(kind="file"), file=FileSettings(path=where.path + "/no/file"))
    (check,) = bus_of(missing).checks()
    assert (check.state, check.remedy.startswith("mkdir -p")) == ("fail", True)
    with pytest.raises(PreconditionError):
        FileSink(missing.file, SLOT).open()
    (hearing,) = bus_of(whole).checks(hears=True)
    assert hearing.state == "fail"


def _idle(number: int) -> Batch:
    return Batch([], _progress(number), range(number, number + 1), 0)


def test_a_journal_without_events_does_not_grow_and_is_not_rotated(where: FileSettings) -> None:
    """Positions of WAL that holds nothing of ours come all the time: they must not drive events out."""
    where = _rotating(where, keep_files=1)
    other = _opened(where, "another_slot")
    other.publish([_batch(99, "other")])
    sink = _opened(where)
    sink.publish([_batch(1, "a")])
    tail = FileTail(where)
    assert [one.key for one in tail.so_far()] == [b"other", b"a"]
    most = 0
    for number in range(2, 600):
        sink.publish([_idle(number)])
        most = max(most, _path(where).stat().st_size)
        if number % 50 == 0:
            other.publish([_idle(number)])
            assert tail.came(0) is None
            assert FileSink(where, SLOT).open() == _progress(number)
            sink.open()
    assert most < 80_000
    assert segments.numbered(_path(where)) == []
    assert FileSink(where, "another_slot").open() == _progress(550)
    sink.open()
    sink.publish([_batch(700, "b", "c")])
    found = []
    while (record := tail.came(0)) is not None:
        found.append(record.key)
    assert found == [b"b", b"c"]
    assert _keys(where)[-2:] == ["b", "c"]
    tail.close()
    sink.close()
    other.close()


@pytest.mark.parametrize("step", ["pwrite", "ftruncate", "fsync"])
def test_a_crash_while_positions_are_put_together(
    where: FileSettings, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sink = _opened(where)
    sink.publish([_batch(1, "a")])

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    def publish_on() -> None:
        for number in range(2, 600):
            held.append(number)
            sink.publish([_idle(number)])

    held: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(segments.os, step, dies)
        with pytest.raises(KeyboardInterrupt):
            publish_on()
    sink.close()
    assert len(held) > 50
    assert _held(where) == _progress(held[-1])
    again = FileSink(where, SLOT)
    assert again.open() == _progress(held[-1])
    for number in range(1000, 1400):
        again.publish([_idle(number)])
    again.publish([_batch(2000, "b")])
    again.close()
    assert _keys(where) == ["a", "b"]
    assert _path(where).stat().st_size < 80_000
