"""What to do about a part that is not ready, in a line. Pure. The long form: docs/runbook.md, 'Is it working'."""

from __future__ import annotations

from typing import Final

CLOCK_REMEDIES: Final = {
    "offset": (
        "the database's clock and this machine's are apart",
        "run NTP on both; closing goes by the database's clock and is not affected",
    ),
    "uncertainty": (
        "the database's clock can't be read closely: round trips are long",
        "bring cdcwatch nearer to the database; orders may be closed that late",
    ),
    "drift": ("the database's clock runs at another speed than this machine's", "run NTP on both machines"),
}
_BY_REASON: Final = (
    ("waiting for the database", "see that PostgreSQL is up and postgres.dsn leads to it; the log has the error"),
    ("connection failed", "see that PostgreSQL is up and postgres.dsn leads to it"),
    ("waiting for the slot", "where another cdcwatch has it: this one stands by, and takes over when the other ends"),
    ("being opened", "wait a moment; the log says when it can't be opened"),
    ("loading the window", "wait: orders are closed from the first page on"),
    ("others hold it locked", "see pg_stat_activity for who holds the row; the order is closed as soon as that ends"),
    ("has not answered a close", "see what the database waits for in pg_stat_activity; closing goes on by itself"),
    ("it is refused, the log says why", "see the log, mend the right, the column or close.also; it is tried again"),
    ("joining the consumer group", "wait a moment; the log says when it can't be joined"),
)
_BY_PART: Final = {
    "reader": "see the log, and `cdcwatch slot status`; docs/runbook.md, 'Is it working'",
    "sink": "`cdcwatch check` says what it lacks; orders are closed meanwhile",
    "subscriber": "`cdcwatch check --role close` says what it lacks; orders are closed meanwhile, as the table shows",
    "closer": "see the log, and `cdcwatch pending`; docs/runbook.md, 'Is it working'",
}


def remedy_of(part: str, reason: str) -> str:
    """For a part's reason as readiness gives it."""
    for said, remedy in _BY_REASON:
        if said in reason:
            return remedy
    return _BY_PART.get(part, "see the log; docs/runbook.md, 'Is it working'")
