"""Measurements of cdcwatch, side by side with what a machine can do at best: `python -m bench`, `make bench`."""
