"""Sends an e-mail for each event `notice.requested`, of any topic of CloudEvents; Redis remembers which were sent.

    pip install '.[redis]'
    KAFKA=localhost:9092 REDIS=redis://localhost:6379/0 SMTP=localhost:25 python docs/examples/email_sender.py

The data of such an event: {"to": "ann@example.org", "subject": "Your order", "text": "It has expired."}

An e-mail can't be in a transaction: no store makes it exactly once. What is done here makes a second one rare:

- the event is taken in hand in Redis, so that no two processes send it at once, and looked up again right before;
- it counts as sent once the mail server has accepted it;
- between that server's answer and the record in Redis lies the moment in which a crash gives a second e-mail. Both
  then have the same Message-ID, by which mail programs and later servers may tell that they are one.

A mail server that is away, or says "later" (4xx), is waited for. A refusal (5xx) is tried again, then a dead letter.
"""

from __future__ import annotations

import hashlib
import logging
import os
import smtplib
from email.message import EmailMessage

from cdcwatch.consume import Consumer, Event, MemoryStore, RedisStore, TryAgain, each

SENDER = os.environ.get("SENDER", "shop@example.org")
TEMPORARY = range(400, 500)


def message_of(event: Event) -> EmailMessage:
    """The same for the same event."""
    message = EmailMessage()
    name = hashlib.sha256(f"{event.source} {event.id}".encode()).hexdigest()[:32]
    message["Message-ID"] = f"<{name}@{SENDER.partition('@')[2]}>"
    message["From"], message["To"], message["Subject"] = SENDER, event.data["to"], event.data["subject"]
    message.set_content(event.data["text"])
    return message


def send(event: Event) -> None:
    """TryAgain where the event is fine and the mail server is not."""
    message = message_of(event)
    host, _, port = os.environ.get("SMTP", "localhost:25").partition(":")
    try:
        with smtplib.SMTP(host, int(port or 25), timeout=10) as server:
            # The second look, as late as can be: connecting may have taken longer than our lease.
            if not consumer.holds(event):
                raise TryAgain
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        if all(code in TEMPORARY for code, _ in error.recipients.values()):
            raise TryAgain from error
        raise
    except smtplib.SMTPResponseException as error:
        # What the server says before it has heard of this e-mail says nothing against it.
        if error.smtp_code in TEMPORARY or isinstance(error, smtplib.SMTPConnectError | smtplib.SMTPHeloError):
            raise TryAgain from error
        raise
    except smtplib.SMTPNotSupportedError:  # an address that this server can't take
        raise
    except OSError as error:  # no connection, or it broke
        raise TryAgain from error
    logging.info("sent %s", message["Message-ID"])


consumer = Consumer(
    os.environ.get("TOPIC", "notices"),
    group="mail",
    bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"),
    start="latest",  # a group that is new sends nothing of what was before it
    types={"notice.requested"},
    handler=each(send, size=1),  # one at a time: what waits is free for other processes, should this one die
    stores=[MemoryStore(), RedisStore(os.environ.get("REDIS", "redis://localhost:6379/0"))],
    lease_s=60,
    tries=3,
)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    consumer.run()
