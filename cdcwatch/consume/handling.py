"""What the caller gives: a handler for one event or for many, with or without its transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.consume.event import Event

Connection: TypeAlias = psycopg.Connection[Any]
BATCH: Final = 100


class TryAgain(Exception):  # noqa: N818  it is no error
    """Raised by a handler: what it needs is away.

    The event is tried again, with growing pauses, and no attempt is counted: an outage makes no dead letters.
    """


class HandlerError(Exception):
    """Wraps what a handler raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.error = error
        self.is_broken = False
        """The connection that it had is."""


@dataclass(frozen=True, slots=True)
class Handling:
    """A handler and how it is called: made by `each` and `batch`."""

    call: Callable[..., object]
    is_batch: bool
    in_transaction: bool
    size: int
    """At most so many events are asked about, and given to a batch handler, at a time."""

    def run(self, events: Sequence[Event], *connection: Connection) -> None:
        """HandlerError with what the handler raises, TryAgain as it is."""
        try:
            self.call(events if self.is_batch else events[0], *connection)
        except TryAgain:
            raise
        except Exception as error:
            raise HandlerError(error) from error


@overload
def each(
    handler: Callable[[Event], object], *, in_transaction: Literal[False] = False, size: int = BATCH
) -> Handling: ...
@overload
def each(
    handler: Callable[[Event, Connection], object], *, in_transaction: Literal[True], size: int = BATCH
) -> Handling: ...
def each(handler: Callable[..., object], *, in_transaction: bool = False, size: int = BATCH) -> Handling:
    """`handler(event)`, or `handler(event, connection)`: one event at a time; `size`: how many are asked about at once.

    In a transaction: what the handler does on the connection commits together with the record that the event is
    handled. It must neither commit nor roll back; savepoints (`connection.transaction()`) are its own matter.
    """
    return Handling(handler, is_batch=False, in_transaction=in_transaction, size=size)


@overload
def batch(
    handler: Callable[[Sequence[Event]], object], *, in_transaction: Literal[False] = False, size: int = BATCH
) -> Handling: ...
@overload
def batch(
    handler: Callable[[Sequence[Event], Connection], object], *, in_transaction: Literal[True], size: int = BATCH
) -> Handling: ...
def batch(handler: Callable[..., object], *, in_transaction: bool = False, size: int = BATCH) -> Handling:
    """`handler(events)`, or `handler(events, connection)`: of one partition, in its order, none twice, `size` at most.

    When it raises, none of them counts as handled, and each is given to it again by itself: the poison one is found so.
    """
    return Handling(handler, is_batch=True, in_transaction=in_transaction, size=size)
