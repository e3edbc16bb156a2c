"""Whether reader, sink and closer do their work, judged by the age of what they did last. Pure.

A part is ready while it makes progress or has nothing to do; what it says of itself counts less than what it has done.
Ages are monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

STUCK_S: Final = 10.0
"""The reader takes a step every second, and a silent server is asked after five."""
SINK_S: Final = 10.0
"""A transaction takes milliseconds to a second."""
UNANSWERED_S: Final = 5.0
"""Longer than a batch takes, with `also` and triggers, on a busy server."""
OVERDUE_S: Final = 10.0
STRANGER_REMEDY: Final = (
    "see that the table's topic, kafka.topic or that of its [[table]], and postgres.dsn are its reader's;"
    " after a move or another name it passes with the first event"
)
WINDOW_S: Final = 30.0
"""The window's loader looks every second, and a page of 20,000 rows may come from a cold disk."""


class Part(Struct, frozen=True):
    """One part's state."""

    ready: bool
    reason: str
    """One line: what it does, or why it is not ready."""
    age_s: float | None
    """Since its last progress; None: there was none yet."""
    waiting_s: float = 0.0
    """How long its oldest piece of work has waited."""

    def document(self) -> dict[str, Any]:
        """As `/readyz` shows it."""
        age_s = None if self.age_s is None else round(self.age_s, 1)
        return {"ready": self.ready, "reason": self.reason, "age_s": age_s, "waiting_s": round(self.waiting_s, 1)}


class ReaderSigns(Struct, frozen=True):
    """What is seen of the reader."""

    is_streaming: bool
    """The slot is ours and the sink has told where to begin."""
    has_slot: bool
    stepped_age_s: float
    """Since its thread last began a step."""
    heard_age_s: float
    """Since the server was last heard, or reading rested on purpose."""
    away: str = ""
    """Why there is no connection, where the last attempt failed or the stream broke off."""


class SinkSigns(Struct, frozen=True):
    """What is seen of the publisher and the outbox."""

    is_open: bool
    last_error: str
    acknowledged_age_s: float | None
    oldest_age_s: float
    """Since the oldest event or position that is not acknowledged was handed over; 0: there is none."""


class CloserSigns(Struct, frozen=True):
    """What is seen of the workers, their agenda and the window."""

    is_started: bool
    is_loaded: bool
    is_connected: bool
    last_error: str
    progress_age_s: float
    """Since a worker came through a batch, a measurement or an idle slice."""
    unanswered_s: float
    """How long the database has owed all workers an answer; 0: it owes none."""
    behind_s: float
    """How long the oldest due order has waited for a worker."""
    held_up_s: float
    """How long an order has been due that others' locks hold; orders that the table refuses are no concern of ours."""
    refused_s: float
    """How long closes have been refused for the table's or the role's sake, and not one succeeded."""
    window_error: str
    window_age_s: float
    """Since the window's loader came through a look or a page."""


class SubscriberSigns(Struct, frozen=True):
    """What is seen of the membership in the consumer group (`--role close`)."""

    has_joined: bool
    last_error: str
    assigned: tuple[int, ...]
    partitions: int
    answered_age_s: float
    """Since a broker last answered."""
    behind_s: float
    """Since all that the topic holds had been heard."""
    stepped_age_s: float
    """Since its thread last began a step."""
    partitions_before: int = 0
    """Until lately, and perhaps still for the group and the reader; 0: no others."""
    stranger: str = ""
    """Of whom alone the topic tells, while nothing came that is of our table."""


def judge_subscriber(signs: SubscriberSigns | None) -> Part:
    """None: it isn't made yet. Without a partition it is ready: the others have them."""
    if signs is None:
        return Part(ready=False, reason="waiting for the database", age_s=None)
    age_s, waiting_s = signs.answered_age_s, signs.behind_s
    reasons = (
        (signs.stepped_age_s > STUCK_S, f"its thread has been stuck for {signs.stepped_age_s:.0f} s"),
        (bool(signs.last_error), signs.last_error),
        (not signs.has_joined, "joining the consumer group"),
        (age_s > STUCK_S, f"brokers or Redis have not answered for {age_s:.0f} s"),
        (waiting_s > SINK_S, f"behind: the topic's end was last reached {waiting_s:.0f} s ago"),
        (bool(signs.stranger), f"the topic tells of {signs.stranger} alone, not of this table: {STRANGER_REMEDY}"),
    )
    why_not = next((reason for holds, reason in reasons if holds), None)
    if why_not is not None:
        return Part(ready=False, reason=why_not, age_s=age_s, waiting_s=waiting_s)
    has = f"{len(signs.assigned)} of {signs.partitions} partitions: {', '.join(map(str, signs.assigned))}"
    has = has if signs.assigned else "idle: others have all partitions"
    if signs.partitions_before:
        # What is in the new ones has no other owner until the group has shared them.
        has += f"; {signs.partitions_before} until lately: an order is whose it is by either count"
    return Part(ready=True, reason=has, age_s=age_s)


def judge_reader(signs: ReaderSigns | None, awaited: str = "") -> Part:
    """None: it isn't made yet. `awaited`: what the beginning waits for, where that is known."""
    if signs is None:
        return Part(ready=False, reason="waiting for the database", age_s=None)
    age_s = signs.heard_age_s
    if not signs.is_streaming:
        begins = awaited or "waiting for the sink to tell where to begin"
        reason = begins if signs.has_slot else signs.away or "waiting for the slot"
        return Part(ready=False, reason=reason, age_s=age_s)
    if signs.stepped_age_s > STUCK_S:
        return Part(ready=False, reason=f"its thread has been stuck for {signs.stepped_age_s:.0f} s", age_s=age_s)
    if age_s > STUCK_S:
        reason = f"nothing came from the server for {age_s:.0f} s: half-open, or decoding what is not ours"
        return Part(ready=False, reason=reason, age_s=age_s)
    return Part(ready=True, reason="streaming", age_s=age_s)


def judge_sink(signs: SinkSigns | None, awaited: str = "") -> Part:
    """None: it isn't made before the slot is ours. `awaited`: as of the reader."""
    if signs is None:
        return Part(ready=False, reason="waiting for the slot", age_s=None)
    age_s, waiting_s = signs.acknowledged_age_s, signs.oldest_age_s
    if not signs.is_open or signs.last_error:  # open after a failure: ready once what failed is acknowledged
        return Part(ready=False, reason=signs.last_error or awaited or "being opened", age_s=age_s, waiting_s=waiting_s)
    if waiting_s > SINK_S:
        reason = f"the oldest event has not been acknowledged for {waiting_s:.0f} s"
        return Part(ready=False, reason=reason, age_s=age_s, waiting_s=waiting_s)
    return Part(ready=True, reason="open", age_s=age_s, waiting_s=waiting_s)


def judge_closer(signs: CloserSigns | None, awaited: str = "") -> Part:
    """None: it isn't made yet. `awaited`: as of the reader."""
    if signs is None:
        return Part(ready=False, reason="waiting for the database", age_s=None)
    waiting_s = max(signs.unanswered_s, signs.behind_s, signs.held_up_s)
    why_not = _closer_failing(signs, awaited)
    return Part(ready=why_not is None, reason=why_not or "working", age_s=signs.progress_age_s, waiting_s=waiting_s)


def _closer_failing(signs: CloserSigns, awaited: str) -> str | None:
    """The first that holds."""
    is_idle = signs.progress_age_s > UNANSWERED_S
    window_s = f"the window has not been read for {signs.window_age_s:.0f} s"
    reasons = (
        (not signs.is_started, awaited or "waiting for the slot and, at a first start, the read of the table"),
        (not signs.is_connected, signs.last_error or "connecting to the database"),
        (not signs.is_loaded, signs.window_error or "loading the window"),
        (
            signs.unanswered_s > UNANSWERED_S,
            f"the database has not answered a close for {signs.unanswered_s:.0f} s",
        ),
        (
            signs.behind_s > (UNANSWERED_S if is_idle else OVERDUE_S),
            f"the oldest due order has waited for {signs.behind_s:.0f} s",
        ),
        (
            signs.held_up_s > OVERDUE_S,
            f"an order has been due for {signs.held_up_s:.0f} s and others hold it locked",
        ),
        (
            signs.refused_s > OVERDUE_S,
            f"nothing could be closed for {signs.refused_s:.0f} s: it is refused, the log says why",
        ),
        (signs.window_age_s > WINDOW_S, signs.window_error or window_s),
    )
    return next((reason for holds, reason in reasons if holds), None)


def judge_closers(signs: Mapping[str, CloserSigns], awaited: str = "") -> Part:
    """Of every table's closing; of several the first that is not well, by its name. Empty: none is made yet."""
    parts = {name: judge_closer(one, awaited) for name, one in signs.items()}
    if len(parts) <= 1:
        return next(iter(parts.values()), judge_closer(None))
    waiting_s = max(part.waiting_s for part in parts.values())
    for name, part in parts.items():
        if not part.ready:
            return replace(part, reason=f"{name}: {part.reason}", waiting_s=waiting_s)
    age_s = max((part.age_s for part in parts.values() if part.age_s is not None), default=None)
    return Part(ready=True, reason="working", age_s=age_s, waiting_s=waiting_s)
