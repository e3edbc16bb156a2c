"""`close.action = "claim"`: orders are claimed in the database, and what the outside answered is recorded there.

The claim's id is a fence. Whoever lost a claim to another instance, because it was silent for `stuck_after_s`, finds
nothing to record. No session state is kept, as in `update`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from cdcwatch import failpoints
from cdcwatch.close.attempt import Claim, idempotency_key
from cdcwatch.close.claim_statements import ClaimStatements
from cdcwatch.close.outcome import Closed, CloseReport, Outcome, Unclosed
from cdcwatch.close.update import GAVE_WAY, PostgresTable
from cdcwatch.database import named
from cdcwatch.decode.note import PREFIX, CloseFailure
from cdcwatch.errors import PreconditionError
from cdcwatch.instant import instant_sql
from cdcwatch.queries import query
from cdcwatch.table import key_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.close.clock import Clock
    from cdcwatch.deadline.schedule import Due
    from cdcwatch.table import Key, WatchedTable

INSTALL = "psql -f sql/install.sql, as the table's owner"

# The outside has done its part: what time or room on the server may mend is recorded again, not called for again.
_HELD: Final = GAVE_WAY | {"57014", "53100", "53200", "58030"}


class Ended(NamedTuple):
    """An attempt that is over, to be recorded; or never begun."""

    claim: Claim
    error: str = ""
    delay_s: float = 0.0
    """Of one that is tried again."""


class Recorded(NamedTuple):
    """What became of records that were fenced by their claims."""

    closed: list[Closed]
    overtaken: int
    """Somebody else had changed the order's status meanwhile."""
    fenced: int
    """The claim was another's by then."""
    refused: list[Ended]
    """The database refuses this order's last step: a trigger, a constraint, `close.also`."""
    held: list[Ended]
    """Another transaction was in the way: to be recorded later."""


class Takes:
    """Where claimed orders go: the threads that call. Called by close workers; must not raise."""

    def __init__(self, claimed: Callable[[Sequence[Claim]], None], wait_for_room: Callable[[], bool]) -> None:
        """`wait_for_room`: waits a little for room for another batch, and says whether there is."""
        self.claimed, self.wait_for_room = claimed, wait_for_room


def require_claims(is_there: bool, missing: Sequence[str], role: str) -> None:
    """PreconditionError where the table of claims or a right on it is missing; the row of the query `rights`."""
    if not is_there:
        raise PreconditionError("there is no table cdcwatch.claims, or no right to its schema", remedy=INSTALL)
    if missing:
        lacks = ", ".join(missing)
        raise PreconditionError(
            f"{role} lacks {lacks} on cdcwatch.claims", remedy=f"GRANT {lacks} ON cdcwatch.claims TO {role}"
        )


class ClaimTable(PostgresTable):
    """The watched table and `cdcwatch.claims` on one connection. Keeps the `Table` contract; `close` claims."""

    def __init__(
        self,
        dsn: str,
        table: WatchedTable,
        clock: Clock,
        *,
        stuck_after_s: float,
        takes: Takes,
        changes: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`takes` is handed what `close` has claimed; `changes` and the others as `PostgresTable` has them."""
        super().__init__(dsn, table, clock, changes=changes, **options)
        self._stuck_after_s, self._takes = stuck_after_s, takes
        self._claiming = ClaimStatements(
            table, changes=changes or {}, has_also=bool(self._also), page_rows=self._page_rows
        )
        self._statements = self._claiming

    def connect(self) -> None:
        """Connects; PreconditionError too where the table of claims or a right on it is missing."""
        if self._connection is not None:
            return
        super().connect()
        try:
            (row,) = self._rows(query("claim", "rights"))
            require_claims(*row)
        except BaseException:
            self.disconnect()
            raise

    # -- claiming ----------------------------------------------------------------------------------------------------

    def close(self, batch: Sequence[Due]) -> CloseReport:
        """Claims a batch, and hands it on; DEFERRED where those that call have no room for more."""
        if batch and not self._takes.wait_for_room():
            return CloseReport(unclosed=[Unclosed(due, Outcome.DEFERRED) for due in batch])
        report = super().close(batch)
        report.claimed, report.closed = [one.key for one in report.closed], []
        return report

    def _close(self, batch: Sequence[Due]) -> tuple[list[Closed], set[Key]]:
        """One statement. Raises psycopg's errors."""
        table, claim_id, taken_us = self._table, str(uuid.uuid4()), self._clock.monotonic_us()
        rows = (
            self._connected()
            .execute(
                self._claiming.claim_batch,
                {
                    **self._claiming.close_parameters(batch),
                    "deadlines": [instant_sql(due.deadline_us) for due in batch],
                    "names": [str(due.key) for due in batch],
                    "idempotency_keys": [idempotency_key(table, due.key, due.deadline_us) for due in batch],
                    "claim": claim_id,
                    "stuck_after_s": self._stuck_after_s,
                },
                binary=True,
            )
            .fetchall()
        )
        closed, claims, passed_over = [], [], set()
        for row in rows:
            *_, same, status, deadline_us, version, started_us = row
            key = self._key(row)
            if started_us is None:
                passed_over.add(key)
                continue
            claims.append(Claim(key, claim_id, 1, same, deadline_us, status, version, taken_us))
            closed.append(Closed(key, deadline_us, version, started_us))
        self._takes.claimed(claims)
        return closed, passed_over

    def take_over(self, limit: int) -> tuple[list[Claim], int]:
        """Claims that wait for their next attempt, and those of silent holders: they, and how many were silent."""
        claim_id, taken_us = str(uuid.uuid4()), self._clock.monotonic_us()
        parameters = {"claim": claim_id, "stuck_after_s": self._stuck_after_s, "rows": limit}
        claims, stuck = [], 0
        for row in self._rows(self._claiming.take_over, parameters):
            *_, is_stuck, attempt, same, status, deadline_us, version = row
            stuck += is_stuck
            claims.append(Claim(self._key(row), claim_id, attempt, same, deadline_us, status, version, taken_us))
        return claims, stuck

    # -- recording ---------------------------------------------------------------------------------------------------

    def record_closed(self, done: Sequence[Ended]) -> Recorded:
        """The outside has done its part. UnavailableError: unknown whether it was recorded; to do it again is safe."""
        return self._record(done, self._record_closed)

    def record_failed(self, done: Sequence[Ended]) -> Recorded:
        """Given up: the failed status, and a dead letter by way of the stream. Errors as of `record_closed`."""
        return self._record(done, self._record_failed)

    def record_retry(self, done: Sequence[Ended]) -> int:
        """Another attempt in `delay_s`. How many were fenced off."""
        parameters = {
            **self._fences(done),
            "delays_s": [one.delay_s for one in done],
            "errors": [one.error for one in done],
        }
        return len(done) - len(self._rows(self._claiming.record_retry, parameters))

    def hand_back(self, untouched: Sequence[Ended]) -> None:
        """Claims that nothing was called for: for whoever comes by."""
        self._rows(self._claiming.hand_back, self._fences(untouched))

    def _record(self, done: Sequence[Ended], record: Callable[[Sequence[Ended]], Recorded]) -> Recorded:
        """Halves what fails until it stands alone: an order's own trigger must not hold up the others."""
        total = Recorded([], 0, 0, [], [])
        parts = [done] if done else []
        while parts:
            part = parts.pop()
            try:
                found = record(part)
            except psycopg.Error as error:
                said = named(self._unless_away(error))
                if len(part) == 1 and error.sqlstate in _HELD:
                    total.held.append(part[0])
                elif len(part) == 1:
                    total.refused.append(part[0]._replace(error=said))
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
            else:
                total = Recorded(
                    total.closed + found.closed,
                    total.overtaken + found.overtaken,
                    total.fenced + found.fenced,
                    total.refused,
                    total.held,
                )
        return total

    def _record_closed(self, done: Sequence[Ended]) -> Recorded:
        connection = self._connected()
        statement, parameters = self._claiming.record_closed, self._record_parameters(done)
        if not self._also:
            rows = connection.execute(statement, parameters, binary=True).fetchall()
        else:
            with connection.transaction():
                connection.execute(self._claiming.make_closed, {})
                rows = connection.execute(statement, parameters, binary=True).fetchall()
                if any(version is not None for _, _, version, _ in rows):
                    connection.execute(self._also)
        failpoints.reached("claim.recorded", len(done))
        keys = {str(one.claim.key): one.claim.key for one in done}
        closed = [Closed(keys[name], *values) for name, *values in rows if values[-1] is not None]
        return Recorded(closed, len(rows) - len(closed), len(done) - len(rows), [], [])

    def _record_failed(self, done: Sequence[Ended]) -> Recorded:
        width, oid = len(self._table.key), self._table.oid
        notes = [
            CloseFailure(
                oid, tuple(key_texts(one.claim.key, width)), one.claim.deadline_us, one.claim.version,
                one.claim.attempt, one.error,
            ).to_json()
            for one in done
        ]  # fmt: skip
        parameters = {**self._record_parameters(done), "prefix": PREFIX, "notes": notes}
        rows = self._connected().execute(self._claiming.record_failed, parameters, binary=True).fetchall()
        failed = sum(is_failed for _, is_failed, _ in rows)
        return Recorded([], len(rows) - failed, len(done) - len(rows), [], [])

    def _record_parameters(self, done: Sequence[Ended]) -> dict[str, object]:
        return {**self._claiming.key_parameters(one.claim.key for one in done), **self._fences(done)}

    @staticmethod
    def _fences(done: Sequence[Ended]) -> dict[str, object]:
        return {
            "names": [str(one.claim.key) for one in done],
            "claims": [one.claim.claim_id for one in done],
        }
