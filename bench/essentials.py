"""The few sentences that say what a user gets, made of the results: for README and documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.closing import BASELINE
from bench.readers import DEBEZIUM_WARM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from bench.report import Table

    Figure: TypeAlias = Callable[[str, str, str, str], str]
    """By part, a piece of the table's title, the beginning of a row's name, and column."""

SAME_PLUGIN = "to it with the same plugin"
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
    def to_same(reader: str) -> str:
        return f"{figure('read', '', reader, SAME_PLUGIN)} x"

    debezium = figure("read", "", DEBEZIUM_WARM, SAME_PLUGIN)
    return (
        "Reading a backlog, beside pg_recvlogical, which writes the same plugin's bytes to /dev/null and parses"
        " nothing: with every event in Kafka, exactly once, and confirmed,"
        f" {to_same(EXACTLY_ONCE.format('wal2json'))} its rate with wal2json and"
        f" {to_same(EXACTLY_ONCE.format('pgoutput'))} with pgoutput; without a sink"
        f" {to_same('cdcwatch, wal2json, no sink')} and {to_same('cdcwatch, pgoutput, no sink')}. Debezium without a"
        f" sink, start and warm-up left out: {debezium} x."
    )


def _lateness(figure: Figure) -> str:
    def p99(title: str, closer: str) -> str:
        return f"{float(figure('lateness', title, closer, 'p99').replace(',', '')):,.0f} ms"

    def cpu_s(closer: str) -> str:
        client, server, broker = (figure("lateness", spread, closer, of) for of in ("CPU s", "PostgreSQL", "Kafka"))
        return f"{client} s of CPU, {server} of PostgreSQL's, {broker} of Kafka's"

    spread, instant, polling = "4,000 deadlines", "10,000 deadlines", BASELINE
    return (
        "Lateness, 99 of 100 orders within: 4,000 deadlines over 20 s"
        f" {p99(spread, 'cdcwatch, wal2json')} ({polling}: {p99(spread, polling)}; a tuned job queue, River:"
        f" {p99(spread, 'River')}); 10,000 at one instant {p99(instant, 'cdcwatch, wal2json')} with wal2json and"
        f" {p99(instant, 'cdcwatch, pgoutput')} with pgoutput (that UPDATE {p99(instant, polling)}, River"
        f" {p99(instant, 'River')}). None early. An event for every change is not free: those 4,000 orders took"
        f" {cpu_s('cdcwatch, wal2json')}; the polling UPDATE {cpu_s(polling)}."
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
    process = "Memory of the process"
    return (
        f"Memory: {figure('memory', process, 'cdcwatch, wal2json', 'idle RSS MB')} MB idle,"
        f" {figure('memory', process, 'cdcwatch, pgoutput', 'full load RSS MB')} MB at its peak under full load,"
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
