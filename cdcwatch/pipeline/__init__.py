"""Wires the rooms; owns start, stop and back-pressure."""
