"""For services downstream: events of a Kafka topic, each handled once. docs/consume.md.

Works with any topic of CloudEvents. Stands alone: nothing of the rest of cdcwatch runs in the service.
"""

from cdcwatch.consume.avro import avro_decoder
from cdcwatch.consume.consumer import Consumer
from cdcwatch.consume.deadline import DeadlineEvent
from cdcwatch.consume.event import Event, Identity, NotAnEventError, Record, decode_cloudevent, event_of
from cdcwatch.consume.handling import Connection, TryAgain, batch, each
from cdcwatch.consume.memory import MemoryStore
from cdcwatch.consume.metrics import Stats
from cdcwatch.consume.postgres import PostgresStore
from cdcwatch.consume.redis import RedisStore
from cdcwatch.consume.store import BusyError, Claim, Store, Verdict
from cdcwatch.errors import CdcwatchError

__all__ = [
    "BusyError",
    "CdcwatchError",
    "Claim",
    "Connection",
    "Consumer",
    "DeadlineEvent",
    "Event",
    "Identity",
    "MemoryStore",
    "NotAnEventError",
    "PostgresStore",
    "Record",
    "RedisStore",
    "Stats",
    "Store",
    "TryAgain",
    "Verdict",
    "avro_decoder",
    "batch",
    "decode_cloudevent",
    "each",
    "event_of",
]
