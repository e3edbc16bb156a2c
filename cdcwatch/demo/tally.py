"""Two books on the same orders: what the shop committed and what the topic says. Pure, but for a lock.

Each order has an account until it has ended and both books agree on it; then a few bytes remember how it ended, so that
a demo may run for hours. What never agrees stays open and is told at the end.
"""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from cdcwatch.deadline.rule import CANCELLED, EVENT_TYPES, EXPIRED, MOVED, SCHEDULED
from cdcwatch.demo.order import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cdcwatch.demo.order import OrderEvent, State

EXPIRED_STATUS: Final = "expired"
_MOST_PROBLEMS: Final = 5
_UNKNOWN, _GONE, _FIRST_FREE = 0, 1, 2


class _Account(Struct):
    done: list[Step] = field(default_factory=list)
    """By the shop."""
    told: list[Step] = field(default_factory=list)
    """By the topic."""
    positions: list[tuple[int, int]] = field(default_factory=list)
    state: State | None = None
    partition: int = -1

    def agrees(self, *, is_expired: bool) -> bool:
        return self.told == self.expected(is_expired=is_expired)

    def expected(self, *, is_expired: bool) -> list[Step]:
        """The shop's steps, and the close, which is cdcwatch's own."""
        if not is_expired or not self.done:
            return self.done
        last = self.done[-1]
        return [*self.done, Step(EXPIRED, last.deadline_us, (last.version or 0) + 1)]

    @property
    def has_ended(self) -> bool:
        return bool(self.told) and self.told[-1].kind in {CANCELLED, EXPIRED}


class Comparison(Struct, frozen=True):
    """One thing that two sources say."""

    what: str
    expected: object
    found: object

    @property
    def agrees(self) -> bool:
        """Whether they say the same."""
        return self.expected == self.found


class TopicCounts(Struct):
    """What the topic held so far."""

    events: int = 0
    by_type: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVENT_TYPES, 0))
    keys: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    early: int = 0

    @classmethod
    def total(cls, counts: Sequence[TopicCounts]) -> TopicCounts:
        """Of several topics; of one it is that one, the living one."""
        if len(counts) == 1:
            return counts[0]
        kinds: dict[str, int] = {kind: sum(one.by_type.get(kind, 0) for one in counts) for kind in EVENT_TYPES}
        return cls(
            sum(one.events for one in counts),
            kinds,
            sum(one.keys for one in counts),
            sum(one.duplicates for one in counts),
            sum(one.out_of_order for one in counts),
            sum(one.early for one in counts),
        )


class ShopCounts(Struct):
    """What the shop committed so far."""

    placed: int = 0
    extended: int = 0
    paid: int = 0
    cancelled: int = 0
    deleted: int = 0

    @classmethod
    def total(cls, counts: Sequence[ShopCounts]) -> ShopCounts:
        """Of several stands."""
        names = ("placed", "extended", "paid", "cancelled", "deleted")
        return cls(*(sum(getattr(one, name) for one in counts) for name in names))

    @property
    def ended(self) -> int:
        """Orders that the shop ended itself."""
        return self.paid + self.cancelled + self.deleted


class _Differences(Struct):
    orders: int = 0
    rows: int = 0
    row_count: int = 0
    expired_rows: int = 0


class Tally:
    """For the shop's threads and the topic's reader at once."""

    def __init__(self, closed_status: str = EXPIRED_STATUS) -> None:
        """`closed_status`: what a close writes."""
        self._closed_status = closed_status
        self.shop, self.topic = ShopCounts(), TopicCounts()
        self.last_id = 0
        self.last_commit_lsn = 0
        self._lock = threading.Lock()
        self._accounts: dict[int, _Account] = {}
        # By order id: how it ended (a fingerprint of its state), and the commit LSN that ended it.
        self._ended, self._ended_lsn = array("q"), array("q")
        self._problem_count = 0
        self._problems: list[str] = []

    # -- the shop's book ---------------------------------------------------------------------------------------------

    def did(self, order_id: int, step: Step) -> None:
        """The shop committed this change."""
        with self._lock:
            self.last_id = max(self.last_id, order_id)
            shop = self.shop
            shop.placed += step.kind == SCHEDULED
            shop.extended += step.kind == MOVED
            shop.paid += step.reason == "paid"
            shop.cancelled += step.reason == "cancelled"
            shop.deleted += step.reason == "deleted"
            if self._fingerprint(order_id) != _UNKNOWN:
                self._problem(f"order {order_id}: the shop did {_short(step.kind)}, which the topic doesn't tell")
                return
            account = self._accounts.setdefault(order_id, _Account())
            account.done.append(step)
            self._settle(order_id, account)

    # -- the topic's book --------------------------------------------------------------------------------------------

    def told(self, event: OrderEvent) -> None:
        """The topic has this record."""
        with self._lock:
            topic = self.topic
            topic.events += 1
            topic.by_type[event.step.kind] = topic.by_type.get(event.step.kind, 0) + 1
            topic.early += event.is_early
            commit_lsn = event.position[0]
            self.last_commit_lsn = max(self.last_commit_lsn, commit_lsn)
            if self._fingerprint(event.order_id) != _UNKNOWN:
                if commit_lsn <= self._ended_lsn[event.order_id]:
                    topic.duplicates += 1
                else:
                    self._problem(f"order {event.order_id}: the topic tells {_short(event.step.kind)} after its end")
                return
            account = self._accounts.setdefault(event.order_id, _Account())
            topic.keys += not account.positions
            if event.position in account.positions:
                topic.duplicates += 1
                return
            is_later = not account.positions or event.position > account.positions[-1]
            if not is_later or account.partition not in {-1, event.partition}:
                topic.out_of_order += 1
            account.positions.append(event.position)
            account.told.append(event.step)
            account.state, account.partition = event.state, event.partition
            self._settle(event.order_id, account)

    def unreadable(self, place: str) -> None:
        """The topic has a record that is no deadline event."""
        with self._lock:
            self.topic.events += 1
            self._problem(f"{place}: not a deadline event")

    # -- the end -----------------------------------------------------------------------------------------------------

    def compare(self, rows: Iterable[tuple[int, State]]) -> tuple[list[Comparison], list[str]]:
        """Both books against each other and against the table's rows, once; and the first few differences in words."""
        with self._lock:
            differences = _Differences()
            without_row = set(self._accounts)
            for order_id, state in rows:
                without_row.discard(order_id)
                self._compare_row(order_id, state, differences)
            gone = sum(1 for fingerprint in self._ended if fingerprint == _GONE)
            for order_id in without_row:
                account = self._accounts[order_id]
                gone += account.has_ended
                self._compare_steps(order_id, account, differences, is_expired=False)
            shop, topic = self.shop, self.topic
            told = topic.by_type
            return [
                Comparison("orders: the shop's and the topic's keys", shop.placed, topic.keys),
                Comparison(
                    "orders left: the shop's and the table's", shop.placed - shop.deleted, differences.row_count
                ),
                Comparison("orders deleted: the shop's and the topic's", shop.deleted, gone),
                Comparison("scheduled: the shop's and the topic's", shop.placed, told[SCHEDULED]),
                Comparison("moved: the shop's and the topic's", shop.extended, told[MOVED]),
                Comparison("cancelled: the shop's and the topic's", shop.ended, told[CANCELLED]),
                Comparison("expired: the table's and the topic's", differences.expired_rows, told[EXPIRED]),
                Comparison("orders whose events are not each change once, in order", 0, differences.orders),
                Comparison("rows that differ from their last event", 0, differences.rows),
                Comparison("duplicates in the topic", 0, topic.duplicates),
                Comparison("events out of order within their key", 0, topic.out_of_order),
                Comparison("closes committed before their deadline", 0, topic.early),
                Comparison("differences in all", 0, self._problem_count),
            ], list(self._problems)

    def _compare_row(self, order_id: int, state: State, differences: _Differences) -> None:
        is_expired = state.status == self._closed_status
        differences.row_count += 1
        differences.expired_rows += is_expired
        account = self._accounts.get(order_id)
        if account is None:
            is_same = self._fingerprint(order_id) == _fingerprint_of(state)
        else:
            is_same = account.state == state
            self._compare_steps(order_id, account, differences, is_expired=is_expired)
        if not is_same:
            differences.rows += 1
            self._problem(f"order {order_id}: {state.status} in the table, and the topic's last event says otherwise")

    def _compare_steps(self, order_id: int, account: _Account, differences: _Differences, *, is_expired: bool) -> None:
        if account.agrees(is_expired=is_expired):
            return
        differences.orders += 1
        expected = _listed(account.expected(is_expired=is_expired))
        self._problem(f"order {order_id}: expected {expected}, the topic has {_listed(account.told)}")

    @property
    def open_count(self) -> int:
        """Orders that have not ended, or on which the books don't agree yet."""
        with self._lock:
            return len(self._accounts)

    def _settle(self, order_id: int, account: _Account) -> None:
        """Closes the account of an order that has ended as the shop has it, or by its deadline."""
        if not account.has_ended or not account.agrees(is_expired=account.told[-1].kind == EXPIRED):
            return
        for book in (self._ended, self._ended_lsn):
            if order_id >= len(book):
                book.extend([0] * (order_id + 1024 - len(book)))
        self._ended[order_id] = _GONE if account.state is None else _fingerprint_of(account.state)
        self._ended_lsn[order_id] = account.positions[-1][0]
        del self._accounts[order_id]

    def _fingerprint(self, order_id: int) -> int:
        return self._ended[order_id] if 0 <= order_id < len(self._ended) else _UNKNOWN

    def _problem(self, text: str) -> None:
        self._problem_count += 1
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(text)


def _fingerprint_of(state: State) -> int:
    found = hash(state)
    return found if found not in {_UNKNOWN, _GONE} else _FIRST_FREE


def _short(kind: str) -> str:
    return kind.removeprefix("deadline.")


def _listed(steps: list[Step]) -> str:
    return (
        ", ".join(f"{_short(step.kind)} v{'-' if step.version is None else step.version}" for step in steps)
        or "nothing"
    )
