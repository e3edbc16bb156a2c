"""What of a changed table ends the process, and what doesn't."""

from __future__ import annotations

from threading import Event

import pytest
from msgspec.structs import replace

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.pipeline.warden import TableChangedError, Warden, compare, renews
from cdcwatch.slot.catalog import MissingColumnError
from cdcwatch.table import Column, PublicationStamp, WatchedTable
from tests.fakes.table import WATCHED

PUBLICATION = PublicationStamp("6.751", "7.751")
TABLE = replace(WATCHED, oid=42, logs_old_rows=True, publication=PUBLICATION)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (TABLE, None),
        (replace(TABLE, columns=(Column("note", "text"),)), None),
        (replace(TABLE, oid=43), "another table has taken its name"),
        (replace(TABLE, key=(Column("number", "bigint"),)), "its key has other columns"),
        (replace(TABLE, deadline=Column("expires_at", "date")), "expires_at was timestamp with time zone and is date"),
        (replace(TABLE, publication=PUBLICATION), None),
        (replace(TABLE, publication=PublicationStamp("6.752", "7.751")), "its publication was altered"),
        (replace(TABLE, publication=PublicationStamp("6.752", "7.752", goes_with_column=True)), "was altered"),
        (replace(TABLE, publication=PublicationStamp("6.751", "8.752")), "its publication was altered"),
        (replace(TABLE, publication=PublicationStamp("6.751", "8.752", goes_with_column=True)), None),
        (replace(TABLE, publication=PublicationStamp("6.751", "")), "its publication was altered"),
        (replace(TABLE, logs_old_rows=False), "its replica identity no longer logs status and deadline"),
    ],
)
def test_compare(found: WatchedTable, says: str | None) -> None:
    said = compare(TABLE, found)
    assert (said is None) if says is None else (said is not None and says in said)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (Column("id", "integer"), Column("id", "bigint"), None),
        (Column("id", "character varying(9)"), Column("id", "text"), None),
        (Column("id", "numeric(9,2)"), Column("id", "numeric"), None),
        (Column("id", "character(5)"), Column("id", "character(9)"), "was character(5) and is character(9)"),
        (Column("id", "bigint"), Column("id", "text"), "was bigint and is text"),
        (Column("id", "bigint"), Column("id", "shop.number", "bigint"), "was bigint and is shop.number"),
        (Column("id", "bigint", "", ("number",)), Column("number", "bigint", "", ("id",)), None),
        (Column("id", "bigint"), Column("number", "bigint", "", ("id",)), "its key has other columns"),
    ],
)
def test_what_holds_the_same_under_names_that_were_told_begins_anew(before, after, says):
    begun_with, found = replace(TABLE, key=(before,)), replace(TABLE, key=(after,))
    said = compare(begun_with, found)
    if says is None:
        assert said is None
        assert renews(begun_with, found) is not None
    else:
        assert says in (said or "")
    assert renews(begun_with, begun_with) is None


def told_by(look, **more):
    """What a warden says of the second look that is like the first."""
    heard = []
    said = Event()

    def tell(word):
        heard.append(word)
        said.set()

    warden = Warden(TABLE, look=look, name_of=more.pop("name_of", lambda _oid: TABLE.qualified_name),
                    changed=tell, renewed=tell, interval_s=0, **more)  # fmt: skip
    warden.start()
    assert said.wait(120)
    warden.join()
    return heard[0]


def test_a_renamed_column_is_no_gap_and_a_retyped_one_begins_anew():
    def missing():
        raise MissingColumnError("no column 'expires_at'", remedy="name it")

    error = told_by(missing)
    assert (error.is_gap, error.remedy) == (False, "name it")
    said = told_by(lambda: replace(TABLE, version=Column("version", "bigint")))
    assert said == "public.orders: column version was integer and is bigint"


@pytest.mark.parametrize("followed", [True, False])
def test_a_renamed_table_is_a_gap_unless_the_stream_follows_it(followed):
    def gone():
        raise PreconditionError("there is no table", remedy="-")

    error = told_by(gone, name_of=lambda _oid: "shop.orders", is_followed=lambda _oid: followed)
    assert error.is_gap is not followed
    assert ("--accept-gap" in error.remedy) is not followed


def test_a_stronger_identity_is_no_complaint() -> None:
    assert compare(replace(TABLE, logs_old_rows=False), TABLE) is None


def test_it_waits_out_an_outage_and_names_the_new_name() -> None:
    missing = PreconditionError("there is no table", remedy="-")
    answers = iter([UnavailableError("away", remedy="-"), missing, UnavailableError("away", remedy="-"), missing])
    heard: list[TableChangedError] = []
    said = Event()

    def look() -> WatchedTable:
        raise next(answers)

    def changed(error: TableChangedError) -> None:
        heard.append(error)
        said.set()

    warden = Warden(TABLE, look=look, name_of=lambda _oid: "public.purchases", changed=changed, interval_s=0)
    warden.start()
    assert said.wait(120)
    warden.join()
    assert "is now called public.purchases" in str(heard[0])
    assert "table.name" in heard[0].remedy
