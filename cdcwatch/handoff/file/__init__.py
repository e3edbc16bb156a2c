"""The journal: events on this machine's disk."""
