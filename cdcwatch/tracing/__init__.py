"""OpenTelemetry traces of deadlines, from commit to topic to close: the extra `otel`, and `telemetry.trace_ratio`.

Nothing of it stands in the way of an order: with tracing off no object of this package is made. With it on, a checksum
of an order's key tells whether it is chosen, and spans are made when its event is durable and when its close has ended.
"""
