"""Orders with deadlines, in the shapes that lateness is measured in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peers.closers import EVERY_S
from bench.process import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.servers import Database

SCHEMA = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint, total numeric(12,2), status text NOT NULL DEFAULT 'pending',
    version int NOT NULL DEFAULT 0, expires_at timestamptz NOT NULL, created_at timestamptz DEFAULT clock_timestamp(),
    closed_at timestamptz
);
CREATE INDEX ON orders (expires_at) WHERE status = 'pending';
"""
_INSERT = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id % 977, 12.50, to_timestamp(%s::float8) + (id - %s) * %s * interval '1 s'
FROM generate_series(%s::bigint, %s) AS id
""".replace("id % 977", "id %% 977")
_LEAD_S = 5.0
_ROWS_A_COMMIT = 100
_MANY = 100_000
_MANY_ROWS_A_COMMIT = 5_000
_MANY_ROWS_PER_S = 20_000
_STEADY_ROWS_A_COMMIT = 10


@dataclass(frozen=True)
class Shape:
    """`insert` places the orders, has jobs made of them, and gives the last deadline, UNIX time."""

    name: str
    orders: int
    insert: Callable[[Database, Shape, float, Callable[[], None]], float]
    over_s: float = 0.0
    chart: str = ""
    has_jobs: bool = True
    """All orders are there before the first deadline, so that jobs can be made of them."""
    varies: bool = False
    """From round to round: it is measured in several."""


def steady(base: Database, shape: Shape, phase: float, enqueue: Callable[[], None]) -> float:  # noqa: ARG001 - nobody waits
    """Orders come evenly over `over_s`, each due three seconds after it came."""
    step_s = shape.over_s / shape.orders
    began_s = time.time()
    for first in range(1, shape.orders + 1, _STEADY_ROWS_A_COMMIT):
        due_s = began_s + (first - 1) * step_s
        time.sleep(max(0.0, due_s - time.time()))
        base.rows(_INSERT, due_s + 3, first, step_s, first, first + _STEADY_ROWS_A_COMMIT - 1)
    late_s = time.time() - began_s - shape.over_s
    if late_s > 1:
        raise Failure(f"the load fell {late_s:.1f} s behind: this machine is too busy")
    return began_s + shape.over_s + 3


def at_once(base: Database, shape: Shape, phase: float, enqueue: Callable[[], None]) -> float:
    """All orders are there before the first deadline; the deadlines spread evenly over `over_s`.

    `phase`, 0 to 1: where between two polls the first one lies.
    """
    is_many = shape.orders >= _MANY
    lead_s = _LEAD_S + shape.orders / _MANY_ROWS_PER_S if is_many else _LEAD_S
    rows_a_commit = _MANY_ROWS_A_COMMIT if is_many else _ROWS_A_COMMIT
    first_s = (time.time() + lead_s) // EVERY_S * EVERY_S + phase * EVERY_S
    step_s = shape.over_s / shape.orders
    for first in range(1, shape.orders + 1, rows_a_commit):
        base.rows(_INSERT, first_s, 1, step_s, first, first + rows_a_commit - 1)
    enqueue()
    base.rows("ANALYZE")
    if time.time() > first_s - 1:
        raise Failure("the load was not done a second before the first deadline: this machine is too busy")
    return first_s + shape.over_s


SHAPES = (
    Shape("4,000 deadlines over 20 s", 4_000, at_once, 20.0, chart="uniform"),
    Shape("10,000 deadlines at one instant", 10_000, at_once, chart="instant", varies=True),
    Shape("1,000 orders/s for 10 s, each due 3 s later", 10_000, steady, 10.0, chart="steady", has_jobs=False),
)
