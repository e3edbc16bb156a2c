import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.kafka import ledger

PLACE = TopicPartition("orders.deadlines.progress", 0)


class FakeConsumer:
    """Answers with what it is given, an error raised, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get_watermark_offsets(self, place, timeout):
        assert place is PLACE
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        return answer


@pytest.mark.parametrize(
    "not_yet", [KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.LEADER_NOT_AVAILABLE]
)
def test_a_topic_made_a_moment_ago_is_waited_for(not_yet, monkeypatch):
    monkeypatch.setattr(ledger, "_AGAIN_S", 0)
    assert ledger._bounds(FakeConsumer(not_yet, not_yet, (3, 7)), PLACE) == (3, 7)


def test_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(ledger, "METADATA_TIMEOUT_S", 0)
    with pytest.raises(KafkaException):
        ledger._bounds(FakeConsumer(KafkaError._UNKNOWN_PARTITION), PLACE)


def test_another_refusal_is_told_at_once():
    with pytest.raises(KafkaException):
        ledger._bounds(FakeConsumer(KafkaError.TOPIC_AUTHORIZATION_FAILED, (0, 0)), PLACE)


def test_no_answer_is_away_for_now():
    with pytest.raises(UnavailableError):
        ledger._bounds(FakeConsumer(None), PLACE)


@pytest.mark.parametrize("record", [b"", b"{}", b"7", b'{"snapshot":null}'])
def test_a_record_of_another_making_is_told_and_not_guessed_at(record):
    with pytest.raises(PreconditionError, match="of another version"):
        ledger._progress(record, "orders.deadlines.progress", "s")
