"""The consumer: a member of a Kafka group whose handler sees each event once, as far as its store can promise.

One thread polls, whatever the handlers do: a partition whose records pile up is paused, so that no handler is too
slow for `max.poll.interval.ms`. Workers take the partitions in turn, each partition by one at a time and in its
order. Offsets are committed up to where all is settled. docs/consume.md has the guarantees.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdcwatch.consume.course import Course
from cdcwatch.consume.crew import Crew
from cdcwatch.consume.dead_letters import DeadLetters
from cdcwatch.consume.event import decode_cloudevent
from cdcwatch.consume.kafka import client_configuration, explain, explained, member_configuration, record_of
from cdcwatch.consume.lane import Lane
from cdcwatch.consume.leased import LeasedWork
from cdcwatch.consume.levels import Levels
from cdcwatch.consume.metrics import GroupMetrics, Stats
from cdcwatch.consume.offsets import Offsets
from cdcwatch.consume.signals import stopping_at_signals
from cdcwatch.consume.transactional import TransactionalWork
from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from cdcwatch.consume.event import Decode, Event
    from cdcwatch.consume.handling import Handling
    from cdcwatch.consume.store import Store

_POLL_S: Final = 0.1
_FETCHED: Final = 500
_COMMIT_S: Final = 1.0
_QUEUE_BYTES: Final = 8 * 1024 * 1024
_ROOM: Final = 0.3
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
        self._group, self._drain_s = group, drain_s
        if not self._topics or not group:
            raise ConfigurationError("a consumer needs a topic and a group", remedy="topics=…, group=…")
        if tries < 1 or workers < 1 or lease_s <= 0 or handler.size < 1:
            raise ConfigurationError("tries, workers, size and lease_s are positive", remedy="mend the one that is not")
        shared = client_configuration(bootstrap_servers, client or {})
        self._offsets = Offsets()
        self._configuration = {
            **member_configuration(shared, group=group, start=start),
            "on_commit": self._offsets.on_commit,
            "error_cb": self._tell,
        }
        self._dead = DeadLetters(shared, group, dead_topic)
        for topic in self._topics:
            if self._hears(self._dead.topic_of(topic)):
                raise ConfigurationError(
                    "the topic of dead letters is one that the consumer reads: each would come again without end",
                    remedy="another dead_topic=…",
                )
        self._metrics = GroupMetrics(group, registry)
        self._levels = Levels(stores, self._metrics)
        self._course = Course(
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
        self._make_work = TransactionalWork if handler.in_transaction else LeasedWork
        if handler.in_transaction:
            _ = self._levels.transactional
        self._workers, self._queue_records = workers, max(queue_records, handler.size)
        self._stopping, self._left, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._has_begun = self._is_closing = False
        self._consumer: Any = None
        self._crew: Crew | None = None
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._paused: set[tuple[str, int]] = set()
        self._commit_at_s = 0.0
        self._told: set[int] = set()

    # -- for the caller ------------------------------------------------------------------------------------------------

    def run(self, *, signals: bool = True) -> None:
        """Until `stop`, `close`, SIGTERM or SIGINT (`signals`); what is begun is finished and committed.

        PreconditionError for what no retry brings: a right, the table, the topic of dead letters. UnavailableError
        when no broker answers at the start; once it runs, brokers and stores that are away are waited for. Once only.
        """
        if self._has_begun:
            raise ConfigurationError("a consumer runs once", remedy="make another one")
        self._has_begun = True
        with stopping_at_signals(self.stop, wanted=signals):
            try:
                self._levels.open(self._group)
                self._dead.prepare(self._topics)
                self._loop()
            finally:
                self._levels.close()
                self._dead.close()
                self._ended.set()

    def stop(self) -> None:
        """Asks `run` to end; returns at once. For handlers and signal handlers too."""
        self._stopping.set()

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
        crew = self._crew
        lanes = [] if crew is None else crew.running()
        return any(lane.work.holds(event) for lane in lanes)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _hears(self, topic: str) -> bool:
        """Whether it is one of ours; what begins with ^ is a pattern, as librdkafka has it."""
        return any(re.match(one, topic) if one.startswith("^") else one == topic for one in self._topics)

    def _loop(self) -> None:
        crew = self._crew = Crew(self._workers)
        keeper = threading.Thread(target=self._keep_leases, name="consume-leases", daemon=True)
        keeper.start()
        try:
            self._consumer = KafkaConsumer(self._configuration)
            self._consumer.subscribe(
                self._topics,
                on_assign=self._on_assign,
                on_revoke=partial(self._on_loss, is_gone=False),
                on_lost=partial(self._on_loss, is_gone=True),
            )
            while not self._stopping.is_set():
                self._poll()
                self._balance()
                self._commit()
        except KafkaException as error:
            raise explained(error) from error
        finally:
            self._stopping.set()
            self._leave()
            crew.dismiss()
            self._left.set()
            keeper.join()

    def _poll(self) -> None:
        first = self._consumer.poll(_POLL_S)
        for message in [] if first is None else [first, *self._consumer.consume(_FETCHED, 0)]:
            refused = message.error()
            if refused is not None:
                self._refused(refused)
                continue
            self._told.clear()
            lane = self._lanes.get((message.topic(), message.partition()))
            if lane is not None:  # else it was taken from us with the callbacks of this very call
                lane.offer(record_of(message))
                self._working.offer(lane)

    def _refused(self, error: KafkaError) -> None:
        """Rights and fatal errors end the loop; what may come back is waited for, and told once."""
        told = explain(error)
        if error.fatal() or isinstance(told, PreconditionError):
            raise told
        self._tell(error)

    def _tell(self, error: KafkaError) -> None:
        """Of librdkafka's own too, which come to no record: that brokers are away, for one."""
        told = explain(error)
        if error.code() not in self._told and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            self._told.add(error.code())
            _log.warning("waiting: %s", told, extra={"reason": str(told), "remedy": told.remedy})

    def _balance(self) -> None:
        """Partitions with enough waiting are paused, those that have worked it off go on."""
        new = [place for place, lane in self._lanes.items() if place not in self._paused and self._share(lane) >= 1]
        # librdkafka forgets what it has fetched of a paused partition: not before there is room for more than a little.
        over = [place for place in self._paused if self._share(self._lanes[place]) <= _ROOM]
        if new:
            self._consumer.pause([TopicPartition(*place) for place in new])
            self._paused.update(new)
        if over:
            self._consumer.resume([TopicPartition(*place) for place in over])
            self._paused.difference_update(over)

    def _share(self, lane: Lane) -> float:
        """Of what may wait; 1 and more: it is full."""
        return max(lane.waiting / self._queue_records, lane.waiting_bytes / _QUEUE_BYTES)

    def _commit(self) -> None:
        now_s = time.monotonic()
        if now_s < self._commit_at_s:
            return
        self._commit_at_s = now_s + _COMMIT_S
        places = self._offsets.new(self._lanes.values())
        if places:
            # Its answer comes to `Offsets.on_commit`; what is not committed comes again, and the store knows it.
            try:
                self._consumer.commit(offsets=places, asynchronous=True)
            except KafkaException as error:
                self._offsets.on_commit(error.args[0], places)

    def _keep_leases(self) -> None:
        while not self._left.wait(self._course.lease_s / 4):
            for lane in {*self._lanes.copy().values(), *self._working.running()}:
                with suppress(CdcwatchError):  # told where it was seen
                    lane.work.renew()

    # -- partitions come and go ----------------------------------------------------------------------------------------

    def _on_assign(self, consumer: Any, places: list[TopicPartition]) -> None:
        if self._is_closing:
            return
        for place in places:
            lane = Lane(place.topic, place.partition, self._course, self._make_work(self._course))
            self._lanes[place.topic, place.partition] = lane
        consumer.incremental_assign(places)

    def _on_loss(self, consumer: Any, places: list[TopicPartition], *, is_gone: bool) -> None:
        if self._is_closing:
            return
        self._let_go([(place.topic, place.partition) for place in places], is_gone=is_gone)
        consumer.incremental_unassign(places)

    def _let_go(self, places: Sequence[tuple[str, int]], *, is_gone: bool) -> None:
        """What is begun is finished and committed. `is_gone`: others have them, and nothing of ours is committed."""
        lanes = [self._lanes.pop(place) for place in places if place in self._lanes]
        self._paused.difference_update(places)
        for lane in lanes:
            lane.end()
            self._working.hurry(lane)
        if not is_gone and not self._working.await_rest(lanes, self._drain_s):
            _log.warning(
                "handlers are still at it after %g s: their events come again to whoever gets the partition",
                self._drain_s,
            )
        if not is_gone:
            self._commit_last(lanes)
        self._offsets.forget(places)

    def _commit_last(self, lanes: Sequence[Lane]) -> None:
        positions = self._offsets.new(lanes)
        if positions:
            try:
                self._consumer.commit(offsets=positions, asynchronous=False)
            except KafkaException as error:
                _log.warning("the last offsets were not committed: their events come again: %s", explained(error))

    def _leave(self) -> None:
        """Within bounds: without a broker librdkafka waits for it when it commits, and when it leaves the group."""
        leaving = threading.Thread(target=self._let_go_of_all, name="consume-leave", daemon=True)
        leaving.start()
        leaving.join(2 * self._drain_s)
        if leaving.is_alive():
            _log.warning("no broker has answered: the group learns by its time-out that this member is gone")

    def _let_go_of_all(self) -> None:
        self._let_go(list(self._lanes), is_gone=False)
        self._is_closing = True
        if self._consumer is not None:
            self._consumer.close()

    @property
    def _working(self) -> Crew:
        assert self._crew is not None  # noqa: S101  made with the loop
        return self._crew
