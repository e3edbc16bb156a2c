"""`cdcwatch pending` on a real table, `cdcwatch events` on a real topic."""

from __future__ import annotations

import json
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from cdcwatch.close import pending
from tests.command import ORDERS, Ended, cdcwatch, start_cdcwatch, write_configuration
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


def test_pending_shows_the_nearest_open_deadlines(database: Database, tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", database.dsn)
    with database.connect() as connection:
        connection.execute(ORDERS)
        assert cdcwatch("pending", "-c", shop).out == "no open order has a deadline\noverdue: 0\n"
        connection.execute(
            """INSERT INTO orders VALUES (9007199254740993, 'pending', '2030-01-01 00:00:00.000001+00', 4),
               (2, 'paid', now(), 0), (3, 'pending', 'infinity', 0), (4, 'pending', now() - interval '90 seconds', 1),
               (5, 'pending', '-infinity', 0), (6, 'pending', '2031-01-01+00', 0)"""
        )
        connection.execute("ALTER ROLE postgres IN DATABASE %s SET datestyle = 'German'" % database.name)  # noqa: UP031
    told = json.loads(cdcwatch("pending", "-n", "3", "--json", "-c", shop).out)
    assert told["overdue_rows"] == 2
    assert told["overdue_rows_is_lower_bound"] is False
    assert [row["key"] for row in told["pending"]] == [{"id": "5"}, {"id": "4"}, {"id": "9007199254740993"}]
    assert told["pending"][0]["deadline"] == "-infinity"
    assert told["pending"][0]["in_s"] is None
    assert -120 < told["pending"][1]["in_s"] <= -90
    assert told["pending"][2]["deadline"] == "2030-01-01T00:00:00.000001Z"
    assert told["pending"][2]["version"] == 4
    lines = cdcwatch("pending", "-c", shop).out.splitlines()
    assert lines[0].split() == ["key", "deadline", "in", "version"]
    assert [line.split()[0] for line in lines[1:-1]] == ["5", "4", "9007199254740993", "6"]
    assert lines[-1] == "overdue: 2"


def test_pending_counts_what_it_shows_though_orders_are_closed_meanwhile(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = write_configuration(tmp_path / "shop.toml", database.dsn)
    count = pending.count_overdue
    with database.connect() as connection:
        connection.execute(ORDERS)
        connection.execute("INSERT INTO orders SELECT n, 'pending', now() FROM generate_series(1, 3) AS n")

        def counted(*arguments: Any) -> int:
            connection.execute("UPDATE orders SET status = 'expired' WHERE id > 1")
            connection.execute("INSERT INTO orders VALUES (9, 'pending', clock_timestamp())")
            return count(*arguments)

        monkeypatch.setattr(pending, "count_overdue", counted)
        told = json.loads(cdcwatch("pending", "--json", "-c", shop).out)
    assert (len(told["pending"]), told["overdue_rows"]) == (3, 3)


def _event(number: int, kind: str = "scheduled") -> bytes:
    return json.dumps(
        {"time": f"T{number}", "type": f"deadline.{kind}", "subject": str(number), "data": {"deadline": "D"}}
    ).encode()


class _Topic:
    def __init__(self, kafka: Kafka, topic: str, path: Path) -> None:
        self.shop = path / "shop.toml"
        self.shop.write_text(
            f'[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\ntopic = "{topic}"\n', encoding="utf-8"
        )
        self.topic = topic
        self.producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0}
        )
        self.producer.init_transactions(20)
        self.number = 0

    def publish(self, count: int, *, commit: bool = True) -> list[bytes]:
        """One transaction of `count` events, spread over the partitions."""
        values = [_event(self.number + place) for place in range(count)]
        self.producer.begin_transaction()
        for value in values:
            self.number += 1
            self.producer.produce(self.topic, value, key=str(self.number), timestamp=1_700_000_000_000 + self.number)
        self.producer.flush(20)
        if commit:
            self.producer.commit_transaction(20)
        else:
            self.producer.abort_transaction(20)
        return values

    def printed(self, *arguments: str) -> list[bytes]:
        ended = cdcwatch("events", "--json", "-c", self.shop, *arguments)
        assert ended.code == 0, ended
        return ended.out.encode().splitlines()


@pytest.fixture
def events(kafka: Kafka, topic: str, tmp_path: Path) -> _Topic:
    return _Topic(kafka, topic, tmp_path)


def test_an_empty_topic(events: _Topic) -> None:
    for arguments in ([], ["--from-beginning"], ["--from-beginning", "-n", "3"]):
        ended = cdcwatch("events", "-c", events.shop, *arguments)
        assert ended == Ended(0, "", "no event matches; 0 records were read\n")


def test_that_nothing_matches_is_told_beside_an_empty_output(events: _Topic) -> None:
    events.publish(30)
    wait_until(lambda: len(events.printed("-n", "30")) == 30, 30, "every partition has its commit marker")
    for arguments in (["-n", "1"], ["--from-beginning"]):
        ended = cdcwatch("events", "--key", "nobody", "--json", "-c", events.shop, *arguments)
        assert ended == Ended(0, "", "no event matches; 30 records were read\n")
    assert cdcwatch("events", "-n", "0", "-c", events.shop) == Ended(0, "", "")
    with start_cdcwatch("events", "-f", "--key", "nobody", "-c", events.shop) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting for events\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_events_of_a_transaction_stand_in_its_order(events: _Topic) -> None:
    """In partitions as they come, and in the reverse of the order in which the broker timed them."""
    values = [json.dumps({"id": f"0/A-{ordinal}", "source": "cdcwatch:1/shop/t"}).encode() for ordinal in range(1, 13)]
    events.producer.begin_transaction()
    for place, value in enumerate(values):
        events.producer.produce(events.topic, value, key=str(place), timestamp=1_700_000_000_000 - place)
    events.producer.commit_transaction(20)
    wait_until(lambda: len(events.printed()) == 12, 30, "every partition has its commit marker")
    assert events.printed() == values
    assert events.printed("--from-beginning", "-n", "12") == values


def test_the_last_events_by_time_over_all_partitions(events: _Topic) -> None:
    values = [value for _ in range(30) for value in events.publish(1)]
    events.publish(5, commit=False)
    values += events.publish(3)
    assert events.printed() == values[-20:]
    assert events.printed("-n", "5") == values[-5:]
    assert events.printed("-n", "0") == []
    assert events.printed("-n", "500") == values
    assert sorted(events.printed("--from-beginning")) == sorted(values)
    assert len(events.printed("--from-beginning", "-n", "4")) == 4
    # Aborted records take offsets too: the last committed ones lie far from the end.
    events.publish(60, commit=False)
    assert events.printed("-n", "5") == values[-5:]
    human = cdcwatch("events", "-n", "1", "-c", events.shop).out
    assert human == "T37  scheduled  37  D\n"


def test_filters_by_key_and_type(events: _Topic) -> None:
    def published(*said: tuple[str, str]) -> list[bytes]:
        values = [
            json.dumps({"time": "T", "type": kind, "subject": key, "data": {"deadline": "D"}}).encode()
            for key, kind in said
        ]
        events.producer.begin_transaction()
        for value, (key, _) in zip(values, said, strict=True):
            events.number += 1
            events.producer.produce(events.topic, value, key=key, timestamp=1_700_000_000_000 + events.number)
        events.producer.commit_transaction(20)
        return values

    first, second, third = published(
        ("eu 1", "deadline.scheduled"), ("2", "deadline.moved"), ("eu 1", "deadline.expired")
    )
    published(*[(str(number), "deadline.scheduled") for number in range(100, 160)])
    (gap,) = published(("*", "stream.gap"))
    events.publish(1)
    assert events.printed("--key", "eu 1") == [first, third], "however far back"
    assert events.printed("--key", "eu 1", "--type", "expired") == [third]
    assert events.printed("--key", "eu 1", "--key", "2", "-n", "2") == [second, third]
    assert sorted(events.printed("--type", "deadline.moved", "--type", "gap", "--from-beginning")) == sorted(
        [second, gap]
    )
    assert events.printed("--key", "nobody") == []
    wrong = cdcwatch("events", "--type", "closed", "-c", events.shop)
    assert (wrong.code, wrong.err.splitlines()) == (
        2,
        [
            "cdcwatch: there is no type closed here",
            "remedy: --type takes one of: scheduled, moved, cancelled, expired, gap",
        ],
    )
    letters = cdcwatch("events", "--type", "row", "-c", events.shop)
    assert (letters.code, letters.err.splitlines()[1]) == (2, "remedy: row and close are of dead letters: add --dead")
    with start_cdcwatch("events", "-f", "-n", "0", "--type", "expired", "--json", "-c", events.shop) as process:
        assert process.stdout is not None
        try:
            expired: list[str] = []
            reader = threading.Thread(target=lambda: expired.append(process.stdout.readline()))  # type: ignore[union-attr]
            reader.start()

            def came() -> bool:
                published(("1", "deadline.scheduled"), ("1", "deadline.expired"))
                return bool(expired)

            wait_until(came, 30, "an event that is wanted comes", every_s=0.2)
            assert json.loads(expired[0])["type"] == "deadline.expired"
        finally:
            process.send_signal(signal.SIGTERM)
            reader.join(30)
            process.communicate(timeout=60)
    assert process.returncode == 0


def test_records_of_an_open_transaction_are_not_waited_for(events: _Topic) -> None:
    values = events.publish(4)
    events.producer.begin_transaction()
    events.producer.produce(events.topic, _event(99), key="99")
    events.producer.flush(20)
    assert events.printed() == values
    events.producer.abort_transaction(20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_follow_goes_on_until_a_signal_and_exits_0(events: _Topic, number: signal.Signals) -> None:
    before = events.publish(3)
    process = start_cdcwatch("events", "--follow", "--json", "-c", events.shop)
    assert process.stdout is not None
    assert [process.stdout.readline().strip().encode() for _ in before] == before
    after = events.publish(6)
    assert sorted(process.stdout.readline().strip().encode() for _ in after) == sorted(after)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")


def test_a_missing_topic_is_told_with_the_command_that_makes_it(events: _Topic) -> None:
    events.shop.write_text(events.shop.read_text().replace(events.topic, "no.such.topic"), encoding="utf-8")
    ended = cdcwatch("events", "-c", events.shop)
    assert ended.code == 3
    assert "Kafka has no topic 'no.such.topic'" in ended.err
    assert "--create --topic no.such.topic" in ended.err


@pytest.mark.parametrize(("says", "arguments"), [("create_topic = true", []), ("", ["--dead"])])
def test_a_topic_that_run_makes_is_told_so(events: _Topic, says: str, arguments: list[str]) -> None:
    text = events.shop.read_text().replace(events.topic, "no.such.topic")
    events.shop.write_text(text + says + "\n", encoding="utf-8")
    ended = cdcwatch("events", *arguments, "-c", events.shop)
    assert ended.code == 3
    assert "remedy: start `cdcwatch run`, which makes it" in ended.err
    assert "kafka-topics.sh" not in ended.err


def test_a_broker_that_is_away_is_told(tmp_path: Path) -> None:
    with socket.socket() as held:  # bound, never listening: refused at once
        held.bind(("127.0.0.1", 0))
        shop = tmp_path / "shop.toml"
        shop.write_text(f'[kafka]\nbootstrap_servers = "127.0.0.1:{held.getsockname()[1]}"\n', encoding="utf-8")
        ended = cdcwatch("events", "-c", shop)
    assert ended.code == 3
    assert ended.err.startswith("cdcwatch: Kafka: ")
    assert ended.err.count("\n") == 2
