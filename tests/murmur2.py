"""Where a Java producer puts a record: the package's own, which tests on a broker hold to librdkafka's."""

from cdcwatch.handoff.murmur2 import murmur2, partition_of

__all__ = ["murmur2", "partition_of"]
