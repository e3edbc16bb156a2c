"""An order's life as a list of steps, and the topic's records read as such. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from cdcwatch.deadline.rule import EXPIRED
from cdcwatch.instant import parse_instant
from cdcwatch.lsn import parse_lsn


class Step(NamedTuple):
    """One change of an order, as either book has it."""

    kind: str
    deadline_us: int | None
    version: int | None
    reason: str | None = None


class State(NamedTuple):
    """An order as it stands."""

    status: str
    version: int
    deadline_us: int


class OrderEvent(NamedTuple):
    """A record of the topic, read."""

    order_id: int
    step: Step
    state: State | None
    """None: the order is gone."""
    position: tuple[int, int]
    """Commit LSN and ordinal: its identity and its place."""
    is_early: bool
    """Whether it tells of a close that was committed before the deadline."""
    partition: int
    value: dict[str, Any]

    @classmethod
    def read(cls, value: bytes, partition: int) -> OrderEvent:
        """From a record's value. ValueError or KeyError when it isn't a deadline event of the demo's table."""
        event = orjson.loads(value)
        data = event["data"]
        commit_lsn, _, ordinal = event["id"].partition("-")
        deadline_us = None if data["deadline"] is None else parse_instant(data["deadline"])
        gone = data["status"] is None
        return cls(
            int(event["subject"]),
            Step(event["type"], deadline_us, data["version"], data.get("reason")),
            None if gone or deadline_us is None else State(data["status"], data["version"], deadline_us),
            (parse_lsn(commit_lsn), int(ordinal)),
            event["type"] == EXPIRED and deadline_us is not None and parse_instant(event["time"]) < deadline_us,
            partition,
            event,
        )
