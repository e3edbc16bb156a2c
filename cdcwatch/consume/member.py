"""A member of a Kafka group: polls, hands records to their partition's lane, and commits up to where all is settled.

Partitions come and go: what is begun of one that goes is finished first, and the log says who has what.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdcwatch.consume.crew import Crew
from cdcwatch.consume.kafka import explain, explained, places_of, record_of
from cdcwatch.consume.lane import Lane
from cdcwatch.consume.offsets import Offsets
from cdcwatch.errors import CdcwatchError, PreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.consume.course import Course
    from cdcwatch.consume.event import Event
    from cdcwatch.consume.item import Work

_POLL_S: Final = 0.1
_FETCHED: Final = 500
_COMMIT_S: Final = 1.0
_QUEUE_BYTES: Final = 8 * 1024 * 1024
_ROOM: Final = 0.3
_JOINED: Final = "joined group %s, has partitions %s"
_log = logging.getLogger(__name__)


class Member:
    """For one thread, but for `holds`."""

    def __init__(
        self,
        course: Course,
        make_work: Callable[[Course], Work],
        *,
        topics: Sequence[str],
        configuration: Mapping[str, Any],
        workers: int,
        queue_records: int,
        drain_s: float,
        stopping: threading.Event,
    ) -> None:
        """Connects to nothing yet. `configuration`: as of `member_configuration`; the rest as of Consumer."""
        self._course, self._make_work = course, make_work
        self._topics, self._group = list(topics), configuration["group.id"]
        self._workers, self._queue_records, self._drain_s = workers, queue_records, drain_s
        self._stopping, self._left = stopping, threading.Event()
        self._offsets = Offsets()
        self._configuration = {**configuration, "on_commit": self._offsets.on_commit, "error_cb": self._tell}
        self._consumer: Any = None
        self._crew: Crew | None = None
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._paused: set[tuple[str, int]] = set()
        self._has_joined = self._is_closing = False
        self._commit_at_s = 0.0
        self._told: set[int] = set()

    def holds(self, event: Event) -> bool:
        """As of Consumer."""
        lanes = [] if self._crew is None else self._crew.running()
        return any(lane.work.holds(event) for lane in lanes)

    def run(self) -> None:
        """Until `stopping` is set; what is begun is finished and committed.

        PreconditionError for what no retry brings; brokers that are away are waited for. Once only.
        """
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
            _log.warning("waiting: %s; %s", told, told.remedy, extra={"reason": str(told), "remedy": told.remedy})

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
        if places:
            how = "was given more of group %s, has partitions %s" if self._has_joined else _JOINED
            _log.info(how, self._group, places_of(self._lanes))
            self._has_joined = True
        elif not self._lanes:
            _log.info("joined group %s, has no partitions so far", self._group)

    def _on_loss(self, consumer: Any, places: list[TopicPartition], *, is_gone: bool) -> None:
        if self._is_closing:
            return
        self._let_go([(place.topic, place.partition) for place in places], is_gone=is_gone)
        consumer.incremental_unassign(places)
        gone = places_of((place.topic, place.partition) for place in places)
        left = places_of(self._lanes) or "none"
        how = "lost partitions %s of group %s, has %s" if is_gone else "gave back partitions %s of group %s, has %s"
        self._has_joined = self._has_joined and not is_gone
        _log.log(logging.WARNING if is_gone else logging.INFO, how, gone, self._group, left)

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
