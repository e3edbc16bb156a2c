"""Events to a durable sink, and which LSN may be confirmed."""
