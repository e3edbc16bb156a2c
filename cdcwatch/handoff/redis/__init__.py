"""Redis Streams as the bus: the sink, its progress, and who reads it. Needs the extra `redis`."""
