"""The few sentences that say what a user gets, made of the results: for README and documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from bench.report import Table

    Figure: TypeAlias = Callable[[str, str, str, str], str]
    """By part, a piece of the table's title, the beginning of a row's name, and column."""

FLOOR = "to pg_recvlogical wal2json"
TOLD = ("read", "lateness", "closes", "memory")
"""The parts that the figures are of."""
EXACTLY_ONCE = "cdcwatch, {}, Kafka exactly_once"


class _NotMeasuredError(Exception):
    """A figure that was not measured."""


def essentials(tables: Mapping[str, list[Table]]) -> list[str]:
    """Of the parts' tables by the part's name; a sentence whose figures were not all measured is left out."""
    said = []
    for sentence in (_reading, _lateness, _closes, _memory):
        try:
            said.append(sentence(lambda part, title, row, column: _figure(tables, part, title, row, column)))
        except _NotMeasuredError:
            continue
    return said


def _reading(figure: Figure) -> str:
    def to_baseline(reader: str) -> str:
        return f"{figure('read', '', reader, FLOOR)} x"

    return (
        "Reading a backlog, with every event in Kafka, exactly once, and confirmed: "
        f"{to_baseline(EXACTLY_ONCE.format('wal2json'))} the rate at which pg_recvlogical writes wal2json's bytes to"
        f" /dev/null on the same machine, with pgoutput {to_baseline(EXACTLY_ONCE.format('pgoutput'))}; without a sink"
        f" {to_baseline('cdcwatch, wal2json, no sink')} and {to_baseline('cdcwatch, pgoutput, no sink')}. Debezium"
        f" without a sink: {to_baseline('Debezium')}."
    )


def _lateness(figure: Figure) -> str:
    def p99(title: str, closer: str) -> str:
        return f"{float(figure('lateness', title, closer, 'p99').replace(',', '')):,.0f} ms"

    spread, instant = "4,000 deadlines", "10,000 deadlines"
    return (
        "Lateness, 99 of 100 orders within: 4,000 deadlines over 20 s"
        f" {p99(spread, 'cdcwatch, wal2json')} (a tuned job queue, River, {p99(spread, 'River')}); 10,000 at one"
        f" instant {p99(instant, 'cdcwatch, wal2json')} with wal2json and {p99(instant, 'cdcwatch, pgoutput')}"
        f" with pgoutput (River {p99(instant, 'River')}). None early."
    )


def _closes(figure: Figure) -> str:
    def rate(what: str) -> str:
        return figure("closes", "", what, "closes/s")

    return (
        f"Closes a second, slot and Kafka on, everything on one machine: {rate('cdcwatch, wal2json')} with wal2json,"
        f" {rate('cdcwatch, pgoutput')} with pgoutput; an UPDATE loop that does nothing else, on one"
        f" connection, {rate('a plain UPDATE')}."
    )


def _memory(figure: Figure) -> str:
    return (
        f"Memory: {figure('memory', 'Memory of the process', 'cdcwatch, wal2json', 'idle RSS MB')} MB idle,"
        f" {figure('memory', 'Memory of pending', '1,000,000', 'bytes each')} bytes a pending order at a million of"
        " them."
    )


def _figure(tables: Mapping[str, list[Table]], part: str, title: str, row: str, column: str) -> str:
    """Of the first table with `title` in its title, the first row that begins with `row`."""
    for table in tables.get(part, []):
        if title in table.title and column in table.columns:
            at = list(table.columns).index(column)
            found = next((cells[at] for cells in table.rows if cells[0].startswith(row)), "-")
            if found != "-":
                return found
    raise _NotMeasuredError
