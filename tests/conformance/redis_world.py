"""Redis, for the suite of all sinks."""

from __future__ import annotations

from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.redis.sink import RedisSink
from cdcwatch.settings import RedisSettings
from tests.streams_of_redis import read_dead, read_streams


class CutAfterScript:
    """A client whose next scripts are done and whose answers are lost."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def pipeline(self, **options):
        return CutPipeline(self._client.pipeline(**options))


class CutPipeline(CutAfterScript):
    def execute(self, **options):
        self._client.execute(**options)
        raise UnavailableError("the answer is lost", remedy="")


class RedisWorld:
    publishes = is_exact = has_headers = True

    def __init__(self, server, stream, partitions):
        self.settings = RedisSettings(url=server.url, stream=stream, partitions=partitions)
        self.partitions = partitions
        self.sinks = []

    def sink(self, slot="orders_slot"):
        made = RedisSink(self.settings, slot)
        self.sinks.append(made)
        return made

    def records(self):
        return read_streams(self.settings.url, self.settings.stream, self.settings.partitions)

    def dead(self):
        return read_dead(self.settings.url, self.settings.stream)

    def cut_after_commit(self, sink):
        sink._client = CutAfterScript(sink._client)

    def push(self, sink):
        """Nothing is under way: a script is sent whole."""
