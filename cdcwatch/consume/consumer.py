"""The consumer: a member of a Kafka group whose handler sees each event once, as far as its store can promise.

One thread polls, whatever the handlers do: a partition whose records pile up is paused, so that no handler is too
slow for `max.poll.interval.ms`. Workers take the partitions in turn, each partition by one at a time and in its
order. Offsets are committed up to where all is settled. docs/consume.md has the guarantees.

Here is what it is told, and what its parts are made of; `member` does the rest.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Any, Literal

from cdcwatch.backoff import Backoff
from cdcwatch.consume.course import Course
from cdcwatch.consume.dead_letters import DeadLetters
from cdcwatch.consume.event import decode_cloudevent
from cdcwatch.consume.kafka import client_configuration, member_configuration
from cdcwatch.consume.leased import LeasedWork
from cdcwatch.consume.levels import Levels
from cdcwatch.consume.member import Member
from cdcwatch.consume.metrics import GroupMetrics, Stats
from cdcwatch.consume.signals import Stopping, stopping_at_signals
from cdcwatch.consume.transactional import TransactionalWork
from cdcwatch.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from cdcwatch.consume.event import Decode, Event
    from cdcwatch.consume.handling import Handling
    from cdcwatch.consume.store import Store

_log = logging.getLogger(__name__)


class Consumer:
    """One member of a group. Make it, `run` it in a thread of yours, the main one usually; `close` it from another."""

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        bootstrap_servers: str,
        start: Literal["earliest", "latest"],
        handler: Handling,
        stores: Sequence[Store],
        decode: Decode = decode_cloudevent,
        types: Collection[str] | None = None,
        tries: int = 5,
        first_pause_s: float = 0.5,
        most_pause_s: float = 30.0,
        lease_s: float = 60.0,
        unreadable: Literal["dead_letter", "skip"] = "dead_letter",
        tombstones: Literal["dead_letter", "skip"] = "skip",
        dead_topic: str | None = None,
        workers: int = 4,
        queue_records: int = 5000,
        drain_s: float = 20.0,
        client: Mapping[str, Any] | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Connects to nothing yet. ConfigurationError for what can't be.

        `start`: where a group without offsets begins. `handler`: of `each` or `batch`. `stores`: memory, Redis,
        PostgreSQL, in that order, the last decides. `types`: of events that are handled; None: all. `tries`: of one
        event before it is a dead letter, with pauses from `first_pause_s`, doubled up to `most_pause_s`. `lease_s`:
        after so long the event of a process that died is taken over. `drain_s`: how long handlers may take to end
        when partitions or the process go. `queue_records`: so many of a partition wait here before it is paused, or
        8 MiB. `client`: further settings of librdkafka (security, for one). `registry`: for the metrics.
        """
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._group = group
        if not self._topics or not group:
            raise ConfigurationError("a consumer needs a topic and a group", remedy="topics=…, group=…")
        if tries < 1 or workers < 1 or lease_s <= 0 or handler.size < 1:
            raise ConfigurationError("tries, workers, size and lease_s are positive", remedy="mend the one that is not")
        shared = client_configuration(bootstrap_servers, client or {})
        self._dead = DeadLetters(shared, group, dead_topic)
        for topic in self._topics:
            if self._hears(self._dead.topic_of(topic)):
                raise ConfigurationError(
                    "the topic of dead letters is one that the consumer reads: each would come again without end",
                    remedy="another dead_topic=…",
                )
        self._metrics = GroupMetrics(group, registry)
        self._levels = Levels(stores, self._metrics)
        course = Course(
            levels=self._levels,
            metrics=self._metrics,
            handling=handler,
            decode=decode,
            grave=self._dead,
            tries=tries,
            lease_s=lease_s,
            first_pause_s=first_pause_s,
            most_pause_s=most_pause_s,
            types=None if types is None else frozenset(types),
            unreadable=unreadable,
            tombstones=tombstones,
        )
        if handler.in_transaction:
            _ = self._levels.transactional
        self._again = Backoff(first_s=first_pause_s, most_s=most_pause_s)
        self._stopping, self._ended = Stopping(), threading.Event()
        self._has_begun = False
        self._member = Member(
            course,
            TransactionalWork if handler.in_transaction else LeasedWork,
            topics=self._topics,
            configuration=member_configuration(shared, group=group, start=start),
            workers=workers,
            queue_records=max(queue_records, handler.size),
            drain_s=drain_s,
            stopping=self._stopping,
        )

    # -- for the caller ------------------------------------------------------------------------------------------------

    def run(self, *, signals: bool = True) -> None:
        """Until `stop`, `close`, SIGTERM or SIGINT (`signals`); what is begun is finished and committed.

        PreconditionError for what no retry brings: a right, the table, the topic of dead letters. Brokers and stores
        that are away are waited for, at the start too. Once only.
        """
        if self._has_begun:
            raise ConfigurationError("a consumer runs once", remedy="make another one")
        self._has_begun = True
        with stopping_at_signals(self._stopping, wanted=signals):
            try:
                self._levels.open(self._group)
                if self._has_prepared():
                    self._member.run()
            finally:
                self._levels.close()
                self._dead.close()
                self._ended.set()

    def stop(self) -> None:
        """Asks `run` to end; returns at once. For handlers and signal handlers too."""
        self._stopping.tell()

    def close(self) -> None:
        """The same, and waits until it has ended. Not for handlers, nor for the thread that runs it."""
        self._stopping.set()
        if self._has_begun:
            self._ended.wait()

    def stats(self) -> Stats:
        """What was counted so far."""
        return self._metrics.stats()

    def holds(self, event: Event) -> bool:
        """For a handler, right before what can't be undone: whether the event is still its own, and not taken over.

        Renews the lease. UnavailableError where the store can't tell.
        """
        return self._member.holds(event)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _hears(self, topic: str) -> bool:
        """Whether it is one of ours; what begins with ^ is a pattern, as librdkafka has it."""
        return any(re.match(one, topic) if one.startswith("^") else one == topic for one in self._topics)

    def _has_prepared(self) -> bool:
        """The topics of dead letters, once Kafka is there; False: it was told to stop before."""
        is_told = False
        while not self._stopping.is_set():
            try:
                self._dead.prepare(self._topics)
            except UnavailableError as error:
                if not is_told:
                    told = {"reason": str(error), "remedy": error.remedy}
                    _log.warning("waiting: %s; %s", error, error.remedy, extra=told)
                is_told = True
                self._stopping.wait(self._again.next_s())
            else:
                return True
        return False
