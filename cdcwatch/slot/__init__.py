"""The edge to the walsender: framing, the stream, the DBA side of the slot."""
