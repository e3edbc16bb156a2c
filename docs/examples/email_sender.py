r"""Sends an e-mail for each event `notice.requested`, of any topic of CloudEvents; Redis remembers which were sent.

    pip install '.[redis]'
    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic notices --partitions 3
    KAFKA=localhost:9092 REDIS=redis://localhost:6379/0 SMTP=localhost:2525 python docs/examples/email_sender.py

To try it, a mail server that prints what it is given, in another terminal:

    pip install aiosmtpd
    python -m aiosmtpd -n -l localhost:2525

and, once the sender says `joined group mail, has partitions …`, an event in a third:

    printf %s '{"specversion": "1.0", "id": "1", "source": "/shop", "type": "notice.requested", "data": ' \
      '{"to": "ann@example.org", "subject": "Your order", "text": "It has expired."}}' |
      kcat -P -b localhost:9092 -t notices -k ann

The same again sends nothing; with another "id" it is another e-mail.

The group begins with start="latest": nothing is sent of what was in the topic before. In each partition it has its
place from its first record there on, and what comes while no sender runs is sent by the next one; until then it is not.

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
import sys
from email.message import EmailMessage

from cdcwatch.consume import CdcwatchError, Consumer, Event, MemoryStore, RedisStore, TryAgain, each

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


def send(event: Event, consumer: Consumer) -> None:
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


def main() -> None:
    """Until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    consumer: Consumer = Consumer(
        os.environ.get("TOPIC", "notices"),
        group="mail",
        bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"),
        start="latest",  # a group that is new sends nothing of what was before it
        types={"notice.requested"},
        # One at a time: what waits is free for other processes, should this one die.
        handler=each(lambda event: send(event, consumer), size=1),
        stores=[MemoryStore(), RedisStore(os.environ.get("REDIS", "redis://localhost:6379/0"))],
        lease_s=60,
        tries=3,
    )
    consumer.run()


if __name__ == "__main__":
    try:
        main()
    except CdcwatchError as error:
        sys.exit(f"{error}\nremedy: {error.remedy}")
