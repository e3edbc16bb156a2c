"""What of a changed table ends the process, and what doesn't."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

import pytest

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.pipeline.warden import TableChangedError, Warden, compare
from cdcwatch.table import Column, WatchedTable
from tests.fakes.table import WATCHED

TABLE = replace(WATCHED, oid=42, logs_old_rows=True)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (TABLE, None),
        (replace(TABLE, columns=(Column("note", "text"),)), None),
        (replace(TABLE, oid=43), "another table has taken its name"),
        (replace(TABLE, key=(Column("number", "bigint"),)), "its key has other columns"),
        (replace(TABLE, deadline=Column("expires_at", "date")), "expires_at was timestamp with time zone and is date"),
        (replace(TABLE, logs_old_rows=False), "its replica identity no longer logs status and deadline"),
    ],
)
def test_compare(found: WatchedTable, says: str | None) -> None:
    said = compare(TABLE, found)
    assert (said is None) if says is None else (said is not None and says in said)


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
    assert said.wait(10)
    warden.join()
    assert "is now called public.purchases" in str(heard[0])
    assert "table.name" in heard[0].remedy
