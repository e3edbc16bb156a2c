"""The same statements through wal2json and pgoutput: equal messages, equal events, and what the table itself says.

The sessions that write and close have settings which change how values are written (F3); none of it may show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest

from cdcwatch.close.clock import SystemClock
from cdcwatch.close.update import PostgresTable
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.deadline.schedule import Due
from cdcwatch.decode.change import Begin, Change, Commit, Unreadable
from cdcwatch.errors import DecodeError
from cdcwatch.inspection.order import _read as read_order
from cdcwatch.instant import DAY_US, INFINITY_US, LAST_US, NEGATIVE_INFINITY_US, parse_instant
from cdcwatch.table import key_texts
from tests import services
from tests.streams import Streams, kinds_and_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Postgres
    from tests.streams import Watched

PAST = "2020-01-01 00:00:00+00"


@pytest.fixture(scope="module")
def streams(postgres: Postgres) -> Iterator[Streams]:
    with services.fresh_database(postgres) as database:
        streams = Streams(database)
        streams.connection.execute(
            "CREATE TYPE size AS ENUM ('small', 'it''s \"big\"');"
            "CREATE DOMAIN whole AS bigint CHECK (value > -10); CREATE DOMAIN wider AS whole; CREATE DOMAIN word AS text;"
            "CREATE DOMAIN amount AS numeric(20, 2); CREATE DOMAIN yes AS boolean; CREATE DOMAIN code AS char(5);"
            "CREATE DOMAIN day AS date; CREATE DOMAIN moment AS timestamptz; CREATE DOMAIN bytes AS bytea"
        )
        yield streams
        streams.close()


@pytest.fixture(autouse=True)
def _schema(request: pytest.FixtureRequest, streams: Streams) -> Iterator[None]:
    """A schema of the test's own."""
    streams.connection.execute("CREATE SCHEMA case_; SET search_path = case_, public")
    yield
    streams.connection.execute("DROP SCHEMA case_ CASCADE; RESET search_path")
    for (name,) in streams.connection.execute("SELECT pubname FROM pg_publication").fetchall():
        streams.connection.execute(f'DROP PUBLICATION "{name}"')  # type: ignore[call-overload]


def _run(streams: Streams, statements: list[str]) -> None:
    for statement in statements:
        streams.connection.execute(statement)  # type: ignore[call-overload]


def _assert_table_agrees(streams: Streams, watched: Watched) -> None:
    """What the stream told is what the window, `explain` and the close find."""
    rows = watched.follow([])
    assert watched.in_table() == rows
    connection = streams.connection
    table = watched.table
    for key, row in rows.items():
        texts = key_texts(key, len(table.key))
        written, order = read_order(connection, table, texts)
        assert written == texts
        assert order is not None
        assert (order.deadline_us, order.version) == (row.deadline_us, row.version)
    live_us = DeadlineRule(table).live_us
    due = {key: us for key, row in rows.items() if (us := live_us(row)) is not None}
    closing = PostgresTable(streams.dsn, table, SystemClock())
    closing.connect()
    try:
        now_us = closing.sample_clock(1)[0].database_us
        through_us = LAST_US - 2 * DAY_US if table.zone else LAST_US
        loaded = [one for chunk in closing.open_deadlines(None, through_us) for one in chunk]
        assert {one.key: one.deadline_us for one in loaded} == {key: us for key, us in due.items() if us <= through_us}
        report = closing.close([Due(key, us, rows[key].version or 0) for key, us in due.items()])
        assert {one.key for one in report.closed} == {key for key, us in due.items() if us <= now_us}
    finally:
        closing.disconnect()
    watched.follow(watched.read())
    assert watched.in_table() == watched.follow([])


# ---- Keys: each with three values as SQL writes them, and the text that they have inside cdcwatch.

KEYS = [
    ("bigint", ["9223372036854775807", "-9223372036854775808", "9007199254740993"], None),
    ("integer", ["2147483647", "-2147483648", "0"], None),
    ("smallint", ["32767", "-32768", "7"], None),
    ("whole", ["9007199254740993", "-9", "7"], None),
    ("wider", ["9223372036854775807", "-9", "0"], None),
    ("oid", ["4294967295", "0", "7"], None),
    (
        "uuid",
        ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'{a0eebc999c0b4ef8bb6d6bb9bd380a12}'", "'A0EEBC999C0B4EF8BB6D6BB9BD380A13'"],
        ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a13"],
    ),
    ("text", ["''", "'  é😀 '", "E'\\u2028\\u2029\\x7f'"], ["", "  é😀 ", "\u2028\u2029\x7f"]),
    ("text", ["""'"a"'""", """E'\\\\},{"name":"status"'""", """'["a","b"]'"""], ['"a"', '\\},{"name":"status"', '["a","b"]']),
    ("text", ["E'\\x01\\t\\r\\n\\x0b'", "'null'", "'%s %(a)s {}'"], ["\x01\t\r\n\x0b", "null", "%s %(a)s {}"]),
    ("word", ["'1.10'", "' '", "'true'"], ["1.10", " ", "true"]),
    ("character varying(20)", ["'a '", "'a'", "''"], ["a ", "a", ""]),
    ("name", ["'A'", "'a b'", "''"], ["A", "a b", ""]),
    ("char(5)", ["'ab'", "''", "'abcde'"], ["ab   ", "     ", "abcde"]),
    ("code", ["'ab'", "''", "'abcde'"], ["ab   ", "     ", "abcde"]),
    ("bpchar", ["'ab'", "''", "'a c'"], ["ab", "", "a c"]),
    ('"char"', ["'a'", "'\"'", "'z'"], ["a", '"', "z"]),
    ("numeric", ["1.10", "123456789012345678901234567890", "-0.0000000000000000000001"], None),
    ("numeric", ["12345678901234567890.123456789", "0.00", "1e30"], ["12345678901234567890.123456789", "0.00", "1" + "0" * 30]),
    ("numeric(12,2)", ["1.1", "-9999999999.99", "0"], ["1.10", "-9999999999.99", "0.00"]),
    ("amount", ["1.1", "100", "0"], ["1.10", "100.00", "0.00"]),
    ("real", ["'0.1'", "'1e30'", "-1.5"], ["0.1", "1e+30", "-1.5"]),
    ("double precision", ["0.1", "1e300", "0.30000000000000004"], ["0.1", "1e+300", "0.30000000000000004"]),
    ("boolean", ["true", "false", None], ["true", "false"]),
    ("yes", ["true", "false", None], ["true", "false"]),
    ("size", ["'small'", "'it''s \"big\"'", None], ["small", "it's \"big\""]),
    ("date", ["'2026-03-08'", "'0044-03-15 BC'", "'infinity'"], ["2026-03-08", "0044-03-15 BC", "infinity"]),
    ("day", ["'2026-03-08'", "'5874897-12-31'", "'-infinity'"], ["2026-03-08", "5874897-12-31", "-infinity"]),
    (
        "timestamptz",
        ["'2026-03-08 08:00:00.5-04'", "'0044-03-15 10:00:00.25+00 BC'", "'infinity'"],
        ["2026-03-08 12:00:00.5+00", "0044-03-15 10:00:00.25+00 BC", "infinity"],
    ),
    (
        "timestamptz(3)",
        ["'294276-12-31 23:59:59.999+00'", "'4714-11-24 00:00:00+00 BC'", "'-infinity'"],
        ["294276-12-31 23:59:59.999+00", "4714-11-24 00:00:00+00 BC", "-infinity"],
    ),
    ("moment", ["'2026-03-08 08:00-04'", "'0044-03-15 10:00:00+00 BC'", "'infinity'"], ["2026-03-08 12:00:00+00", "0044-03-15 10:00:00+00 BC", "infinity"]),
    ("timestamp", ["'2026-03-08 08:00:00.5'", "'0044-03-15 10:00:00 BC'", "'-infinity'"], ["2026-03-08 08:00:00.5", "0044-03-15 10:00:00 BC", "-infinity"]),
    ("time", ["'08:00:00.5'", "'24:00'", "'00:00'"], ["08:00:00.5", "24:00:00", "00:00:00"]),
    ("inet", ["'10.0.0.1/8'", "'::1'", "'10.0.0.1'"], ["10.0.0.1/8", "::1", "10.0.0.1"]),
    ("bytea", ["'\\x00ff'", "''", "'abc'"], ["\\x00ff", "\\x", "\\x616263"]),
    ("bytes", ["'\\x00ff'", "''", "'abc'"], ["\\x00ff", "\\x", "\\x616263"]),
]  # fmt: skip


@pytest.mark.parametrize("identity", ["default", "full"])
@pytest.mark.parametrize(
    ("kind", "values", "texts"), KEYS, ids=[f"{place}-{kind}" for place, (kind, *_) in enumerate(KEYS)]
)
def test_e01_e02_e03_keys_of_every_type(
    streams: Streams, kind: str, values: list[str], texts: list[str] | None, identity: str
) -> None:
    _run(
        streams,
        [
            f"CREATE TABLE orders (note text, id {kind} PRIMARY KEY, status text, expires_at timestamptz, version int)",
            f"ALTER TABLE orders REPLICA IDENTITY {identity}",
        ],
    )
    watched = streams.watch("case_.orders")
    a, b, c = values
    rows = ", ".join(f"('n', {value}, 'pending', '{PAST}', 0)" for value in (a, b))
    statements = [
        f"INSERT INTO orders VALUES {rows}",
        f"UPDATE orders SET status = 'paid', version = version + 1 WHERE id = {a}",
        *([f"UPDATE orders SET id = {c}, status = 'pending' WHERE id = {a}"] if c else []),
        f"DELETE FROM orders WHERE id = {b}",
        f"INSERT INTO orders VALUES ('n', {b}, 'pending', '{PAST}', 7)",
    ]
    _run(streams, statements)
    messages = watched.read()
    ka, kb, *more = texts or values
    moved = ["-", f"update {ka}->{more[0]}"] if more and c else []
    assert kinds_and_keys(messages) == [
        f"insert {ka}", f"insert {kb}", "-", f"update {ka}", *moved, "-", f"delete {kb}", "-", f"insert {kb}",
    ]  # fmt: skip
    watched.follow(messages)
    _assert_table_agrees(streams, watched)


def test_e03_a_key_of_several_columns(streams: Streams) -> None:
    _run(
        streams,
        [
            "CREATE TABLE orders (amount numeric, id uuid, region char(5), note text, status text, expires_at timestamptz,"
            " version int, at timestamptz, raw bytea, PRIMARY KEY (id, region, note, amount, at, raw))"
        ],
    )
    watched = streams.watch("case_.orders")
    one = "1.10, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'eu', {note}, 'pending', '2020-01-01', 0, '2026-03-08 08:00-04', 'a'"
    notes = ["''", "'a\",\"b'", "E'\\u2028\\x01\\n'", "'][\"'", "'é😀'"]
    _run(
        streams,
        [
            *(f"INSERT INTO orders VALUES ({one.format(note=note)})" for note in notes),
            "UPDATE orders SET status = 'paid' WHERE note = ''",
            "UPDATE orders SET amount = 1.1000 WHERE note = 'é😀'",  # an equal number with another text
            "UPDATE orders SET region = 'us', raw = '\\x00' WHERE note = '][\"'",
            "DELETE FROM orders WHERE note = 'a\",\"b'",
        ],
    )
    messages = watched.read()
    changes = [message for message in messages if isinstance(message, Change)]
    assert (
        changes[0].key
        == '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","eu   ","","1.10","2026-03-08 12:00:00+00","\\\\x61"]'
    )
    assert [change.old_key is not None for change in changes[5:]] == [False, True, True, False]
    watched.follow(messages)
    _assert_table_agrees(streams, watched)


@pytest.mark.parametrize("kind", ["numeric", "double precision"])
def test_g01_a_key_that_json_cannot_write(streams: Streams, kind: str) -> None:
    """pgoutput has it; wal2json's null is a dead letter rather than another order's name."""
    _run(streams, [f"CREATE TABLE orders (id {kind} PRIMARY KEY, status text, expires_at timestamptz, version int)"])
    watched = streams.watch("case_.orders")
    _run(streams, [f"INSERT INTO orders VALUES ('NaN', 'pending', '{PAST}', 0), ('Infinity', 'pending', '{PAST}', 0)"])
    publication = watched.settings.slot.publication
    messages = streams.read("pgoutput", watched.table, publication)
    assert kinds_and_keys(messages) == ["insert NaN", "insert Infinity"]
    told = [one for one in streams.read("wal2json", watched.table, publication) if isinstance(one, Unreadable)]
    assert [one.reason for one in told] == ["key can't be understood"] * 2


# ---- Statements, on one table, under every replica identity.

SHOP = """
CREATE TABLE other (id int);
CREATE TABLE orders (note text DEFAULT 'x', status text {null}, id bigint PRIMARY KEY, expires_at timestamptz {null},
    price numeric, ratio float8, raw bytea, tags int[], doc jsonb, version int NOT NULL DEFAULT 0);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
INSERT INTO orders (id, status, expires_at, note)
    SELECT n, 'pending', timestamptz '2020-01-01 00:00+00' + n * interval '1 s', repeat('x', 5000)
      FROM generate_series(1, 5) AS n
"""


class Case(NamedTuple):
    name: str
    statements: list[str]
    told: list[str]
    """As `kinds_and_keys` has it."""
    needs_null: bool = False
    before: str = ""
    """DDL that comes before the table is watched."""


DUE = "'2020-01-01'"
CASES = [
    Case("the key changes", ["UPDATE orders SET id = id + 10 WHERE id < 3"], ["update 1->11", "update 2->12"]),
    Case("keys change places", ["BEGIN; UPDATE orders SET id = 0 WHERE id = 1; UPDATE orders SET id = 1 WHERE id = 2;"
         " UPDATE orders SET id = 2 WHERE id = 0; COMMIT"], ["update 1->0", "update 2->1", "update 0->2"]),
    Case("an order is deleted and made again in one transaction",
         [f"BEGIN; DELETE FROM orders WHERE id = 1; INSERT INTO orders (id, status, expires_at) VALUES (1, 'pending', {DUE}); COMMIT"],
         ["delete 1", "insert 1"]),
    Case("an id comes again", ["DELETE FROM orders WHERE id = 1", f"INSERT INTO orders (id, status, expires_at) VALUES (1, 'pending', {DUE})",
         "UPDATE orders SET status = 'paid' WHERE id = 1"], ["delete 1", "-", "insert 1", "-", "update 1"]),
    Case("several moves in one transaction",
         ["BEGIN; UPDATE orders SET expires_at = '2021-01-01' WHERE id = 1; UPDATE orders SET expires_at = '2022-01-01' WHERE id = 1;"
          " UPDATE orders SET expires_at = '2020-01-01', version = version + 1 WHERE id = 1; COMMIT"], ["update 1"] * 3),
    Case("an update of nothing", ["UPDATE orders SET id = id, status = status WHERE id = 1"], ["update 1"]),
    Case("an update that touches nothing watched", ["UPDATE orders SET price = 1, note = 'y' WHERE id = 1"], ["update 1"]),
    Case("a column is NULL", ["INSERT INTO orders (id) VALUES (7)", "UPDATE orders SET status = NULL WHERE id = 1",
         "UPDATE orders SET expires_at = NULL WHERE id = 1", f"UPDATE orders SET expires_at = {DUE}, status = 'pending' WHERE id = 1",
         "DELETE FROM orders WHERE id = 7"], ["insert 7", "-", "update 1", "-", "update 1", "-", "update 1", "-", "delete 7"], needs_null=True),
    Case("a version is NULL", ["UPDATE orders SET version = NULL WHERE id = 1"], ["update 1"],
         before="ALTER TABLE orders ALTER version DROP NOT NULL"),
    Case("infinities", ["UPDATE orders SET expires_at = 'infinity' WHERE id = 1", "UPDATE orders SET expires_at = '-infinity' WHERE id < 3",
         "UPDATE orders SET expires_at = 'infinity'  WHERE id = 2"], ["update 1", "-", "update 2", "update 1", "-", "update 2"]),
    Case("centuries", ["UPDATE orders SET expires_at = '0044-03-15 10:00:00.123456+00 BC' WHERE id = 1",
         "UPDATE orders SET expires_at = '294276-12-31 23:59:59.999999+00' WHERE id = 2",
         "UPDATE orders SET expires_at = '4714-11-24 00:00:00+00 BC' WHERE id = 3",
         "UPDATE orders SET expires_at = '10000-01-01 00:00:00.000001+00' WHERE id = 4"],
         ["update 1", "-", "update 2", "-", "update 3", "-", "update 4"]),
    Case("offsets of every form", [f"UPDATE orders SET expires_at = '2026-03-08 01:30:00{offset}' WHERE id = 1" for offset in
         ("-04", "-05", "+05:30", "+0530", "Z", " America/New_York", "+00:19:32", ".5-12", ".000001+14")], ["update 1", "-"] * 8 + ["update 1"]),
    Case("a trigger sets the deadline", ["INSERT INTO orders (id, status, expires_at) VALUES (7, 'pending', '2050-01-01')",
         "UPDATE orders SET status = 'pending' WHERE id = 1"], ["insert 7", "-", "update 1"],
         before="CREATE FUNCTION soon() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.expires_at := '2020-02-02'; RETURN NEW; END $$;"
                " CREATE TRIGGER soon BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION soon()"),
    Case("a default sets the deadline", ["INSERT INTO orders (id) VALUES (7)"], ["insert 7"],
         before="ALTER TABLE orders ALTER expires_at SET DEFAULT '2020-02-02', ALTER status SET DEFAULT 'pending'"),
    Case("a column is added with a default", ["ALTER TABLE orders ADD more text DEFAULT 'm' NOT NULL", "UPDATE orders SET status = 'paid' WHERE id = 1",
         "ALTER TABLE orders DROP COLUMN note", "UPDATE orders SET status = 'pending' WHERE id = 1"], ["update 1", "-", "update 1"]),
    Case("an unchanged TOASTed value", ["UPDATE orders SET status = 'paid' WHERE id = 1", "UPDATE orders SET id = 11 WHERE id = 2",
         "UPDATE orders SET expires_at = '2021-01-01', version = 1 WHERE id = 3", "DELETE FROM orders WHERE id = 4"],
         ["update 1", "-", "update 2->11", "-", "update 3", "-", "delete 4"]),
    Case("numbers that JSON has not", ["INSERT INTO orders (id, status, expires_at, price, ratio) VALUES"
         f" (7, 'pending', {DUE}, 'NaN', 'NaN'), (8, 'pending', {DUE}, 'Infinity', '-Infinity')", "UPDATE orders SET status = 'paid' WHERE id > 6",
         "DELETE FROM orders WHERE id > 6"], ["insert 7", "insert 8", "-", "update 7", "update 8", "-", "delete 7", "delete 8"]),
    Case("bytes, arrays, documents", ["INSERT INTO orders (id, status, expires_at, raw, tags, doc, price) VALUES"
         f" (7, 'pending', {DUE}, '\\x00ff22', '{{1,NULL}}', '{{\"a\": 1e400, \"b\": [\"\\u2028\"]}}', 1e400)", "UPDATE orders SET doc = doc || '{\"c\": 1}' WHERE id = 7",
         "UPDATE orders SET status = 'paid' WHERE id = 7"], ["insert 7", "-", "update 7", "-", "update 7"]),
    Case("rows of two megabytes", [f"INSERT INTO orders (id, status, expires_at, note, doc) VALUES (7, 'pending', {DUE}, repeat('é', 1000000),"
         " to_jsonb(repeat('\"', 1000000)))", "UPDATE orders SET status = 'paid' WHERE id = 7", "UPDATE orders SET note = repeat('\\', 2000000) WHERE id = 7"],
         ["insert 7", "-", "update 7", "-", "update 7"]),
    Case("MERGE", [f"MERGE INTO orders USING (VALUES (1, 'a'), (2, 'b'), (9, 'c')) AS s (id, what) ON orders.id = s.id"
         " WHEN MATCHED AND what = 'a' THEN DELETE WHEN MATCHED THEN UPDATE SET status = 'paid'"
         f" WHEN NOT MATCHED THEN INSERT (id, status, expires_at) VALUES (s.id, 'pending', {DUE})"], ["delete 1", "update 2", "insert 9"]),
    Case("ON CONFLICT", [f"INSERT INTO orders (id, status, expires_at) VALUES (1, 'pending', {DUE}), (9, 'pending', {DUE})"
         " ON CONFLICT (id) DO UPDATE SET version = orders.version + 1, expires_at = '2021-01-01'",
         f"INSERT INTO orders (id, status, expires_at) VALUES (1, 'pending', {DUE}) ON CONFLICT DO NOTHING"], ["update 1", "insert 9"]),
    Case("savepoints", ["BEGIN; UPDATE orders SET status = 'paid' WHERE id = 1; SAVEPOINT a; UPDATE orders SET id = 99 WHERE id = 2;"
         " ROLLBACK TO a; SAVEPOINT b; UPDATE orders SET status = 'paid' WHERE id = 3; RELEASE b; COMMIT",
         "BEGIN; DELETE FROM orders; ROLLBACK"], ["update 1", "update 3"]),
    Case("logical messages", ["BEGIN; SELECT pg_logical_emit_message(true, 'cdcwatch', '{\"action\":\"D\"}'); UPDATE orders SET status = 'paid' WHERE id = 1;"
         " SELECT pg_logical_emit_message(false, 'cdcwatch', 'x'); SELECT pg_logical_emit_message(true, 'p', '\\x00ff'::bytea); COMMIT",
         "SELECT pg_logical_emit_message(true, 'p', 'alone')", "SELECT pg_logical_emit_message(false, 'p', 'alone')"], ["update 1"]),
    Case("TRUNCATE", ["TRUNCATE orders", f"BEGIN; INSERT INTO orders (id, status, expires_at) VALUES (1, 'pending', {DUE}); TRUNCATE orders, other;"
         f" INSERT INTO orders (id, status, expires_at) VALUES (2, 'pending', {DUE}); COMMIT", "TRUNCATE other"],
         ["truncate", "-", "insert 1", "truncate", "insert 2"]),
    Case("TRUNCATE by a foreign key", ["TRUNCATE owner CASCADE"], ["truncate"],
         before="CREATE TABLE owner (id int PRIMARY KEY); ALTER TABLE orders ADD owner int REFERENCES owner"),
    Case("a foreign key's cascade", ["DELETE FROM owner"], ["delete 1"],
         before="CREATE TABLE owner (id int PRIMARY KEY); INSERT INTO owner VALUES (1); ALTER TABLE orders ADD owner int"
                " REFERENCES owner ON DELETE CASCADE; UPDATE orders SET owner = 1 WHERE id = 1"),
    Case("others' changes", ["INSERT INTO other VALUES (1)", "BEGIN; INSERT INTO other VALUES (2); UPDATE orders SET status = 'paid' WHERE id = 1;"
         " DELETE FROM other; COMMIT", "CREATE TEMPORARY TABLE orders (id int); INSERT INTO pg_temp.orders VALUES (1); DROP TABLE pg_temp.orders"], ["update 1"]),
    Case("writes that no trigger sees", ["SET session_replication_role = replica; UPDATE orders SET status = 'paid' WHERE id = 1;"
         " SET session_replication_role = origin"], ["update 1"]),
]  # fmt: skip
IDENTITIES = {
    "default": "ALTER TABLE orders REPLICA IDENTITY DEFAULT",
    "full": "ALTER TABLE orders REPLICA IDENTITY FULL",
    "index": "CREATE UNIQUE INDEX known ON orders (status, expires_at, id); ALTER TABLE orders REPLICA IDENTITY USING INDEX known",
    "index with version": "CREATE UNIQUE INDEX known ON orders (status, version, expires_at, id);"
    " ALTER TABLE orders REPLICA IDENTITY USING INDEX known",
}
_COMBINED = [
    (case, identity)
    for case in CASES
    for identity in IDENTITIES
    if not (case.needs_null and "index" in identity) and not ("DROP NOT NULL" in case.before and "version" in identity)
]


@pytest.mark.parametrize(
    ("case", "identity"), _COMBINED, ids=[f"{case.name}, {identity}" for case, identity in _COMBINED]
)
def test_statements_mean_the_same_from_both_plugins(streams: Streams, case: Case, identity: str) -> None:
    null = "" if case.needs_null else "NOT NULL"
    _run(streams, [SHOP.format(null=null), case.before or "SELECT", IDENTITIES[identity]])
    watched = streams.watch("case_.orders")
    watched._rows = dict(watched.in_table())
    _run(streams, case.statements)
    messages = watched.read()
    assert kinds_and_keys(messages) == case.told
    watched.follow(messages)
    _assert_old_rows_are_known(messages, known=identity != "default")
    _assert_table_agrees(streams, watched)


def _assert_old_rows_are_known(messages: list[object], *, known: bool) -> None:
    changes = [message for message in messages if isinstance(message, Change) and message.kind != "insert"]
    assert all((change.old is not None) == known for change in changes)


def test_copy_in_one_transaction(streams: Streams) -> None:
    _run(streams, [SHOP.format(null="NOT NULL")])
    watched = streams.watch("case_.orders")
    watched._rows = dict(watched.in_table())
    with streams.connection.cursor().copy("COPY orders (id, status, expires_at) FROM STDIN") as copy:
        for key in range(100, 400):
            copy.write_row((key, "pending", "2020-01-01 00:00:00.5+00"))
    messages = watched.read()
    assert kinds_and_keys(messages) == [f"insert {key}" for key in range(100, 400)]
    watched.follow(messages)
    _assert_table_agrees(streams, watched)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_g02_a_toasted_text_key_that_does_not_change(streams: Streams, identity: str) -> None:
    _run(
        streams,
        [
            "CREATE TABLE orders (id text PRIMARY KEY, status text, expires_at timestamptz, version int, note text)",
            "ALTER TABLE orders ALTER id SET STORAGE EXTERNAL, ALTER note SET STORAGE EXTERNAL",
            f"ALTER TABLE orders REPLICA IDENTITY {identity}",
        ],
    )
    watched = streams.watch("case_.orders")
    _run(
        streams,
        [
            f"INSERT INTO orders VALUES (repeat('k', 2500), 'pending', '{PAST}', 0, repeat('n', 9000))",
            "UPDATE orders SET status = 'paid'",
            "UPDATE orders SET status = 'pending', version = 1",
            "UPDATE orders SET id = repeat('m', 2500)",
            "DELETE FROM orders",
        ],
    )
    messages = watched.read()
    old, new = "k" * 2500, "m" * 2500
    assert kinds_and_keys(messages) == [
        f"insert {old}", "-", f"update {old}", "-", f"update {old}", "-", f"update {old}->{new}", "-", f"delete {new}",
    ]  # fmt: skip
    assert watched.follow(messages) == {}


@pytest.mark.parametrize(
    "kind", ["text", "character varying(9)", "char(9)", "code", "size", "word", "boolean", "integer", "yes", "numeric"]
)
def test_statuses_of_every_type(streams: Streams, kind: str) -> None:
    words = {
        "size": ("small", 'it\'s "big"'),
        "boolean": ("true", "false"),
        "yes": ("true", "false"),
        "integer": ("1", "2"),
        "numeric": ("1.10", "2.20"),
        "code": ("new", "old"),
    }
    opened, ended = words.get(kind, ("pending", "paid"))
    _run(streams, [f"CREATE TABLE orders (id int PRIMARY KEY, status {kind}, expires_at timestamptz, version int)"])
    watched = streams.watch("case_.orders", open=(opened,))
    quoted = [word.replace("'", "''") for word in (opened, ended)]
    _run(
        streams,
        [
            f"INSERT INTO orders VALUES (1, '{quoted[0]}', '2040-01-01', 0), (2, '{quoted[1]}', '2040-01-01', 0), (3, NULL, '2040-01-01', 0)",
            f"UPDATE orders SET status = '{quoted[1]}' WHERE id = 1",
            f"UPDATE orders SET status = '{quoted[0]}' WHERE id = 2",
        ],
    )
    messages = watched.read()
    statuses = [message.new.status for message in messages if isinstance(message, Change) and message.new]
    assert statuses == [opened, ended, None, ended, opened]
    watched.follow(messages)
    assert watched.in_table() == watched.follow([])


def test_f05_both_tell_the_servers_commit_time(streams: Streams) -> None:
    _run(streams, ["CREATE TABLE orders (id int PRIMARY KEY, status text, expires_at timestamptz, version int)"])
    watched = streams.watch("case_.orders")
    ((before_us,),) = streams.connection.execute("SELECT clock_timestamp()", binary=True).fetchall()
    with streams.connection.transaction():
        _run(streams, ["INSERT INTO orders VALUES (1, 'pending', 'infinity', 0)"])
        ((xid,),) = streams.connection.execute("SELECT pg_current_xact_id()::text::int8 % (2^32)::int8").fetchall()
    ((after_us,),) = streams.connection.execute("SELECT clock_timestamp()", binary=True).fetchall()
    begun, change, committed = watched.read()
    assert isinstance(begun, Begin)
    assert isinstance(change, Change)
    assert isinstance(committed, Commit)
    assert before_us <= begun.time_us <= after_us
    assert (begun.xid, begun.commit_lsn) == (xid, committed.commit_lsn)
    assert committed.end_lsn > committed.commit_lsn


ZONED = [("timestamp", "Europe/Amsterdam"), ("timestamp(0)", "America/Sao_Paulo"), ("date", "Pacific/Apia")]


@pytest.mark.parametrize("identity", ["default", "full"])
@pytest.mark.parametrize(("kind", "zone"), ZONED, ids=[kind for kind, _ in ZONED])
def test_f07_deadlines_without_time_zone(streams: Streams, kind: str, zone: str, identity: str) -> None:
    _run(
        streams,
        [
            f"CREATE TABLE orders (id int PRIMARY KEY, status text, expires_at {kind}, version int)",
            f"ALTER TABLE orders REPLICA IDENTITY {identity}",
        ],
    )
    watched = streams.watch("case_.orders", time_zone=zone)
    moments = [
        "2026-03-29 02:30", "2026-10-25 02:30", "2018-11-04 00:30", "2011-12-30 12:00", "1880-01-01", "infinity",
        "-infinity", "0044-03-15 10:00 BC", "4714-11-24 BC", "294276-12-31", "294276-12-30", "9999-12-31 23:59", "10000-01-01",
    ]  # fmt: skip
    _run(
        streams,
        [
            "INSERT INTO orders SELECT place, 'pending', moment::timestamp, 0 FROM unnest(ARRAY["
            + ", ".join(f"'{moment}'" for moment in moments)
            + "]) WITH ORDINALITY AS moments (moment, place)",
            "INSERT INTO orders VALUES (0, 'pending', NULL, 0)",
            "UPDATE orders SET expires_at = '2030-07-01' WHERE id < 3",
            "DELETE FROM orders WHERE id = 1",
        ],
    )
    messages = watched.read()
    inserted = [
        message.new.deadline_us
        for message in messages
        if isinstance(message, Change) and message.kind == "insert" and message.new
    ]
    assert inserted[5:7] == [INFINITY_US, NEGATIVE_INFINITY_US]
    assert inserted[-1] is None
    if kind == "timestamp":
        assert inserted[:2] == [parse_instant("2026-03-29 01:30:00+00"), parse_instant("2026-10-25 01:30:00+00")]
    watched.follow(messages)
    _assert_table_agrees(streams, watched)


def test_two_phase_transactions() -> None:
    """Told when they are committed, by the place and time of that."""
    with (
        services.scratch_directory() as directory,
        services.LocalPostgres(
            directory / "postgres", fsync=False, settings={"max_prepared_transactions": "5"}
        ) as server,
        services.fresh_database(server) as database,
    ):
        streams = Streams(database)
        try:
            _run(streams, ["CREATE SCHEMA case_; SET search_path = case_", SHOP.format(null="NOT NULL")])
            watched = streams.watch("case_.orders")
            watched._rows = dict(watched.in_table())
            _run(
                streams,
                [
                    "BEGIN; UPDATE orders SET status = 'paid' WHERE id = 1; SAVEPOINT a; DELETE FROM orders WHERE id = 2; PREPARE TRANSACTION 'one'",
                    "BEGIN; DELETE FROM orders WHERE id = 3; PREPARE TRANSACTION 'two'",
                    "UPDATE orders SET status = 'paid' WHERE id = 4",
                    "ROLLBACK PREPARED 'two'",
                    "COMMIT PREPARED 'one'",
                ],
            )
            messages = watched.read()
            assert kinds_and_keys(messages) == ["update 4", "-", "update 1", "delete 2"]
            watched.follow(messages)
            assert watched.in_table() == watched.follow([])
        finally:
            streams.close()


def test_h09_a_retyped_deadline_stops_both(streams: Streams) -> None:
    _run(
        streams,
        ["CREATE TABLE orders (id int PRIMARY KEY, status text, expires_at timestamptz, version int, later timestamp)"],
    )
    watched = streams.watch("case_.orders")
    _run(
        streams,
        [
            f'ALTER PUBLICATION "{watched.settings.slot.publication}" SET TABLE orders',
            "ALTER TABLE orders DROP COLUMN expires_at",
            "ALTER TABLE orders RENAME later TO expires_at",
            "INSERT INTO orders VALUES (1, 'pending', 0, '2020-01-01')",
        ],
    )
    for plugin in streams.plugins:
        with pytest.raises(DecodeError):
            streams.read(plugin, watched.table, watched.settings.slot.publication)


def test_psycopg_is_asked_for_integers(streams: Streams) -> None:
    """What the comparison rests on."""
    assert isinstance(streams.connection, psycopg.Connection)
    assert streams.connection.execute("SELECT timestamptz 'infinity'", binary=True).fetchone() == (INFINITY_US,)
