"""The topic: events in Kafka, in JSON or Avro, exactly once or at least once."""
