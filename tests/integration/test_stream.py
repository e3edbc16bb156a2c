"""The edge to the walsender on a real server: session, refusals, positions."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Begin, Change, Commit
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.instant import parse_instant
from cdcwatch.lsn import parse_lsn
from cdcwatch.slot.protocol import XLOG_DATA, XLOG_DATA_HEADER_BYTES, start_lsn
from cdcwatch.slot.stream import PostgresSlot, ReplicationConnection, SlotBusyError
from tests.command import ORDERS
from tests.fakes.table import WATCHED
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.decode.change import Message
    from cdcwatch.local import LocalPostgres
    from cdcwatch.slot.stream import ReplicationStream, SlotFacts
    from tests.services import Database

IN_TIME_S = 30
OPTIONS = Wal2JsonDecoder(WATCHED).options()


class Shop:
    """A database with an orders table and a slot."""

    def __init__(self, dsn: str, slot: str) -> None:
        self.dsn, self.slot = dsn, slot
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(ORDERS)
        self.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [slot])

    def insert(self, *keys: int, connection: psycopg.Connection[Any] | None = None) -> None:
        for key in keys:
            (connection or self.connection).execute(
                "INSERT INTO orders VALUES (%s, 'pending', '2030-01-01 00:00:00.5+00')", [key]
            )

    def one(self, statement: str, *parameters: object) -> Any:
        row = self.connection.execute(statement.encode(), parameters).fetchone()
        assert row is not None
        return row[0]

    @property
    def confirmed_lsn(self) -> int:
        confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        return parse_lsn(self.one(confirmed, self.slot))

    @property
    def current_lsn(self) -> int:
        return parse_lsn(self.one("SELECT pg_current_wal_insert_lsn()::text"))

    @contextmanager
    def stream(self, dsn: str = "") -> Iterator[Reading]:
        facts, stream = PostgresSlot(dsn or self.dsn, self.slot, plugin="wal2json").acquire(OPTIONS)
        with closing(stream):
            yield Reading(facts, stream)


class Reading:
    """A stream, and what came of it."""

    def __init__(self, facts: SlotFacts, stream: ReplicationStream) -> None:
        self.facts, self.stream = facts, stream
        self.decoder = Wal2JsonDecoder(WATCHED)
        self.messages: list[Message] = []
        self.row_lsns: list[int] = []

    def look(self) -> None:
        for message in self.stream.read(1 << 20):
            if message[0] == XLOG_DATA:
                decoded = self.decoder.decode(message[XLOG_DATA_HEADER_BYTES:])
                assert decoded is not None
                self.messages.append(decoded)
                if isinstance(decoded, Change):
                    self.row_lsns.append(start_lsn(message))

    def through(self, lsn: int) -> list[Message]:
        """What had come when the server had sent everything up to there."""

        def received() -> bool:
            self.look()
            # Asked, it says how far it is.
            self.stream.send_status(0, reply_requested=True)
            return self.stream.received_lsn >= lsn

        wait_until(received, IN_TIME_S, "the stream comes")
        return self.messages

    def keys(self) -> list[Any]:
        return [message.key for message in self.messages if isinstance(message, Change)]

    def commits(self) -> list[Commit]:
        """Of the transactions that changed an order."""
        changed = [
            later
            for earlier, later in zip(self.messages, self.messages[1:], strict=False)
            if isinstance(earlier, Change)
        ]
        return [message for message in changed if isinstance(message, Commit)]


@pytest.fixture
def shop(database: Database) -> Iterator[Shop]:
    shop = Shop(database.dsn, f"slot_{database.name}")
    with closing(shop.connection):
        yield shop


@pytest.fixture
def own_shop(own_postgres: LocalPostgres) -> Iterator[Shop]:
    shop = Shop(own_postgres.dsn(), "own_slot")
    with closing(shop.connection):
        yield shop


# -- the session (F3) --------------------------------------------------------------------------------------------------


@pytest.fixture
def foreigner(database: Database) -> Iterator[str]:
    """A role whose sessions write instants in another way."""
    name = f"role_{database.name}"
    with database.connect() as connection:
        role = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(role))
        connection.execute(sql.SQL("ALTER ROLE {} SET DateStyle = 'SQL, DMY'").format(role))
        connection.execute(sql.SQL("ALTER ROLE {} SET TimeZone = 'Asia/Kolkata'").format(role))
        connection.execute(sql.SQL("ALTER ROLE {} SET extra_float_digits = 0").format(role))
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET IntervalStyle = 'iso_8601'").format(sql.Identifier(database.name))
        )
        yield name
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


@pytest.mark.parametrize("options", ["", "-c DateStyle=German -c TimeZone=America/New_York"])
def test_f03_whatever_role_database_and_dsn_say_instants_come_in_iso_and_utc(
    shop: Shop, foreigner: str, options: str
) -> None:
    dsn = make_conninfo(shop.dsn, user=foreigner, **({"options": options} if options else {}))
    with psycopg.connect(dsn) as plain:
        assert plain.execute("SELECT '2030-01-01 00:00:00+00'::timestamptz::text").fetchone() != (
            "2030-01-01 00:00:00+00",
        )
    shop.insert(1)
    with shop.stream(dsn) as reading:
        messages = reading.through(shop.current_lsn)
    (change,) = [message for message in messages if isinstance(message, Change)]
    assert change.new is not None
    assert change.new.deadline_us == parse_instant("2030-01-01 00:00:00.5+00")
    begins = [message for message in messages if isinstance(message, Begin)]
    now_us = shop.one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint") - 946_684_800_000_000
    assert all(0 <= now_us - begin.time_us < 600_000_000 for begin in begins)


@pytest.mark.parametrize("setting", ["DateStyle = German", "TimeZone = 'Asia/Kolkata'", "client_encoding = LATIN1"])
def test_f03_a_session_that_something_unpinned_is_refused(shop: Shop, setting: str) -> None:
    connection = ReplicationConnection(shop.dsn)
    with closing(connection):
        connection._verify_session()
        connection._connection.execute(f"SET {setting}".encode())
        with pytest.raises(PreconditionError, match=setting.partition(" ")[0]) as caught:
            connection._verify_session()
    assert "replication_dsn" in caught.value.remedy


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_c04_a_slot_that_another_reads_names_its_reader(shop: Shop) -> None:
    second = PostgresSlot(make_conninfo(shop.dsn, application_name="standby"), shop.slot, plugin="wal2json")
    with shop.stream() as reading:
        for _ in range(3):
            with pytest.raises(SlotBusyError) as caught:
                second.acquire(OPTIONS)
        holder = caught.value.holder
        assert holder is not None
        assert (holder.pid, holder.application) == (reading.facts.walsender_pid, "cdcwatch")
        assert f"pid {holder.pid} (cdcwatch" in str(caught.value)
        assert "takes over" in caught.value.remedy
        # However often it asks, a standby is one connection.
        assert shop.one("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'standby'") == 1
    facts, stream = wait_until(lambda: _acquired(second), IN_TIME_S, "the standby takes over")
    assert facts.walsender_pid != holder.pid
    stream.close()


def _acquired(slot: PostgresSlot) -> tuple[SlotFacts, ReplicationStream] | None:
    try:
        return slot.acquire(OPTIONS)
    except SlotBusyError:
        return None


def test_a_slot_that_is_missing(database: Database) -> None:
    with pytest.raises(PreconditionError, match="no slot 'nowhere'") as caught:
        PostgresSlot(database.dsn, "nowhere", plugin="wal2json").acquire(OPTIONS)
    assert caught.value.remedy == "cdcwatch slot create; where there was one, cdcwatch recover"


def test_a_slot_of_another_database(shop: Shop) -> None:
    with pytest.raises(PreconditionError, match=f"belongs to the database '{shop.connection.info.dbname}'"):
        PostgresSlot(make_conninfo(shop.dsn, dbname="postgres"), shop.slot, plugin="wal2json").acquire(OPTIONS)


def test_c05_a_slot_that_is_lost(own_postgres: LocalPostgres, own_shop: Shop) -> None:
    own_postgres.settings |= {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    own_postgres.reload()
    wait_until(lambda: own_shop.one("SHOW max_slot_wal_keep_size") == "1MB", IN_TIME_S, "the reload")
    for key in range(6):
        own_shop.insert(key)
        own_shop.one("SELECT pg_switch_wal()::text")
    own_shop.connection.execute("CHECKPOINT")
    with pytest.raises(PreconditionError, match="is lost") as caught:
        PostgresSlot(own_shop.dsn, own_shop.slot, plugin="wal2json").acquire(OPTIONS)
    assert caught.value.remedy.startswith("cdcwatch recover")


def test_a_server_that_goes_away_is_unavailable(own_postgres: LocalPostgres, own_shop: Shop) -> None:
    with own_shop.stream() as reading:
        own_postgres.stop("immediate")
        with pytest.raises(UnavailableError):
            wait_until(reading.look, IN_TIME_S, "the connection breaks")
    with pytest.raises(UnavailableError):
        PostgresSlot(own_shop.dsn, own_shop.slot, plugin="wal2json").acquire(OPTIONS)


# -- positions ---------------------------------------------------------------------------------------------------------


def test_what_the_slots_facts_say(shop: Shop) -> None:
    with shop.stream() as reading:
        facts = reading.facts
        assert facts.system_identifier == str(shop.one("SELECT system_identifier FROM pg_control_system()"))
        assert facts.timeline == 1
        assert (facts.database, facts.plugin) == (shop.connection.info.dbname, "wal2json")
        assert facts.confirmed_flush_lsn == shop.confirmed_lsn == reading.stream.received_lsn
        assert facts.wal_sender_timeout_s == 60
        active = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        assert facts.walsender_pid == shop.one(active, shop.slot)


def test_status_updates_move_the_confirmed_position(shop: Shop) -> None:
    shop.insert(1)
    with shop.stream() as reading:
        reading.through(shop.current_lsn)
        (commit,) = reading.commits()
        before = shop.confirmed_lsn
        assert before < commit.end_lsn
        reading.stream.send_status(commit.end_lsn)
        wait_until(lambda: shop.confirmed_lsn == commit.end_lsn, IN_TIME_S, "the server takes the position")


def test_b02_a_position_beyond_what_came_is_not_told(shop: Shop) -> None:
    """The server would believe it, and skip what commits before it."""
    shop.insert(1)
    with shop.stream() as reading:
        reading.through(shop.current_lsn)
        received_lsn = reading.stream.received_lsn
        reading.stream.send_status(received_lsn + 10**9)
        wait_until(lambda: shop.confirmed_lsn == received_lsn, IN_TIME_S, "the server takes the position")
    shop.insert(2)
    with shop.stream() as reading:
        reading.through(shop.current_lsn)
        assert reading.keys() == [2]


def test_the_last_status_before_the_end_arrives(shop: Shop) -> None:
    for key in range(20):
        shop.insert(key)
        with shop.stream() as reading:
            reading.through(shop.current_lsn)
            assert reading.keys() == [key]
            reading.stream.send_status(reading.commits()[-1].end_lsn)


def test_b03_an_acknowledged_commit_does_not_come_again(shop: Shop) -> None:
    shop.insert(1)
    with shop.stream() as reading:
        reading.through(shop.current_lsn)
        (commit,) = reading.commits()
        reading.stream.send_status(commit.commit_lsn)  # the commit record's beginning is not its end
    with shop.stream() as reading:
        reading.through(shop.current_lsn)
        assert reading.keys() == [1]
        reading.stream.send_status(commit.end_lsn)
    with shop.stream() as reading:
        reading.through(shop.current_lsn)
        assert reading.keys() == []
        assert commit.commit_lsn not in [m.commit_lsn for m in reading.messages if isinstance(m, Begin | Commit)]


def _event_ids(messages: list[Message], covered: Position | None = None) -> list[bytes]:
    derivation = Derivation(DeadlineRule(WATCHED), EventEncoder(WATCHED, system_identifier="7", database="shop"))
    if covered is not None:
        derivation.restart(covered)
    for message in messages:
        derivation.feed(message)
    return [event.value.split(b'"')[7] for event in derivation.drain().events]


def test_b04_rows_share_positions_and_transactions_interleave(shop: Shop) -> None:
    with psycopg.connect(shop.dsn) as long, shop.connection.cursor() as cursor:
        shop.insert(1, 2, connection=long)
        with cursor.copy("COPY orders (id, status, expires_at) FROM STDIN") as copy:
            for key in (11, 12, 13):
                copy.write_row((key, "pending", "2030-01-01 00:00:00+00"))
        shop.insert(3, connection=long)
        long.commit()
        with shop.stream() as reading:
            reading.through(shop.current_lsn)
    assert reading.keys() == [11, 12, 13, 1, 2, 3]
    assert len(set(reading.row_lsns[:3])) == 1  # the rows of one COPY
    assert reading.row_lsns[3] < reading.row_lsns[0]  # and of an earlier row in a later commit
    first, second = reading.commits()
    assert first.end_lsn <= second.commit_lsn
    ids = _event_ids(reading.messages)
    assert len(set(ids)) == 6
    assert [one.rpartition(b"-")[2] for one in ids] == [b"1", b"2", b"3"] * 2
    covered = Position(first.end_lsn, second.commit_lsn, 1)
    assert _event_ids(reading.messages, covered) == ids[4:]


def test_b05_after_a_crash_of_the_server_the_same_changes_have_the_same_ids(
    own_postgres: LocalPostgres, own_shop: Shop
) -> None:
    own_shop.connection.execute("CHECKPOINT")
    own_shop.insert(1, 2)
    with own_shop.connection.transaction():
        own_shop.insert(3, 4)
    through_lsn = own_shop.current_lsn
    with own_shop.stream() as reading:
        before = list(reading.through(through_lsn))
        end_lsn = reading.commits()[-1].end_lsn
        reading.stream.send_status(end_lsn)
        wait_until(lambda: own_shop.confirmed_lsn == end_lsn, IN_TIME_S, "the server takes the position")
    own_postgres.restart("immediate")
    with own_shop.stream() as reading:
        assert reading.facts.confirmed_flush_lsn < end_lsn  # forgotten
        after = list(reading.through(through_lsn))
    assert reading.keys() == [1, 2, 3, 4]
    assert _event_ids(after) == _event_ids(before)
    assert len(set(_event_ids(before))) == 4
    assert _event_ids(after, Position(end_lsn)) == []
