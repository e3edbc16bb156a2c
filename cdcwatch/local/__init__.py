"""Throwaway PostgreSQL, Kafka and Redis servers on this machine, for `cdcwatch demo` and for the tests.

They listen on the loopback interface alone, keep all they write in one directory, and end with the process that
started them, however that process ends.
"""

from __future__ import annotations

from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.kafka import LocalKafka
from cdcwatch.local.postgres import LocalPostgres
from cdcwatch.local.redis import LocalRedis

__all__ = ["LocalKafka", "LocalPostgres", "LocalRedis", "LocalServiceError"]
