"""Every line is read by both ways, cutting and parsing, which must agree."""

import pytest
from msgspec.structs import replace

from cdcwatch.decode.change import Begin, Change, Commit, Row, Truncate
from cdcwatch.decode.wal2json import Wal2JsonDecoder, filter_name
from cdcwatch.errors import DecodeError
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US
from cdcwatch.table import Column
from tests.fakes.table import WATCHED
from tests.wal2json import Digits, begin, commit, instant, render

DUE_US = 850_000_000_500_000
DUE = instant(DUE_US)
PENDING = Row(DUE_US, "pending", 3)
BARE = replace(WATCHED, status=None, version=None, open=frozenset())


def columns(key=7, status="pending", deadline=DUE, version=3, **others):
    return {"id": key, "status": status, "expires_at": deadline, "version": version, **others}


def read(line, table=WATCHED):
    decoder = Wal2JsonDecoder(table)
    parsed = decoder._parse(line)
    cut = decoder._cutter.cut(line) if decoder._cutter else None
    assert cut is None or cut == parsed
    assert decoder.decode(memoryview(line)) == parsed
    return parsed


def is_cut(line, table=WATCHED):
    return Wal2JsonDecoder(table)._cutter.cut(line) is not None


def insert(table=WATCHED, **values):
    return render("I", table, columns=values or columns())


def update(new, identity, table=WATCHED):
    return render("U", table, columns=new, identity=identity)


def test_a_transactions_bounds():
    assert read(begin(0x1_0000_0010, 0x1_0000_0048, xid=2**32 - 1, time_us=5)) == Begin(0x1_0000_0010, 5, 2**32 - 1)
    assert read(commit(0x1_0000_0010, 0x1_0000_0048)) == Commit(0x1_0000_0010, 0x1_0000_0048)


def test_an_insert():
    line = insert(**columns(note="gift", paid=False))
    assert is_cut(line)
    assert read(line) == Change("insert", 7, PENDING, None)


def test_columns_stand_in_any_order_and_move():
    decoder = Wal2JsonDecoder(WATCHED)
    names = ["id", "note", "status", "expires_at", "version", "paid"]
    values = columns(note="x", paid=True)
    for turn in range(len(names)):
        line = insert(**{name: values[name] for name in names[turn:] + names[:turn]})
        assert decoder._cutter.cut(line) == Change("insert", 7, PENDING, None)
        assert decoder.decode(line) == read(line) == Change("insert", 7, PENDING, None)


LOOK_ALIKES = [
    '},{"name":"status","value":"paid"',
    '"},{"name":"status","value":"paid"},{"name":"',
    '}],"identity":[{"name":"id","value":8}]}',
    '"columns":[{"name":"status","value":"paid"}]',
    '\\"},{"name":"id","value":8',
    '"schema":"public","table":"orders",',
    "\\",
    '\\"',
    "\u2028\x00\x01\x1f\x7f\r\n\t",
    "é😀",
]


@pytest.mark.parametrize("note", LOOK_ALIKES)
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_text_that_looks_like_columns_is_text(note, place):
    values = {"note": note, **columns()} if place == "first" else columns(note=note)
    line = insert(**values)
    assert is_cut(line)
    assert read(line) == Change("insert", 7, PENDING, None)
    full = update(values, {**values, "status": "reserved"})
    assert is_cut(full)
    assert read(full) == Change("update", 7, PENDING, Row(DUE_US, "reserved", 3))


@pytest.mark.parametrize("status", [*LOOK_ALIKES, ""])
def test_any_text_is_a_status(status):
    line = insert(**columns(status=status))
    assert read(line) == Change("insert", 7, Row(DUE_US, status, 3), None)
    assert read(update(columns(status=status), columns(status=status))).old == Row(DUE_US, status, 3)


@pytest.mark.parametrize(
    ("deadline", "us"),
    [
        (None, None),
        ("infinity", INFINITY_US),
        ("-infinity", NEGATIVE_INFINITY_US),
        ("0044-03-15 10:00:00.123456+00 BC", -64_464_472_799_876_544),
        ("294276-12-31 23:59:59.999999+00", 9_223_371_331_199_999_999),
    ],
)
def test_unusual_deadlines(deadline, us):
    assert read(insert(**columns(deadline=deadline))) == Change("insert", 7, Row(us, "pending", 3), None)
    line = update(columns(), columns(deadline=deadline))
    assert read(line) == Change("update", 7, PENDING, Row(us, "pending", 3))


@pytest.mark.parametrize("action", ["I", "U"])
def test_a_deadline_column_that_is_gone_is_not_null(action):
    values = columns()
    del values["expires_at"]
    line = render(action, WATCHED, columns=values, identity={"id": 7} if action == "U" else None)
    with pytest.raises(DecodeError, match="no column 'expires_at': it was dropped or renamed") as caught:
        read(line)
    assert "|expires_at" in caught.value.remedy


def test_the_primary_key_only_leaves_the_old_row_unknown():
    line = update(columns(status="paid"), {"id": 7})
    assert is_cut(line)
    assert read(line) == Change("update", 7, Row(DUE_US, "paid", 3), None)
    assert read(render("D", WATCHED, identity={"id": 7})) == Change("delete", 7, None, None)


def test_full_gives_the_old_row():
    old = columns(deadline=instant(DUE_US - 1), version=2, note="x")
    line = update(columns(status="paid", note="x"), old)
    assert is_cut(line)
    assert read(line) == Change("update", 7, Row(DUE_US, "paid", 3), Row(DUE_US - 1, "pending", 2))
    assert read(render("D", WATCHED, identity=old)) == Change("delete", 7, None, Row(DUE_US - 1, "pending", 2))


def test_an_index_over_key_status_and_deadline_gives_them_without_the_version():
    old = columns(status="reserved")
    del old["version"]
    line = update(columns(), old)
    assert read(line) == Change("update", 7, PENDING, Row(DUE_US, "reserved", None))
    assert read(render("D", WATCHED, identity=old)) == Change("delete", 7, None, Row(DUE_US, "reserved", None))


def test_an_old_null_is_known_and_an_absent_column_is_not():
    assert read(update(columns(), columns(deadline=None, status=None))).old == Row(None, None, 3)
    assert read(update(columns(), {"id": 7, "status": "pending"})).old is None
    assert read(update(columns(), {"id": 7, "expires_at": DUE})).old is None
    assert read(update(columns(), {"id": 7, "expires_at": DUE, "status": None})).old == Row(DUE_US, None, None)


def test_a_key_that_changed():
    with_key = update(columns(key=33), {"id": 3})
    with_row = update(columns(key=33), columns(key=3, status="reserved"))
    assert is_cut(with_key)
    assert is_cut(with_row)
    assert read(with_key) == Change("update", 33, PENDING, None, 3)
    assert read(with_row) == Change("update", 33, PENDING, Row(DUE_US, "reserved", 3), 3)


def test_an_unchanged_toasted_column_is_absent_and_comes_from_the_identity():
    values = columns()
    del values["status"]
    long = "p" * 5000
    assert read(update(values, columns(status=long))) == Change("update", 7, Row(DUE_US, long, 3), Row(DUE_US, long, 3))
    with pytest.raises(DecodeError):  # known to nobody: not NULL
        read(update(values, {"id": 7}))


def test_a_toasted_key_column_comes_from_the_identity():
    table = replace(WATCHED, key=(Column("code", "text"), Column("id", "bigint")))
    long = "k" * 2600
    line = update(columns(), {"code": long, "id": 7}, table)
    assert read(line, table) == Change("update", f'["{long}","7"]', PENDING, None)


@pytest.mark.parametrize(
    ("type_name", "value", "text"),
    [
        ("boolean", True, "true"),
        ("boolean", False, "false"),
        ("smallint", -3, "-3"),
        ("integer", 1, "1"),
        ("shop.order_status", "on hold", "on hold"),
        ("character(8)", "pending ", "pending"),
        ("character varying(8)", "pending ", "pending "),
        ("numeric(3,1)", Digits("1.10"), "1.10"),
        ("text", None, None),
    ],
)
def test_statuses_of_other_types_are_their_text(type_name, value, text):
    table = replace(WATCHED, status=Column("status", type_name))
    assert read(insert(table, **columns(status=value)), table).new == Row(DUE_US, text, 3)
    assert read(update(columns(), columns(status=value), table), table).old == Row(DUE_US, text, 3)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**53 + 1, 0, -1])
def test_integers_keep_every_digit(number):
    for line in (
        insert(**columns(key=number, version=number)),
        update(columns(key=number, version=number), {"id": number}),
    ):
        assert is_cut(line)
        change = read(line)
        assert (change.key, change.new.version) == (number, number)
        assert type(change.key) is int


@pytest.mark.parametrize("digits", ["9" * 400, "-" + "9" * 5000 + ".5", "0." + "1" * 5000, "1e400", "9" * 5000])
def test_a_number_beyond_every_float_in_a_column_of_no_interest(digits):
    line = insert(**columns(deadline=None, price=Digits(digits)))
    assert not is_cut(line)
    assert read(line) == Change("insert", 7, Row(None, "pending", 3), None)
    table = replace(WATCHED, key=(Column("price", "numeric"),))
    assert read(line, table).key == digits


def test_a_version_that_is_null():
    assert read(insert(**columns(version=None))).new == Row(DUE_US, "pending", None)


KEYS = [
    (("text",), ("a b",), "a b"),
    (("text",), ('",é\\',), '",é\\'),
    (("uuid",), ("0c7e1f0e-6f0c-4a6b-9a53-8f3c2b1d4e5f",), "0c7e1f0e-6f0c-4a6b-9a53-8f3c2b1d4e5f"),
    (("numeric",), (Digits("1.10"),), "1.10"),
    (("numeric(30,9)",), (Digits("12345678901234567890.123456789"),), "12345678901234567890.123456789"),
    (("numeric",), (Digits("123456789012345678901234567890"),), "123456789012345678901234567890"),
    (("numeric",), (Digits("-0.0000000000000000000001"),), "-0.0000000000000000000001"),
    (("double precision",), (Digits("1e+100"),), "1e+100"),
    (("real",), (Digits("0.1"),), "0.1"),
    (("boolean",), (True,), "true"),
    (("date",), ("2026-11-30",), "2026-11-30"),
    (("bigint", "text"), (2**63 - 1, "a"), '["9223372036854775807","a"]'),
    (("text", "text"), ('a","b', "c"), r'["a\",\"b","c"]'),
    (("uuid", "numeric", "character(5)"), ("0c7e", Digits("1.10"), "ab   "), '["0c7e","1.10","ab   "]'),
]


@pytest.mark.parametrize(("types", "values", "key"), KEYS)
def test_keys_are_their_columns_texts(types, values, key):
    table = replace(WATCHED, key=tuple(Column(f"k{place}", name) for place, name in enumerate(types)))
    named = {f"k{place}": value for place, value in enumerate(values)}
    row = {**columns(), **named}
    assert read(insert(table, **row), table) == Change("insert", key, PENDING, None)
    assert read(update(row, named, table), table) == Change("update", key, PENDING, None)
    assert read(render("D", table, identity=named), table) == Change("delete", key, None, None)


def test_key_columns_count_in_the_keys_order_not_in_the_lines():
    table = replace(WATCHED, key=(Column("b", "text"), Column("a", "text")))
    assert read(insert(table, a="1", b="2", **columns()), table).key == '["2","1"]'


@pytest.mark.parametrize("value", [None, True, Digits("7.0"), "7"])
def test_an_integer_key_that_is_none_is_not_understood(value):
    assert read(insert(**columns(key=value))).reason == "key can't be understood"


def test_without_status_and_version():
    line = insert(BARE, id=7, expires_at=DUE)
    assert read(line, BARE) == Change("insert", 7, Row(DUE_US, None, None), None)
    assert read(update({"id": 7, "expires_at": DUE}, {"id": 7, "expires_at": None}, BARE), BARE) == Change(
        "update", 7, Row(DUE_US, None, None), Row(None, None, None)
    )
    assert read(update({"id": 7, "expires_at": DUE}, {"id": 7}, BARE), BARE).old is None


QUOTED = replace(
    WATCHED,
    schema='My "Shop"',
    name='Or,der "X" é*\\',
    key=(Column('the "id"', "bigint"),),
    deadline=Column("Expires At", "timestamp with time zone"),
    status=Column('},{"name":"status', "text"),
    version=Column("a.b", "integer"),
)


def test_names_that_need_quotes():
    names = [QUOTED.key[0].name, QUOTED.status.name, QUOTED.deadline.name, QUOTED.version.name]
    line = insert(QUOTED, **dict(zip(names, (7, "pending", DUE, 3), strict=True)))
    assert is_cut(line, QUOTED)
    assert read(line, QUOTED) == Change("insert", 7, PENDING, None)
    assert read(render("T", QUOTED), QUOTED) == Truncate()


def test_add_tables_escapes_whatever_is_special():
    assert filter_name("public", "orders_2") == "public.orders_2"
    assert filter_name("My.Shop", 'Or,der "X" é*') == r"My\.Shop.Or\,der\ \"X\"\ é\*"
    assert Wal2JsonDecoder(QUOTED).options()["add-tables"] == filter_name(QUOTED.schema, QUOTED.name)


@pytest.mark.parametrize(
    "other",
    [
        replace(WATCHED, name="orders2"),
        replace(WATCHED, name="Orders"),
        replace(WATCHED, schema="archive"),
        replace(WATCHED, schema='public","table":"orders'),
    ],
)
def test_other_tables_are_ignored(other):
    assert read(insert(other)) is None
    assert read(update(columns(), columns(), other)) is None
    assert read(render("D", other, identity={"ref": "no key of ours"})) is None
    assert read(render("T", other)) is None


def test_a_truncate():
    assert read(render("T", WATCHED)) == Truncate()


def test_a_logical_message_is_ignored_whatever_it_says():
    line = b'{"action":"M","transactional":false,"prefix":"p","content":"{\\"action\\":\\"I\\"}"}'
    assert read(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"I"',
        b"{}",
        b'{"action":null}',
        b'{"action":""}',
        b'{"action":"IU"}',
        b'{"action":"X"}',
        b'{"action":"B',
        b'{"action":"C',
        b'{"action":["I"]}',
        b'{"action":"B","lsn":"0/1","timestamp":"2030-01-01 00:00:00","xid":1}',
        b'{"action":"B","lsn":"0/1","timestamp":"2030-01-01 00:00:00+00","xid":"1"}',
        b'{"action":"B","timestamp":"2030-01-01 00:00:00+00","xid":1}',
        b'{"action":"C","lsn":"0/1"}',
        insert()[:-1],
        insert() + b"}",
        b"[" * 100_000,
    ],
    ids=lambda line: line[:40].decode(errors="replace"),
)
def test_what_cannot_be_understood_stops_and_shows_no_values(line):
    with pytest.raises(DecodeError) as caught:
        Wal2JsonDecoder(WATCHED).decode(line)
    assert caught.value.remedy
    assert "pending" not in str(caught.value)
    exact = replace(WATCHED, key=(Column("id", "numeric"),))
    with pytest.raises(DecodeError):
        Wal2JsonDecoder(exact).decode(line)
