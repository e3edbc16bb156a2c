"""Places at which a test ends, breaks or freezes this process. Nothing happens at them unless the environment asks.

CDCWATCH_FAILPOINTS="kafka.committed=kill@2,stream.read=pause:4" when the process starts: `name=action@when`.

actions: `exit` ends the process at once with the code EXIT_CODE, `kill` by SIGKILL, `raise` raises what nobody expects,
`pause:SECONDS` stops the thread for so long, `term` sends the process SIGTERM and goes on.
when: `first` (the default), a number: the nth time, `inside:N`: the first time with at least N changes of what is only
done in part (a transaction of the stream, a read of the table, a batch of closes).

Each happens once, and is told on stderr first. They stand at the edges, once a bite or a batch; never in pure modules.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from cdcwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VARIABLE: Final = "CDCWATCH_FAILPOINTS"
EXIT_CODE: Final = 86

NAMES: Final = {
    "slot.publication_made": "slot create has made the publication, and not the slot yet",
    "slot.made": "slot create has made the slot, and told nobody yet",
    "stream.acquired": "START_REPLICATION was answered: the slot is ours, and nobody else in the process knows",
    "stream.lost": "the connection broke; before the wait for the next one",
    "stream.read": "messages were read from the socket, and not understood yet",
    "stream.parsed": "messages became events and deadlines, which nobody was handed yet",
    "heap.scheduled": "deadlines are in the heap, and their events not in the outbox",
    "outbox.offered": "events are in the outbox, and the reader has not noted so",
    "feedback.built": "a higher flush position is about to be sent to the server",
    "feedback.sent": "it was sent, and not noted",
    "sink.opened": "the sink has fenced older processes and told its progress, which nobody has heard yet",
    "snapshot.scanned": "a thousand more open orders of the first read were handed to the sink",
    "snapshot.published": "the first read is durable, and the reader has not been told to begin",
    "publish.taken": "the publisher has taken batches from the outbox",
    "kafka.produced": "events were handed to librdkafka; exactly once: in a transaction that is still open",
    "kafka.dead_letter": "a dead letter was handed to librdkafka",
    "kafka.delivered": "at least once: events were delivered, and their progress record was not sent",
    "kafka.committed": "exactly once: the transaction is committed, and nobody knows",
    "file.written": "a batch was written to the journal, and its last line was not",
    "file.synced": "a batch is durable in the journal, and nobody knows",
    "file.rotating": "the full journal has its number, and the new one not its name yet",
    "redis.sent": "a batch is about to be sent to Redis",
    "redis.written": "Redis has written a batch and its progress, and nobody knows",
    "redis.staged": "a read's events are put aside in Redis, and not decided upon",
    "redis.decided": "the events that were put aside are decided upon, and none is in its stream",
    "redis.moved": "some of them are in their streams",
    "publish.acknowledged": "what is durable may be confirmed, and was not yet",
    "close.begun": "a batch is about to be closed",
    "close.uncommitted": "with close.also: rows are closed in a transaction that is still open",
    "close.committed": "a batch is closed in the database, and its answer was not looked at",
    "close.settled": "the answer has been taken in",
    "claim.answered": "with close.claim: the outside has answered, and nobody recorded it yet",
    "claim.recorded": "with close.claim: answers are recorded in the database, and that was not looked at",
    "window.extended": "the heap lets in a further range of deadlines, which was not read from the table yet",
    "window.loaded": "a chunk of the range was read and taken in",
    "stop.begun": "SIGTERM was heard, and nothing done yet",
    "stop.confirmed": "the last position was confirmed, and the stream not closed",
    "stop.drained": "everything has ended but the process",
}

_ITEMS_A_HIT: Final = 1000
_SPECIFICATION: Final = re.compile(
    r"(?P<name>[a-z_.]+)=(?P<action>exit|kill|raise|term|pause:(?P<seconds>\d+(\.\d+)?))"
    r"(@(?P<when>first|(?P<nth>[1-9]\d*)|inside:(?P<inside>\d+)))?"
)
_Item = TypeVar("_Item")


class FailpointError(Exception):
    """What `raise` raises: no error that any part of the service knows."""


class _Failpoint:
    """One that was asked for."""

    def __init__(self, name: str, action: str, *, pause_s: float, nth: int, inside: int) -> None:
        self._name, self._action = name, action
        self._pause_s, self._nth, self._inside = pause_s, nth, inside
        self._lock = threading.Lock()  # several workers may come by
        self._hits = 0

    def hit(self, changes: int) -> None:
        with self._lock:
            if self._inside and changes < self._inside:
                return
            self._hits += 1
            if self._hits != self._nth:
                return
        # Past Python's buffers: nothing flushes them when the process is killed.
        os.write(2, f"failpoint {self._name}: {self._action}\n".encode())
        self._act()

    def _act(self) -> None:
        if self._action == "exit":
            os._exit(EXIT_CODE)
        elif self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._action == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._action == "raise":
            raise FailpointError(self._name)
        else:
            time.sleep(self._pause_s)


_armed: Final[dict[str, _Failpoint]] = {}


def reached(name: str, changes: int = 0) -> None:
    """This thread is at that place, with so many changes of what is not whole yet. Nothing, unless it was asked for."""
    if _armed:
        failpoint = _armed.get(name)
        if failpoint is not None:
            failpoint.hit(changes)


def passing(name: str, items: Iterable[_Item]) -> Iterable[_Item]:
    """The items themselves; where asked for, the place is reached after every thousand of them."""
    return _passing(name, items) if name in _armed else items


def _passing(name: str, items: Iterable[_Item]) -> Iterator[_Item]:
    for count, item in enumerate(items, 1):
        yield item
        if count % _ITEMS_A_HIT == 0:
            reached(name, count)


def arm(environment: Mapping[str, str]) -> None:
    """As CDCWATCH_FAILPOINTS says, or not at all. ConfigurationError where it names what there is not."""
    armed: dict[str, _Failpoint] = {}
    for text in filter(None, map(str.strip, environment.get(VARIABLE, "").split(","))):
        found = _SPECIFICATION.fullmatch(text)
        if found is None:
            _refuse(
                f"{text!r} is not understood",
                "write name=action@when; exit, kill, raise, term or pause:SECONDS; first, a number or inside:N",
            )
        name = found["name"]
        if name not in NAMES:
            _refuse(f"there is no failpoint {name!r}", f"one of: {', '.join(NAMES)}")
        if name in armed:
            _refuse(f"{name} is named twice", "name each once")
        armed[name] = _Failpoint(
            name,
            found["action"],
            pause_s=float(found["seconds"] or 0),
            nth=int(found["nth"] or 1),
            inside=int(found["inside"] or 0),
        )
    _armed.clear()
    _armed.update(armed)


def _refuse(what: str, remedy: str) -> NoReturn:
    raise ConfigurationError(f"{VARIABLE}: {what}", remedy=f"{remedy}; or unset {VARIABLE}")
