"""What the levels of the record of handled events have in common: the state machine, and who may do what.

An event is `processing` (somebody's, until a lease runs out), `completed`, or `failed` (free to be tried again, or
given up: a dead letter). Attempts are counted as they begin, so that a handler which takes its process with it is
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cdcwatch.consume.event import Identity

KEEP_S: Final = 7 * 86_400.0
"""How long a handled event is known by default: Kafka's own default for how long a topic keeps its records."""


class Verdict(Enum):
    """What a store says of an event that somebody wants to handle."""

    OURS = "ours"
    """Handle it: nobody has, and nobody else will before the lease is over."""
    COMPLETED = "completed"
    GIVEN_UP = "given up"
    """It became a dead letter."""
    BUSY = "busy"
    """Another has it in hand: look again."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer for one event."""

    verdict: Verdict
    attempt: int = 0
    """OURS: the how manieth, from 1."""
    is_takeover: bool = False
    """OURS: another had it in hand, and its lease has run out."""
    wait_s: float = 0.0
    """BUSY: until the other's lease ends."""


class Store(Protocol):
    """One level, for several threads.

    Every method raises UnavailableError while the level is away; nobody knows then what became of the call, and the
    same call again is safe.
    """

    name: str
    """For the log and the metrics: `memory`, `redis`, `postgres`."""
    rank: int
    """Levels stand in rising order; the last is the one that decides."""

    def open(self, group: str) -> None:
        """Before anything else: the consumer's group, under which everything is kept. Others' records are not seen.

        PreconditionError for what no retry brings. UnavailableError says that it is away now; it is open all the same,
        and may come later.
        """

    def close(self) -> None:
        """Frees what it holds; nothing is forgotten that outlives the process."""

    def known(self, identities: Sequence[Identity]) -> set[Identity]:
        """Those that are completed or given up. One round trip."""

    def remember(self, identities: Collection[Identity]) -> None:
        """These are completed, or given up: a deeper level says so."""

    def begin(self, identities: Sequence[Identity], owner: str, lease_s: float) -> list[Claim]:
        """Takes in hand what is free, in one round trip; claims in the order asked. No identity twice.

        Asked again by the same owner, what is its own stays so: the attempt is not counted again.
        """

    def complete(self, identities: Sequence[Identity], owner: str) -> set[Identity]:
        """These are handled. Returns those that were another's by then: handled twice, perhaps."""

    def fail(self, identity: Identity, owner: str, error: str, *, is_given_up: bool) -> None:
        """The attempt failed with an error of this class; free for the next one unless given up.

        Nothing happens where another has it.
        """

    def release(self, identities: Sequence[Identity], owner: str) -> None:
        """Taken in hand and not begun: as if never asked, this attempt not counted."""

    def renew(self, identities: Collection[Identity], owner: str, lease_s: float) -> set[Identity]:
        """The lease begins anew. Returns those that are not the owner's any more."""

    def forget(self, identities: Iterable[Identity]) -> int:
        """As if never seen: a dead letter that is sent again is handled again. How many of them were known."""

    def purge(self, older_than_s: float) -> int:
        """Forgets what was completed or given up so long ago; how many those were."""


class BusyError(Exception):
    """Another's open transaction handles one of these events: look again a little later."""
