"""`python bench/schedule.py ORDERS`: what so many pending orders cost in this process, as one line of JSON."""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from pathlib import Path

from cdcwatch.deadline.schedule import Schedule, bucket_bits_for

_HOUR_US = 3_600_000_000
_NOW_US = 850_000_000_000_000
_CHANGES = 200_000
_BATCH = 500


def main() -> None:
    """Fills a schedule, moves deadlines, and takes out what is due."""
    orders = int(sys.argv[1])
    gc.freeze()
    schedule = Schedule(
        window_end_us=_NOW_US + 2 * _HOUR_US, max_entries=2 * orders, bucket_bits=bucket_bits_for(_HOUR_US)
    )
    random.seed(7)
    before_bytes = _resident_bytes()
    for number in range(orders):
        schedule.put(10**9 + number, _NOW_US + int(random.random() * _HOUR_US), 0)
    bytes_each = (_resident_bytes() - before_bytes) / orders
    moves = [(10**9 + random.randrange(orders), _NOW_US + int(random.random() * _HOUR_US)) for _ in range(_CHANGES)]
    began_s = time.process_time()
    for key, deadline_us in moves:
        schedule.put(key, deadline_us, 0)
    change_us = (time.process_time() - began_s) / _CHANGES * 1e6
    taken, began_s = 0, time.process_time()
    while taken < _CHANGES and (due := schedule.pop_due(_NOW_US + _HOUR_US, _BATCH)):
        taken += len(due)
    due_us = (time.process_time() - began_s) / taken * 1e6
    print(json.dumps({"bytes_each": bytes_each, "change_us": change_us, "due_us": due_us}))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
