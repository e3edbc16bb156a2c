"""The journal's files where others reach for them: links, a second slot, a lock that is gone, many, one moved by hand."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

import orjson
import pytest

from cdcwatch.deadline.event import Event
from cdcwatch.deadline.position import Position
from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.file import segments
from cdcwatch.handoff.file.sink import FileSink
from cdcwatch.handoff.file.tail import FileTail
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.handoff.sink import Batch, FencedError
from cdcwatch.settings import FileSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _progress(number: int, slot: str = "a") -> Progress:
    return Progress(Origin("7301234567890123456", 1, "shop", slot), Position(0x1000 + number, 0xFFF + number, number))


def _batch(number: int, *keys: str, slot: str = "a") -> Batch:
    events = [
        Event(key.encode(), orjson.dumps({"id": key, "time": "2026-11-30T10:15:00.000000Z", "subject": key}), "")
        for key in keys
    ]
    return Batch(events, _progress(number, slot), range(number, number + 1), 0)


@contextlib.contextmanager
def _writing(path: Path, slot: str = "a", **how: int) -> Iterator[FileSink]:
    sink = FileSink(FileSettings(path=str(path), **how), slot)
    sink.open()
    try:
        yield sink
    finally:
        sink.close()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[FileTail]:
    with contextlib.closing(FileTail(FileSettings(path=str(path)))) as tail:
        yield tail


def _keys(path: Path) -> list[str]:
    with _reading(path) as tail:
        return [(one.key or b"").decode() for one in tail.so_far()]


def _came(tail: FileTail) -> list[str]:
    found = []
    while (record := tail.came(0)) is not None:
        found.append((record.key or b"").decode())
    return found


def test_a_link_is_another_name_of_the_same_journal(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    link.symlink_to(real)  # to what is not there yet
    with _writing(link, rotate_bytes=1) as sink:
        for number in range(1, 4):
            sink.publish([_batch(number, f"k{number}")])
        with _writing(real) as later:
            later.publish([_batch(4, "k4")])
        with pytest.raises(FencedError):
            sink.publish([_batch(4, "twice")])
    assert link.is_symlink()
    assert [one.name for one in tmp_path.iterdir() if one.name != "disk"] == ["link"], "all is where it leads"
    assert _keys(real) == _keys(link) == ["k1", "k2", "k3", "k4"]


def test_without_its_lock_nobody_writes_beside_another(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with _writing(path) as first:
        first.publish([_batch(1, "k1")])
        path.with_name("journal.lock").unlink()
        with _writing(path) as second:
            second.publish([_batch(2, "k2")])
            with pytest.raises(UnavailableError, match=r"journal\.lock was moved or deleted"):
                first.publish([_batch(2, "twice")])
        assert first.open() == _progress(2)
    assert _keys(path) == ["k1", "k2"]


def test_slots_go_on_in_the_file_that_one_of_them_rotated_to(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with _writing(path, "a", rotate_bytes=1) as first, _writing(path, "b", rotate_bytes=1) as second:
        for number in range(1, 4):
            first.publish([_batch(number, f"a{number}")])
            second.publish([_batch(number, f"b{number}", slot="b")])
    assert _keys(path) == ["a1", "b1", "a2", "b2", "a3", "b3"]
    with _writing(path, "b") as second:
        path.rename(tmp_path / "away")
        with pytest.raises(UnavailableError, match="journal was moved or deleted"):
            second.publish([_batch(4, "b4", slot="b")])


def test_a_rotation_that_died_takes_nothing_from_who_wrote_since(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with _writing(path, "a") as first, _writing(path, "b") as second:
        first.publish([_batch(1, "a1")])
        second.publish([_batch(1, "b1", slot="b")])
        path.with_name("journal.new").write_bytes(path.read_bytes())
        path.with_name("journal.000001").hardlink_to(path)
        second.publish([_batch(2, "b2", slot="b")])
    with _writing(path, "a"):
        pass
    assert FileSink(FileSettings(path=str(path)), "b").open() == _progress(2, "b")
    assert _keys(path) == ["a1", "b1", "b2"]
    assert [segments.numbered(path), path.with_name("journal.new").exists()] == [[], False]


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with _writing(path, rotate_bytes=1) as sink:
        for number in range(300):
            sink.publish([_batch(number, f"k{number}")])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 250, hard))  # noqa: PTH208
    try:
        assert _keys(path) == [f"k{number}" for number in range(300)]
        with _reading(path) as tail:
            assert [one.key for one in tail.last(300)][:2] == [b"k0", b"k1"]
            assert [one.key for one in tail.about(b"k3", 1, 1000)] == [b"k3"]
            offsets = [one.offset for one in tail.so_far()]
            assert offsets == sorted(set(offsets))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_follows_a_file_that_was_moved_away_hears_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with _writing(path, rotate_bytes=1) as sink:
        for number in range(1, 4):
            sink.publish([_batch(number, f"k{number}")])
    with _writing(path) as sink, _reading(path) as tail:
        tail.follow()
        sink.publish([_batch(4, "k4")])
        assert _came(tail) == ["k4"]
        path.rename(tmp_path / "away")
        assert sink.open() is None
        sink.publish([_batch(5, "k5")])
        assert _came(tail) + _came(tail) == ["k5"]


def test_who_opens_in_the_middle_of_a_rotation_follows_into_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with _writing(path) as sink:
        sink.publish([_batch(1, "k1")])
    path.with_name("journal.000001").hardlink_to(path)
    with _reading(path) as tail:
        assert [one.key for one in tail.so_far()] == [b"k1"]
        tail.follow()
        path.unlink()
        segments.make(path)
        with _writing(path, rotate_bytes=1) as sink:
            for number in range(2, 5):
                sink.publish([_batch(number, f"k{number}")])
        found = [key for _ in range(5) for key in _came(tail)]
    assert found == ["k2", "k3", "k4"]


def test_following_reads_a_block_once_and_not_for_each_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    with _writing(path) as sink:
        sink.publish([_batch(1, "k1")])
        with _reading(path) as tail:
            tail.follow()
            sink.publish([_batch(2, *(f"n{number}" for number in range(500)))])
            reads: list[int] = []
            pread = os.pread
            monkeypatch.setattr(os, "pread", lambda *asked: reads.append(asked[1]) or pread(*asked))
            assert len(_came(tail)) == 500
    assert len(reads) < 50


def test_a_follower_that_falls_behind_what_is_kept_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "deadlines.jsonl"
    with _writing(path, rotate_bytes=1000, keep_files=1) as sink, _reading(path) as tail:
        tail.follow()
        for number in range(1, 30):
            sink.publish([_batch(number, f"k{number}")])
        found = []
        while (record := tail.came(0)) is not None:
            found.append(record.key)
    assert found[-1] == b"k29"
    assert len(found) < 29
    assert "files were deleted before they were read" in caplog.text
