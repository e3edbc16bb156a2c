"""What is done to a soak, and when: decided by its seed alone, before it begins."""

from __future__ import annotations

import random
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tests.fault.proxy import BOTH, Way

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUND_S = 180.0
LINKS = ("stream", "closing", "kafka")
"""The connections of the service, each with a proxy of its own."""


class Kind(Enum):
    """A fault."""

    KILL = "SIGKILL of cdcwatch"
    TERMINATE = "SIGTERM of cdcwatch"
    PAUSE = "SIGSTOP of cdcwatch"
    SECOND = "a second cdcwatch, then SIGKILL of one"
    POSTGRES = "immediate stop of PostgreSQL"
    BROKER = "kill -9 of the broker"
    DELAY = "latency"
    THROTTLE = "throttle"
    STALL = "stall"
    BLACK_HOLE = "black hole"
    HALF_OPEN = "half-open"
    RESET = "reset"


NETWORK = (Kind.DELAY, Kind.THROTTLE, Kind.STALL, Kind.BLACK_HOLE, Kind.HALF_OPEN, Kind.RESET)
KILLING: Mapping[Kind, int] = {
    Kind.KILL: 14,
    Kind.POSTGRES: 4,
    Kind.BROKER: 4,
    Kind.TERMINATE: 2,
    Kind.PAUSE: 2,
    Kind.SECOND: 2,
}
LASTING: Mapping[Kind, int] = {Kind.POSTGRES: 3, Kind.BROKER: 3, Kind.PAUSE: 3}
"""One process outlives it all: what it hoards shows."""
_HOLD_S: Mapping[Kind, tuple[float, float]] = {
    Kind.PAUSE: (1, 9),  # the server gives up on a reader after 5 s
    Kind.SECOND: (3, 12),
    Kind.POSTGRES: (0, 2),
    Kind.BROKER: (0, 5),
    Kind.DELAY: (2, 10),
    Kind.THROTTLE: (2, 10),
    Kind.STALL: (1, 12),
    Kind.BLACK_HOLE: (2, 15),
}


class Fault(NamedTuple):
    """One fault of a course."""

    at_s: float
    """Since the round began; what takes its time moves the rest back."""
    hold_s: float
    """0: nothing is to be healed."""
    kind: Kind
    link: str
    """"" where the network has no part in it."""
    ways: tuple[Way, ...]
    luck: float
    """For what is chosen only then: below 1."""

    def __str__(self) -> str:
        way = "" if len(self.ways) != 1 else f" {self.ways[0].value}"
        return f"{self.kind.value}{f' of {self.link}{way}' if self.link else ''}, {self.hold_s:.1f} s"


class Round(NamedTuple):
    """About three minutes; before and behind it all is well."""

    lasts: bool
    """Whether the process is to outlive it."""
    faults: tuple[Fault, ...]


def course(seed: int, minutes: float) -> list[Round]:
    """The rounds of a soak: one that kills, two that last, and so on."""
    choose = random.Random(seed)
    return [_round(choose, lasts=number % 3 != 0) for number in range(max(1, round(minutes * 60 / ROUND_S)))]


def _round(choose: random.Random, *, lasts: bool) -> Round:
    kinds = [(kind, "") for kind, count in (LASTING if lasts else KILLING).items() for _ in range(count)]
    kinds += [(kind, link) for kind in NETWORK for link in LINKS]
    choose.shuffle(kinds)
    times = sorted(choose.uniform(0, ROUND_S) for _ in kinds)
    return Round(lasts, tuple(_fault(choose, at_s, *one) for at_s, one in zip(times, kinds, strict=True)))


def _fault(choose: random.Random, at_s: float, kind: Kind, link: str) -> Fault:
    ways = choose.choice((BOTH, (Way.TO_SERVER,), (Way.TO_CLIENT,))) if link else ()
    return Fault(at_s, choose.uniform(*_HOLD_S.get(kind, (0, 0))), kind, link, ways, choose.random())


def counted(rounds: list[Round]) -> Counter[Kind]:
    """How often each kind comes."""
    return Counter(fault.kind for one in rounds for fault in one.faults)
