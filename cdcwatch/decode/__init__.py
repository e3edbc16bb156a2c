"""Bytes of an output plugin to Begin, Change, Truncate, Commit. Pure; every plugin gives equal values."""
