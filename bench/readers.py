"""The programs whose reading of a slot is measured. Another one to be measured beside them is another entry."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import program
from bench.peers import Missing, debezium
from bench.servers import PLUGINS, PUBLICATION
from cdcwatch.configuration import load_settings
from cdcwatch.decode.plugins import several_factory
from cdcwatch.pipeline.inquiry import Inquiry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.servers import Database, Topic

DEBEZIUM = f"Debezium {debezium.VERSION}, JSON, no sink"
DEBEZIUM_WARM = f"{DEBEZIUM}: the second half of its events"
_PSYCOPG2 = "psycopg2 and json.loads, wal2json"
_PSYCOPG2_READER = Path(__file__).with_name("peers") / "psycopg2_reader.py"


def baseline_of(plugin: str) -> str:
    """What a reader of that plugin is compared with."""
    return f"pg_recvlogical, {plugin}"


BASELINE = baseline_of("wal2json")


@dataclass(frozen=True)
class Place:
    """What a reader is told."""

    base: Database
    slot: str
    end_lsn: str
    events: int
    directory: Path
    topic: Topic | None


@dataclass(frozen=True)
class Reader:
    """A program that reads the slot to the end and exits."""

    name: str
    plugin: str
    command: Callable[[Place], Sequence[str | Path]]
    publishes: bool = False
    """Whether the topic must hold every event afterwards."""
    is_baseline: bool = False
    may_lag: bool = False
    """It ends by a count of events, and may not have confirmed the last of them."""


def readers(match: str = "", flame: Path | None = None) -> tuple[list[Reader], dict[str, str]]:
    """Those that can be had, and of the others the name and what is missing.

    `match`: whose name holds it, and the baselines. `flame`: where a flame graph of cdcwatch is written to.
    """
    ours = [
        *(_cdcwatch(plugin, "", flame) for plugin in PLUGINS),
        *(_cdcwatch(plugin, "exactly_once", flame) for plugin in PLUGINS),
        _cdcwatch("wal2json", "at_least_once", flame),
    ]
    found = [
        Reader(baseline_of(plugin), plugin, partial(_plain, plugin=plugin), is_baseline=True) for plugin in PLUGINS
    ]
    found += [
        Reader(f"{baseline_of(plugin)}, cdcwatch's options", plugin, partial(_as_ours, plugin=plugin))
        for plugin in PLUGINS
    ]
    found, missing = [one for one in [*found, *ours] if one.is_baseline or match in one.name], {}
    if match in _PSYCOPG2:
        if importlib.util.find_spec("psycopg2"):
            found.append(Reader(_PSYCOPG2, "wal2json", _psycopg2))
        else:
            missing[_PSYCOPG2] = "pip install psycopg2-binary"
    if match in DEBEZIUM:
        try:
            command = partial(_debezium, engine=debezium.Debezium())
        except Missing as why:
            missing[DEBEZIUM] = str(why)
        else:
            found.append(Reader(DEBEZIUM, "pgoutput", command, may_lag=True))
    return found, missing


def _plain(place: Place, *, plugin: str) -> list[str | Path]:
    if plugin == "wal2json":
        return _pg_recvlogical(place, {"format-version": "2", "add-tables": "public.orders"})
    return _pg_recvlogical(place, {"proto_version": "1", "publication_names": PUBLICATION})


def _as_ours(place: Place, *, plugin: str) -> list[str | Path]:
    """With the options that cdcwatch asks the plugin for."""
    path = program.configuration(place.directory, place.base, slot=place.slot, plugin=plugin, topic=None)
    settings = load_settings(path, {})
    found = Inquiry(settings).surroundings()
    decoder = several_factory(
        plugin, found.tables, publication=PUBLICATION, server_version=found.server_version, leaves=[None]
    )()
    return _pg_recvlogical(place, decoder.options())


def _pg_recvlogical(place: Place, options: Mapping[str, str]) -> list[str | Path]:
    return [
        place.base.server.binaries / "pg_recvlogical",
        *("-d", place.base.dsn, "-S", place.slot, "--start", "--no-loop", f"--endpos={place.end_lsn}"),
        *("-f", "/dev/null", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))),
    ]


def _cdcwatch(plugin: str, delivery: str, flame: Path | None) -> Reader:
    def command(place: Place) -> list[str]:
        path = program.configuration(
            place.directory, place.base, slot=place.slot, plugin=plugin, topic=place.topic, delivery=delivery
        )
        command = program.run_command(path, "--role", "read", "--until", place.end_lsn)
        return program.profiled(command, flame) if flame else command

    sink = f"Kafka {delivery}" if delivery else "no sink"
    return Reader(f"cdcwatch, {plugin}, {sink}", plugin, command, publishes=bool(delivery))


def _debezium(place: Place, *, engine: debezium.Debezium) -> list[str]:
    return engine.command(place.base, place.slot, place.events, *debezium.TUNED)


def _psycopg2(place: Place) -> list[str | Path]:
    return [sys.executable, _PSYCOPG2_READER, place.base.dsn, place.slot, place.end_lsn]
