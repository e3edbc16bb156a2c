"""What only a real broker can show of the Kafka sinks."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from cdcwatch.deadline.event import Event
from cdcwatch.deadline.position import Position
from cdcwatch.errors import ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.kafka import sink as kafka_sinks
from cdcwatch.handoff.kafka.sink import AtLeastOnceSink, ExactlyOnceSink
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.settings import KafkaSettings
from tests import services
from tests.murmur2 import partition_of
from tests.topic import read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.local import LocalKafka

    Sink = ExactlyOnceSink | AtLeastOnceSink

ORIGIN = Origin("7301234567890123456", 1, "shop", "orders_slot")
IN_TIME_S = 60
KINDS = pytest.mark.parametrize("kind", [ExactlyOnceSink, AtLeastOnceSink])


def _settings(broker: services.Kafka, topic: str, **more: Any) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic=topic, **more)


def _progress(number: int) -> Progress:
    return Progress(ORIGIN, Position(number))


def _events(numbers: range, *, key: bytes = b"1", size_bytes: int = 0) -> list[Event]:
    return [Event(key, b"%d" % number + b" " * size_bytes) for number in numbers]


def _settled(sink: Sink, outbox: Outbox) -> None:
    batches = outbox.take(10**6, 0)
    if batches:
        sink.publish(batches)

    def look() -> bool:
        outbox.acknowledge(sink.acknowledged())
        return outbox.is_idle

    wait_until(look, IN_TIME_S, "everything is durable")


def _numbers(broker: services.Kafka, topic: str) -> list[int]:
    return [int(record.value) for record in read_topic(broker.bootstrap_servers, topic)]


def _topic_configuration(broker: services.Kafka, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(20).items()}


@pytest.fixture
def own_topic(own_kafka: LocalKafka) -> str:
    services.create_topic(own_kafka, "orders.deadlines", partitions=1)
    return "orders.deadlines"


@KINDS
def test_a_topic_that_is_missing_comes_with_the_command_that_makes_it(
    kafka: services.Kafka, kind: Callable[..., Sink]
) -> None:
    name = f"missing.{uuid.uuid4().hex[:8]}"
    settings = _settings(kafka, name, partitions=12, replication_factor=3)
    with pytest.raises(PreconditionError, match=f"no topic '{name}'") as caught:
        kind(settings, "s").open()
    command = (
        f"kafka-topics.sh --bootstrap-server {kafka.bootstrap_servers} --create --topic {name}"
        " --partitions 12 --replication-factor 3"
    )
    assert command in caught.value.remedy
    with pytest.raises(PreconditionError) as caught:
        kind(_settings(kafka, name), "s").open()
    assert "--replication-factor" not in caught.value.remedy  # the broker's default
    with pytest.raises(PreconditionError):  # asking made nothing
        kind(settings, "s").open()


@KINDS
def test_create_topic_makes_it(kafka: services.Kafka, kind: Callable[..., Sink]) -> None:
    name = f"made.{uuid.uuid4().hex[:8]}"
    settings = _settings(kafka, name, partitions=5, create_topic=True)
    sink = kind(settings, "s")
    assert sink.open() is None
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(1)), _progress(1))
    _settled(sink, outbox)
    sink.close()
    found = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10).topics
    assert (len(found[name].partitions), len(found[f"{name}.progress"].partitions)) == (5, 1)
    assert _topic_configuration(kafka, f"{name}.progress")["cleanup.policy"] == "compact"
    assert kind(_settings(kafka, name), "s").open() == _progress(1)


def test_a_progress_topic_of_several_partitions_is_refused(kafka: services.Kafka, topic: str) -> None:
    services.create_topic(kafka, f"{topic}.progress", partitions=2)
    with pytest.raises(PreconditionError, match="2 partitions") as caught:
        ExactlyOnceSink(_settings(kafka, topic), "s").open()
    assert "delete it" in caught.value.remedy


def test_the_newest_progress_is_found_however_busy_other_slots_are(kafka: services.Kafka, topic: str) -> None:
    settings = _settings(kafka, topic)
    quiet, busy = AtLeastOnceSink(settings, "quiet"), AtLeastOnceSink(settings, "busy")
    for sink, count in ((quiet, 3), (busy, 700)):
        sink.open()
        outbox = Outbox(1 << 20, lambda: None)
        for number in range(1, count + 1):
            outbox.offer([], _progress(number))
        _settled(sink, outbox)
    assert (quiet.open(), busy.open()) == (_progress(3), _progress(700))


class CountingProducer:
    """Counts how often librdkafka's queue was full."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.full_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def produce(self, *arguments: Any, **more: Any) -> None:
        try:
            self._producer.produce(*arguments, **more)
        except BufferError:
            self.full_count += 1
            raise


@KINDS
def test_j01_a_full_queue_is_waited_for_and_loses_nothing(
    kafka: services.Kafka, topic: str, kind: Callable[..., Sink]
) -> None:
    """J1."""
    sink = kind(_settings(kafka, topic, client={"queue.buffering.max.messages": 10}), "s")
    sink.open()
    counting = sink._producer = CountingProducer(sink._producer)  # type: ignore[assignment]
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(500)), _progress(1))
    _settled(sink, outbox)
    assert counting.full_count > 10
    assert _numbers(kafka, topic) == list(range(500))
    sink.publish_snapshot(iter(_events(range(500, 600))), _progress(2))
    assert _numbers(kafka, topic) == list(range(600))
    sink.close()


@KINDS
def test_an_event_that_the_topic_does_not_take_stops_with_the_remedy(
    kafka: services.Kafka, kind: Callable[..., Sink]
) -> None:
    name = f"small.{uuid.uuid4().hex[:8]}"
    services.create_topic(kafka, name, partitions=1, config={"max.message.bytes": "1000"})
    sink = kind(_settings(kafka, name), "s")
    sink.open()
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(1), size_bytes=5000), _progress(1))
    with pytest.raises(PreconditionError) as caught:
        _settled(sink, outbox)
    assert "max.message.bytes" in caught.value.remedy
    assert not outbox.is_idle
    sink.close()
    assert kind(_settings(kafka, name), "s").open() is None


def test_one_event_that_is_refused_takes_its_transaction_along(kafka: services.Kafka) -> None:
    name = f"small.{uuid.uuid4().hex[:8]}"
    services.create_topic(kafka, name, partitions=3, config={"max.message.bytes": "4000"})
    sink = ExactlyOnceSink(_settings(kafka, name), "s")
    sink.open()
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(1)), _progress(1))
    _settled(sink, outbox)
    for number in range(1, 50):
        size_bytes = 50_000 if number == 25 else 0
        outbox.offer(
            _events(range(number, number + 1), key=b"%d" % number, size_bytes=size_bytes), _progress(number + 1)
        )
    with pytest.raises(PreconditionError):
        sink.publish(outbox.take(100, 0))
    assert not sink.acknowledged()
    sink.close()
    assert ExactlyOnceSink(_settings(kafka, name), "s").open() == _progress(1)
    assert _numbers(kafka, name) == [0]


def test_a_topic_that_goes_away_meanwhile_takes_the_transaction_along(
    kafka: services.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sinks, "_COMMIT_TIMEOUT_S", 10.0)
    name = f"gone.{uuid.uuid4().hex[:8]}"
    services.create_topic(kafka, name, partitions=1)
    sink = ExactlyOnceSink(_settings(kafka, name), "s")
    sink.open()
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(1)), _progress(1))
    _settled(sink, outbox)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([name])[name].result(20)
    outbox.offer(_events(range(1, 2)), _progress(2))
    with pytest.raises((UnavailableError, PreconditionError)):
        sink.publish(outbox.take(100, 0))
    assert not sink.acknowledged()
    with pytest.raises(PreconditionError, match="any more"):
        sink.open()
    sink.close()
    services.create_topic(kafka, name, partitions=1)
    assert ExactlyOnceSink(_settings(kafka, name), "s").open() == _progress(1)


@KINDS
def test_reports_of_failures_only_are_not_for_a_sink_that_lives_of_the_others(
    kafka: services.Kafka, topic: str, kind: Callable[..., Sink]
) -> None:
    sink = kind(_settings(kafka, topic, client={"delivery.report.only.error": True, "linger.ms": 7}), "s")
    sink.open()
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(3)), _progress(1))
    _settled(sink, outbox)
    sink.close()
    assert _numbers(kafka, topic) == [0, 1, 2]


@KINDS
def test_a_key_of_no_characters_has_the_partition_it_has_in_java(
    kafka: services.Kafka, topic: str, kind: Callable[..., Sink]
) -> None:
    sink = kind(_settings(kafka, topic), "s")
    sink.open()
    outbox = Outbox(1 << 20, lambda: None)
    for number in range(20):  # one batch each, so that no sticky choice keeps them together
        outbox.offer(_events(range(number, number + 1), key=b""), _progress(number + 1))
        _settled(sink, outbox)
    records = read_topic(kafka.bootstrap_servers, topic)
    assert {record.partition for record in records} == {partition_of(b"", 3)}
    assert [record.key for record in records] == [b""] * 20
    sink.close()


# 'murmur2' of org.apache.kafka.common.utils.Utils, as its own tests have it.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@KINDS
def test_j08_a_key_goes_where_java_clients_put_it(kafka: services.Kafka, kind: Callable[..., Sink]) -> None:
    """J8."""
    with services.fresh_topic(kafka, partitions=7) as topic:
        sink = kind(_settings(kafka, topic), "s")
        sink.open()
        outbox = Outbox(1 << 20, lambda: None)
        outbox.offer([Event(key, b"0") for key in MURMUR2], _progress(1))
        _settled(sink, outbox)
        sink.close()
        found = {record.key: record.partition for record in read_topic(kafka.bootstrap_servers, topic)}
        assert found == {key: (hashed & 0x7FFFFFFF) % 7 for key, hashed in MURMUR2.items()}


@KINDS
def test_a_setting_that_librdkafka_does_not_know(kafka: services.Kafka, topic: str, kind: Callable[..., Sink]) -> None:
    with pytest.raises(ConfigurationError, match=r"security\.protocl") as caught:
        kind(_settings(kafka, topic, client={"security.protocl": "ssl"}), "s").open()
    assert "[kafka.client]" in caught.value.remedy


@KINDS
def test_no_broker_to_open_is_away_for_now(kind: Callable[..., Sink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcwatch.handoff.kafka.client.METADATA_TIMEOUT_S", 0.5)
    sink = kind(KafkaSettings(bootstrap_servers="127.0.0.1:1", topic="orders.deadlines"), "s")
    with pytest.raises(UnavailableError) as caught:
        sink.open()
    assert "bootstrap_servers" in caught.value.remedy
    sink.close()


def test_j02_a_broker_that_dies_within_a_transaction(
    own_kafka: LocalKafka, own_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was committed shows when the sink opens again; each event is seen once."""
    monkeypatch.setattr(kafka_sinks, "_COMMIT_TIMEOUT_S", 2.0)
    sink = ExactlyOnceSink(_settings(own_kafka, own_topic), "s")
    sink.open()
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(10)), _progress(1))
    _settled(sink, outbox)
    own_kafka.kill()
    outbox.offer(_events(range(10, 20)), _progress(2))
    with pytest.raises(UnavailableError):
        sink.publish(outbox.take(100, 0))
    sink.close()
    own_kafka.start()

    def reopened() -> bool:
        try:
            outbox.rewind(sink.open())
        except UnavailableError:
            sink.close()
            return False
        return True

    wait_until(reopened, IN_TIME_S, "the broker takes transactions again")
    _settled(sink, outbox)
    sink.close()
    assert _numbers(own_kafka, own_topic) == list(range(20))


def test_j03_a_broker_that_is_away_for_a_while_gets_every_event_in_order(own_kafka: LocalKafka, own_topic: str) -> None:
    """J2, J3: without transactions librdkafka itself goes on, and reports nothing before it is durable."""
    sink = AtLeastOnceSink(_settings(own_kafka, own_topic), "s")
    sink.open()
    outbox = Outbox(1 << 20, lambda: None)
    outbox.offer(_events(range(10)), _progress(1))
    _settled(sink, outbox)
    own_kafka.kill()
    for begin in range(10, 60, 10):
        outbox.offer(_events(range(begin, begin + 10)), _progress(begin))
        sink.publish(outbox.take(100, 0))
    outbox.acknowledge(sink.acknowledged())
    assert outbox.flush_lsn == 1
    own_kafka.start()
    _settled(sink, outbox)
    sink.close()
    assert outbox.flush_lsn == 50
    assert _numbers(own_kafka, own_topic) == list(range(60))
