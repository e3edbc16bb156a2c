"""The judge: knows the ledger of committed transactions, the audit of closes and the topic, and nothing of cdcwatch."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import orjson

from cdcwatch.instant import format_instant
from cdcwatch.lsn import format_lsn
from tests.murmur2 import partition_of
from tests.simulation.server import TRUNCATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.fakes.sink import FakeRecord
    from tests.fakes.table import FakeRow
    from tests.simulation.server import RowChange, Server, Transaction


PARTITIONS = 3


class WrongError(AssertionError):
    """A guarantee was broken."""


class Said(NamedTuple):
    """What the topic says, or must say."""

    id: str
    type: str
    key: int | None
    deadline: str | None


def live_us(row: FakeRow | None) -> int | None:
    """The deadline while it counts."""
    return row.deadline_us if row is not None and row.status == "pending" else None


def said_of(done: Transaction, *, is_full: bool) -> Iterator[Said]:
    """What one transaction must have given."""
    ordinal = 0
    for change in done.changes:
        is_close = change.new is None and change.old_key in done.closing
        for kind, key, deadline_us in _kinds(change, is_full=is_full, is_close=is_close):
            ordinal += 1
            if kind is not None:
                deadline = None if deadline_us is None else format_instant(deadline_us)
                yield Said(f"{format_lsn(done.commit_lsn)}-{ordinal}", f"deadline.{kind}", key, deadline)


def _kinds(
    change: RowChange, *, is_full: bool, is_close: bool = False
) -> Iterator[tuple[str | None, int | None, int | None]]:
    """Kind of event (None: the change is counted and gives none), key and the deadline that the row has afterwards."""
    if change is TRUNCATE:
        yield "cancelled", None, None
        return
    old_key, old, new_key, new = change
    moved = old_key is not None and new_key is not None and old_key != new_key
    was_us, is_known = live_us(old), is_full
    if new is None or moved:
        ended = "expired" if is_close else "cancelled"
        yield (ended if was_us is not None or not is_known else None), old_key, None
        was_us, is_known = None, True
    if new is None:
        return
    now_us = live_us(new)
    if now_us is not None:
        same = is_known and was_us == now_us
        kind = None if same else "moved" if is_known and was_us is not None else "scheduled"
    else:
        gone = "expired" if new.status == "expired" else "cancelled"
        was_none = old is None or moved
        kind = None if was_none or (is_known and was_us is None) else gone
    yield kind, new_key, new.deadline_us


def read_topic(records: Sequence[FakeRecord]) -> list[list[Said]]:
    """Each partition's, in its order; the copies of a table-wide event have one id."""
    partitions: defaultdict[int, list[Said]] = defaultdict(list)
    for record in records:
        event = orjson.loads(record.value)
        key = event["data"]["key"]
        event_id = event["id"].partition("-p")[0] if key is None else event["id"]
        partitions[record.partition].append(
            Said(event_id, event["type"], key and int(key["id"]), event["data"]["deadline"])
        )
    return [partitions[number] for number in range(PARTITIONS)]


def judge_topic(
    server: Server,
    records: Sequence[FakeRecord],
    snapshot: SnapshotTaken | None,
    *,
    before_slot: int,
    is_exact: bool,
) -> None:
    """Each change once and in commit order in its partition; at least once: what comes again is equal."""
    shown = snapshot.xids if snapshot is not None else frozenset()
    wanted = list(_told_by_the_stream(server.log[before_slot:], shown, is_full=server.is_full))
    topic = read_topic(records)
    for number, found in enumerate(topic):
        ids = Counter(said.id for said in found)
        twice = [name for name, times in ids.items() if times > 1]
        if is_exact and twice:
            raise WrongError(f"published twice: {twice[:3]}")
        ours = [said for said in wanted if said.key is None or partition_of(b"%d" % said.key, PARTITIONS) == number]
        first_seen = list(dict.fromkeys(said for said in found if not said.id.startswith("snapshot-")))
        if first_seen != ours:
            missing = [said for said in ours if said not in set(first_seen)]
            extra = [said for said in first_seen if said not in set(ours)]
            raise WrongError(f"missing {missing[:2]}, not wanted {extra[:2]}, or out of order")
    if is_exact:
        _judge_snapshot([said for found in topic for said in found], snapshot)
    _judge_last_state(server, topic)


def _told_by_the_stream(log: Sequence[Transaction], shown: frozenset[int], *, is_full: bool) -> Iterator[Said]:
    """What the read has not shown; of what it has, what comes from the first close on."""
    skips = True
    for done in log:
        for said in said_of(done, is_full=is_full):
            if done.xid not in shown:
                yield said
                continue
            skips = skips and said.type != "deadline.expired"
            if not skips:
                yield said


def _judge_snapshot(found: Sequence[Said], snapshot: SnapshotTaken | None) -> None:
    said = {one.key: one.deadline for one in found if one.id.startswith("snapshot-")}
    wanted = snapshot.open_deadlines if snapshot is not None else {}
    if said != wanted:
        raise WrongError(f"the snapshot's events are {said}, and the open orders were {wanted}")


def _judge_last_state(server: Server, topic: Sequence[Sequence[Said]]) -> None:
    """Whoever applies a partition's events in order ends with what the table says of its keys."""
    state: defaultdict[int | None, str | None] = defaultdict(lambda: None)
    for found in topic:
        partition: dict[int | None, str | None] = {}
        for one in found:
            if one.key is None:
                partition.clear()
                continue
            partition[one.key] = one.deadline if one.type in {"deadline.scheduled", "deadline.moved"} else None
        state.update(partition)
    for key in {*server.rows, *state}:
        us = live_us(server.rows.get(key))  # type: ignore[call-overload]
        if state[key] != (None if us is None else format_instant(us)):
            raise WrongError(f"order {key} ends as {state[key]} in the topic, in the table as {us}")


class SnapshotTaken(NamedTuple):
    """What the read of the table showed."""

    xids: frozenset[int]
    open_deadlines: dict[int, str]


def judge_closes(server: Server) -> None:
    """Each found the order open, due and as it was claimed to be."""
    for key, was, claimed, now_us in server.closures:
        if was.status != "pending" or was.deadline_us is None:
            raise WrongError(f"order {key} was closed as {was}")
        if was.deadline_us > now_us:
            raise WrongError(f"order {key} was closed {was.deadline_us - now_us} us early")
        if was.version != claimed.version:
            raise WrongError(f"order {key} was closed at version {was.version}, known as {claimed.version}")


def judge_nothing_due(server: Server) -> None:
    """Nothing that is due is left open."""
    left = [
        key for key, row in server.rows.items() if (live := live_us(row)) is not None and live <= server.database.now_us
    ]
    if left:
        raise WrongError(f"left open though due: {left[:5]}")


class ConfirmationJudge:
    """Nothing is confirmed of which an event is missing in the topic."""

    def __init__(self, server: Server, records: Sequence[FakeRecord]) -> None:
        self._server, self._records = server, records
        self._read = 0
        self._ids: set[str] = set()
        self._judged = 0
        self.shown: frozenset[int] = frozenset()

    def skip_to(self, count: int) -> None:
        """So many transactions came before the slot."""
        self._judged = count

    def __call__(self, flush_lsn: int) -> None:
        """WrongError when a transaction before `flush_lsn` lacks an event."""
        for record in self._records[self._read :]:
            self._ids.add(orjson.loads(record.value)["id"].partition("-p")[0])
        self._read = len(self._records)
        log = self._server.log
        if flush_lsn > self._server.lsn:
            raise WrongError("confirmed beyond the end of the WAL")
        while self._judged < len(log) and log[self._judged].end_lsn <= flush_lsn:
            done = log[self._judged]
            for said in said_of(done, is_full=self._server.is_full):
                if said.id not in self._ids and done.xid not in self.shown:
                    raise WrongError(f"confirmed through {format_lsn(flush_lsn)} without {said}")
            self._judged += 1
