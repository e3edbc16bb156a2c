"""What a consumer refuses before it connects to anything."""

from __future__ import annotations

import pytest

from cdcwatch.consume import Consumer, MemoryStore, each
from cdcwatch.errors import ConfigurationError


@pytest.mark.parametrize(
    ("topics", "dead_topic"),
    [
        ("orders", "orders"),
        (["orders", "orders.stock.dead"], None),
        (r"^orders\..*", "orders.dead"),
    ],
)
def test_its_own_dead_letters_are_not_what_it_reads(topics: str | list[str], dead_topic: str | None) -> None:
    with pytest.raises(ConfigurationError, match="one that the consumer reads"):
        Consumer(
            topics,
            group="stock",
            bootstrap_servers="127.0.0.1:1",
            start="earliest",
            handler=each(print),
            stores=[MemoryStore()],
            dead_topic=dead_topic,
        )
