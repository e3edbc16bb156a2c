"""The consumers of docs/topic.md, as they stand there: committed events, each handled once though it is there twice."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import pytest
from confluent_kafka import Producer

from tests.events import sample_events
from tests.pages import ROOT, Block, blocks
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Kafka

CONSUMERS = {block.language: block for block in blocks(ROOT / "docs/topic.md") if "consumer" in block.words}


@pytest.fixture
def told(kafka: Kafka, topic: str) -> list[str]:
    """What handlers print of each event of the topic: two, of which one is there twice; a third was never committed."""
    events = [event for event in sample_events() if event.key is not None][:3]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for number, some in enumerate([[events[0], events[1], events[0]], [events[2]]]):
        producer.begin_transaction()
        for event in some:
            producer.produce(topic, event.value, event.key, 0)
        producer.flush(30)
        producer.abort_transaction(30) if number else producer.commit_transaction(30)
    values = [orjson.loads(event.value) for event in events[:2]]
    return [f"{value['type']} {value['subject']} {value['data']['deadline']}" for value in values]


def _here(block: Block, kafka: Kafka, topic: str) -> str:
    """With the test's addresses."""
    assert "localhost:9092" in block.text
    assert "orders.deadlines" in block.text
    text = block.text.replace("localhost:9092", kafka.bootstrap_servers).replace("orders.deadlines", topic)
    return text.replace('"stock"', f'"{topic}"')


def test_kcat_prints_what_is_committed(kafka: Kafka, topic: str, told: list[str]) -> None:
    if shutil.which("kcat") is None:
        pytest.fail("kcat is missing: tools/bring-packages, or apt-get install kcat")
    ended = subprocess.run(
        shlex.split(_here(CONSUMERS["sh"], kafka, topic)), capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.partition(" {") for line in ended.stdout.splitlines()]
    assert [key for key, _, _ in lines] == ["7", "7", "7"]
    values = [orjson.loads("{" + rest) for _, _, rest in lines]
    assert [f"{value['type']} {value['subject']} {value['data']['deadline']}" for value in values] == [*told, told[0]]


def test_the_one_in_python_handles_each_once_and_goes_on_where_it_was(
    kafka: Kafka, topic: str, told: list[str], tmp_path: Path
) -> None:
    file, shown = tmp_path / "consumer.py", tmp_path / "shown"
    file.write_text(_here(CONSUMERS["python"], kafka, topic))

    def run(expected: list[str]) -> None:
        with (
            shown.open("w") as out,
            subprocess.Popen([sys.executable, file], stdout=out, stderr=subprocess.PIPE, text=True) as process,
        ):
            wait_until(lambda: shown.read_text().splitlines() == expected or process.poll() is not None, 30, "handled")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert (process.returncode, shown.read_text().splitlines()) == (0, expected), errors

    run(told)
    more = [event for event in sample_events() if event.key is not None][3]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    producer.produce(topic, more.value, more.key, 0)
    producer.flush(30)
    value = orjson.loads(more.value)
    run([f"{value['type']} {value['subject']} {value['data']['deadline']}"])
