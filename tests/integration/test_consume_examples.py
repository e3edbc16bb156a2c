"""The example programs of docs/examples, run as their first lines say."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdcwatch.consume import Identity, PostgresStore, each
from tests.consuming import Feed, committed, consumer_of, group_name, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests import services

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"


@contextmanager
def example(name: str, shown: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Ends by SIGTERM, with 0. `shown`: where what it logs goes."""
    with (shown or Path(os.devnull)).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, EXAMPLES / name],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stderr=log,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


def ended(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def expired(order: int, ordinal: int) -> bytes:
    """As the encoder writes it."""
    said = {
        "specversion": "1.0", "id": f"0/1A2B390-{ordinal}", "source": "cdcwatch:7/shop/public.orders",
        "type": "deadline.expired", "subject": str(order), "time": "2026-11-30T10:15:00.000000Z",
        "data": {"key": {"id": str(order)}, "deadline": "2026-11-30T10:15:00.000000Z", "previous_deadline": None,
                 "status": "expired", "version": 1, "commit_lsn": "0/1A2B390", "snapshot": False},
    }  # fmt: skip
    return json.dumps(said).encode()


def test_stock_is_given_back_once(
    database: services.Database, kafka: services.Kafka, topic: str, tmp_path: Path
) -> None:
    where = {"KAFKA": kafka.bootstrap_servers, "TOPIC": topic, "STOCK_DSN": database.dsn}
    without = ended(EXAMPLES / "stock_release.py", **where)
    assert without.returncode == 1
    told, remedy = without.stderr.splitlines()
    assert told == "PostgreSQL has no table cdcwatch.processed_events"
    assert remedy.startswith("remedy: psql -f sql/install_consume.sql")
    with database.connect() as connection:
        connection.execute((EXAMPLES / "stock_release.sql").read_text())
        connection.execute((ROOT / "sql/install_consume.sql").read_text())
        connection.execute("INSERT INTO stock VALUES ('book', 0), ('pen', 5)")
        connection.execute(
            "INSERT INTO reservations VALUES ('1', 'book', 1), ('1', 'pen', 2), ('2', 'pen', 1), ('3', 'pen', 7)"
        )
        feed = Feed(kafka, topic)
        for order, ordinal in [(1, 1), (2, 2), (1, 1), (1, 1), (2, 2)]:
            feed.write(expired(order, ordinal), key=str(order))
        feed.write(expired(3, 3).replace(b"deadline.expired", b"deadline.scheduled"), key="3")
        feed.flush()
        with example("stock_release.py", tmp_path / "shown", **where):
            wait_until(lambda: committed(kafka, topic, "stock") == 6, 60, "all is committed", every_s=0.2)
        stock = connection.execute("SELECT sku, available FROM stock ORDER BY sku").fetchall()
        handled = connection.execute(
            "SELECT count(*) FROM cdcwatch.processed_events WHERE state = 'completed'"
        ).fetchone()
    assert stock == [("book", 1), ("pen", 8)]
    assert handled == (2,)
    shown = (tmp_path / "shown").read_text()
    assert f"joined group stock, has partitions {topic} 0 1 2\n" in shown
    assert "order 1: articles given back: 2\n" in shown


def test_a_dead_letter_is_sent_again_as_it_was(database: services.Database, kafka: services.Kafka, topic: str) -> None:
    group, store = group_name(), PostgresStore(database.dsn)
    store.install()
    feed = Feed(kafka, topic)
    feed.write(expired(1, 1), key="1", partition=2, headers={"trace": "t"})
    feed.flush()
    failing: list[object] = [1]
    seen: list[object] = []

    def handle(event: Any) -> None:
        if failing:
            raise ValueError
        seen.append((event.record.partition, event.record.key, event.record.value, event.record.headers))

    def consumer() -> Any:
        return consumer_of(kafka, topic, group, handler=each(handle), stores=[store], tries=1)

    with running(consumer()) as first:
        wait_until(lambda: first.stats().total == 1, 60, "it is a dead letter")
    store.open(group)
    assert store.known([Identity("cdcwatch:7/shop/public.orders", "0/1A2B390-1")])
    store.close()
    failing.clear()
    again = EXAMPLES / "send_again.py"
    where = {"KAFKA": kafka.bootstrap_servers, "STOCK_DSN": database.dsn}
    sent = ended(again, f"{topic}.{group}.dead", 0, 0, **where)
    assert (sent.returncode, sent.stderr.splitlines()) == (0, ["forgotten: 1", f"sent to {topic}"])
    with running(consumer()) as second:
        wait_until(lambda: second.stats().handled == 1, 60, "it is handled")
    assert seen == [(2, b"1", expired(1, 1), (("trace", b"t"),))]
    wrong = ended(again, topic, 2, 0, **where)
    assert (wrong.returncode, "no dead letter" in wrong.stderr) == (1, True)


def test_an_extra_that_is_missing_is_told_with_its_remedy() -> None:
    without = "import runpy, sys; sys.modules['redis'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    told = ended("-c", without, EXAMPLES / "email_sender.py")
    assert told.returncode == 1
    assert told.stderr.splitlines() == [
        "RedisStore needs the package redis",
        "remedy: pip install 'cdcwatch[redis]'",
    ]


class MailServer(socketserver.ThreadingTCPServer):
    """Enough of SMTP (RFC 5321) for smtplib. Says what `answers` has for a recipient, the last of them for ever."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MailSession)
        self.mails: list[str] = []
        self.answers: dict[str, list[str]] = {}


class MailSession(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 tests")
        while line := self.rfile.readline().decode().strip():
            command = line[:4].upper()
            if command == "DATA":
                self._say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.mails.append(b"".join(lines).decode())
                self._say("250 accepted")
            elif command == "RCPT":
                answers = self.server.answers.get(line.partition("<")[2].partition(">")[0], ["250 fine"])
                self._say(answers.pop(0) if len(answers) > 1 else answers[0])
            else:
                self._say("221 bye" if command == "QUIT" else "250 tests")
            if command == "QUIT":
                return

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def notice(name: str, to: str) -> dict[str, Any]:
    data = {"to": to, "subject": "Your order", "text": "It has expired."}
    return {"specversion": "1.0", "id": name, "source": "/shop", "type": "notice.requested", "data": data}


def first_lines_event(kafka: services.Kafka, topic: str) -> str:
    """What the program's head says to type, with the test's addresses, as another event."""
    if shutil.which("kcat") is None:
        pytest.fail("kcat is missing: tools/bring-packages, or apt-get install kcat")
    head = (EXAMPLES / "email_sender.py").read_text()
    typed = head[head.index("    printf") : head.index("\n\nThe same again")]
    for here, there in (('"id": "1"', '"id": "6"'), ("localhost:9092", kafka.bootstrap_servers), ("notices", topic)):
        assert here in typed
        typed = typed.replace(here, there)
    return typed


def test_one_mail_a_notice(kafka: services.Kafka, topic: str, own_redis: Any, mail_server: MailServer) -> None:
    mail_server.answers = {
        "bob@example.org": ["451 later", "451 later", "250 fine"],
        "nobody@example.org": ["550 no such user"],
    }
    feed = Feed(kafka, topic)

    def tell(*names: tuple[str, str]) -> None:
        for name, to in names:
            feed.write(json.dumps(notice(name, to)).encode(), key=to, partition=0)
        feed.flush()

    host, port = mail_server.server_address[:2]
    where = {"KAFKA": kafka.bootstrap_servers, "TOPIC": topic, "REDIS": own_redis.url, "SMTP": f"{host!s}:{port}"}
    with example("email_sender.py", **where):
        # It begins at the end of the topic: told again and again, as the same event, until it is there.
        def has_begun() -> bool:
            tell(("1", "ann@example.org"))
            return bool(mail_server.mails)

        wait_until(has_begun, 60, "the first mail", every_s=0.3)
        tell(("2", "bob@example.org"), ("2", "bob@example.org"), ("1", "ann@example.org"))
        wait_until(lambda: len(mail_server.mails) == 2, 60, "the second, once the server takes it")
        own_redis.restart()
        tell(("1", "ann@example.org"), ("3", "nobody@example.org"), ("4", "cy@example.org"))
        wait_until(lambda: len(mail_server.mails) == 3, 60, "the fourth, behind one that is refused")
    with example("email_sender.py", **where):
        tell(("1", "ann@example.org"), ("4", "cy@example.org"), ("5", "eve@example.org"))
        wait_until(lambda: len(mail_server.mails) == 4, 60, "the fifth, and no other")
        # In the other partitions it begins at the end once more: nothing of them was handled yet.
        typed = first_lines_event(kafka, topic)

        def is_sent() -> bool:
            subprocess.run(["bash", "-c", typed], check=True, timeout=60)
            return len(mail_server.mails) == 5

        wait_until(is_sent, 60, "what its first lines say to type", every_s=0.3)
    to = [line for mail in mail_server.mails for line in mail.splitlines() if line.startswith("To: ")]
    names = ["ann", "bob", "cy", "eve", "ann"]
    assert to == [f"To: {name}@example.org" for name in names]
    ids = {line for mail in mail_server.mails for line in mail.splitlines() if line.startswith("Message-ID: ")}
    assert len(ids) == 5
