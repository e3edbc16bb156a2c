"""The shop: orders placed, paid, extended, cancelled, deleted, in short transactions; many are left to expire."""

from __future__ import annotations

import heapq
import random
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg

from cdcwatch.database import connect, explain
from cdcwatch.deadline.rule import CANCELLED, MOVED, REASON_DELETED, SCHEDULED
from cdcwatch.demo.order import Step
from cdcwatch.queries import query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg import sql

    from cdcwatch.demo.stands import Stand
    from cdcwatch.demo.tally import Tally

ORDERS_A_CLERK_S: Final = 50
"""Orders a second for one connection; a higher rate takes more of them."""
MOST_CLERKS: Final = 16
_SHORTEST_S, _LONGEST_S = 1.0, 6.0
_EXTENDABLE_S: Final = 3.0
_EXTENSION_S: Final = (1.0, 3.0)
_PATIENT_S: Final = 3 * 86_400.0
"""A bank transfer: far beyond the window that is held in memory, and still pending at the end."""
_LAST_MOMENT_S: Final = 0.03
_BACKLOG_S: Final = 1.0
_FATES: Final = {
    "expires": 40,
    "paid": 30,
    "extended": 12,
    "cancelled": 8,
    "deleted": 5,
    "last moment": 4,
    "patient": 1,
}
"""Of a hundred orders so many."""
_SINGLE, _BASKET, _ABANDONED = "single", "basket", "abandoned"
_VISITS: Final = {_SINGLE: 96, _BASKET: 2, _ABANDONED: 2}
"""Of a hundred customers so many place an order, three in one transaction, one that is rolled back."""
_BASKET_ORDERS: Final = 3
_CUSTOMERS: Final = ("ada", "bo", "chi", "dee", "eli", "fay", "gus", "hal", "ivy", "jo", "kim", "lou", "mia", "ned")


class Traffic:
    """`rate` orders a second, by as many connections as that takes."""

    def __init__(self, dsn: str, tally: Tally, rate: float, stand: Stand) -> None:
        """Connects."""
        self._ended = threading.Event()
        self.error: psycopg.Error | None = None
        clerk_count = max(1, min(MOST_CLERKS, round(rate / ORDERS_A_CLERK_S)))
        self._clerks = [_Clerk(dsn, tally, rate / clerk_count, self._ended, stand) for _ in range(clerk_count)]
        self._threads = [
            threading.Thread(target=self._work, args=(clerk,), name=f"demo-clerk-{number}", daemon=True)
            for number, clerk in enumerate(self._clerks, 1)
        ]

    def start(self) -> None:
        """The shop opens."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The shop closes; what its clerks had still to do is left undone."""
        self._ended.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def require_open(self) -> None:
        """CdcwatchError when a clerk met an error of the database."""
        if self.error is not None:
            raise explain(self.error)

    def _work(self, clerk: _Clerk) -> None:
        try:
            clerk.work()
        except psycopg.Error as error:
            if not self._ended.is_set():
                self.error = error
        finally:
            clerk.close()


class _Placed(NamedTuple):
    order_id: int
    deadline_us: int
    version: int
    fate: str
    lifetime_s: float


class _Clerk:
    """One connection: places orders at its rate and does to each what its fate says, when it is time."""

    def __init__(self, dsn: str, tally: Tally, rate: float, ended: threading.Event, stand: Stand) -> None:
        self._stand = stand
        self._connection = connect(dsn, application_name="the shop")
        self._cursor = self._connection.cursor(binary=True)
        self._tally, self._rate, self._ended = tally, rate, ended
        self._random = random.Random()  # noqa: S311 - a simulation
        self._actions: list[tuple[float, int, int, Callable[[int], None]]] = []
        self._count = 0

    def close(self) -> None:
        self._connection.close()

    def work(self) -> None:
        next_order_s = time.monotonic()
        while not self._ended.is_set():
            now_s = time.monotonic()
            if self._actions and self._actions[0][0] <= now_s:
                _, _, order_id, action = heapq.heappop(self._actions)
                action(order_id)
            elif next_order_s <= now_s:
                # What can't be kept up with is left out, not made up for in a burst.
                next_order_s = max(next_order_s, now_s - _BACKLOG_S) + self._random.expovariate(self._rate)
                self._serve()
            else:
                due_s = min(next_order_s, self._actions[0][0] if self._actions else next_order_s)
                self._ended.wait(due_s - now_s)

    def _serve(self) -> None:
        """A customer comes."""
        visit = self._chosen(_VISITS)
        if visit == _SINGLE:
            placed = [self._place()]
        else:
            with self._connection.transaction() as transaction:
                placed = [self._place() for _ in range(_BASKET_ORDERS if visit == _BASKET else 1)]
                if visit == _ABANDONED:
                    raise psycopg.Rollback(transaction)
        for order in placed if visit != _ABANDONED else ():
            self._tally.did(order.order_id, Step(SCHEDULED, order.deadline_us, order.version))
            self._plan(order)

    def _place(self) -> _Placed:
        fate = self._chosen(_FATES)
        longest_s = _EXTENDABLE_S if fate == "extended" else _LONGEST_S
        lifetime_s = _PATIENT_S if fate == "patient" else self._random.uniform(_SHORTEST_S, longest_s)
        values = {
            "customer": self._random.choice(_CUSTOMERS),
            "amount_cents": self._random.randrange(500, 50_000),
            "lifetime_ms": lifetime_s * 1000,
        }
        row = self._cursor.execute(self._stand.statement(query("demo", "place")), values).fetchone()
        if row is None:
            raise RuntimeError("INSERT … RETURNING gave no row")
        order_id, deadline_us, version = row
        return _Placed(order_id, deadline_us, version, fate, lifetime_s)

    def _plan(self, order: _Placed) -> None:
        """Puts what the order's fate says on the list."""
        early_s = order.lifetime_s * self._random.uniform(0.1, 0.9)
        match order.fate:
            case "paid":
                self._later(early_s, order, self._pay)
            case "last moment":
                self._later(order.lifetime_s + self._random.uniform(-_LAST_MOMENT_S, _LAST_MOMENT_S), order, self._pay)
            case "extended":
                self._later(early_s, order, self._extend)
                if self._random.random() < 0.5:  # noqa: PLR2004
                    self._later(order.lifetime_s + _EXTENSION_S[0] / 2, order, self._pay)
            case "cancelled":
                self._later(early_s, order, self._cancel)
            case "deleted":
                self._later(early_s, order, self._delete)

    def _later(self, in_s: float, order: _Placed, action: Callable[[int], None]) -> None:
        self._count += 1
        heapq.heappush(self._actions, (time.monotonic() + in_s, self._count, order.order_id, action))

    def _pay(self, order_id: int) -> None:
        self._change(self._stand.statement(query("demo", "pay")), order_id, "paid")

    def _cancel(self, order_id: int) -> None:
        self._change(self._stand.statement(query("demo", "cancel")), order_id, "cancelled")

    def _change(self, statement: sql.Composed, order_id: int, reason: str) -> None:
        row = self._cursor.execute(statement, {"id": order_id}).fetchone()
        if row is not None:  # else it had expired
            self._tally.did(order_id, Step(CANCELLED, row[0], row[1], reason))

    def _extend(self, order_id: int) -> None:
        by_ms = self._random.uniform(*_EXTENSION_S) * 1000
        row = self._cursor.execute(
            self._stand.statement(query("demo", "extend")), {"id": order_id, "by_ms": by_ms}
        ).fetchone()
        if row is not None:
            self._tally.did(order_id, Step(MOVED, row[0], row[1]))

    def _delete(self, order_id: int) -> None:
        if (
            self._cursor.execute(self._stand.statement(query("demo", "delete")), {"id": order_id}).fetchone()
            is not None
        ):
            self._tally.did(order_id, Step(CANCELLED, None, None, REASON_DELETED))

    def _chosen(self, chances: Mapping[str, int]) -> str:
        return self._random.choices(tuple(chances), tuple(chances.values()))[0]
