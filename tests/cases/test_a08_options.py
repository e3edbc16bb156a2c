"""A8: an output plugin is sent only options that it knows; one that doesn't know ours is told before the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.inspection.changes import options_of
from cdcwatch.settings import Settings
from cdcwatch.slot.catalog import load_table
from cdcwatch.slot.facts import read_all_facts
from cdcwatch.slot.preflight import judge
from cdcwatch.slot.probe import probe_plugin
from tests.command import cdcwatch, run_to_the_end
from tests.slots import settings_for, slots_named

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database


@pytest.mark.parametrize("has_slot", [False, True])
def test_a08_our_options_are_known(database: Database, slot: str, shop: Path, *, has_slot: bool) -> None:
    settings = settings_for(database, slot)
    if has_slot:
        assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        facts = read_all_facts(connection, settings, options_of(settings))
        assert facts.probe is not None
        assert facts.probe.knows_options
        check = next(one for one in judge(facts) if one.name == "plugin")
        assert (check.state, check.message) == ("ok", "the server loads wal2json and knows every option")
        assert len(slots_named(connection, slot)) == int(has_slot)
        assert not connection.execute("SELECT FROM pg_replication_slots WHERE temporary").fetchall()


@pytest.mark.parametrize(
    "options", [{"proto_version": "1"}, {"numeric-data-types-as-string": "yes please"}, {"format-version": "3"}]
)
@pytest.mark.parametrize("has_slot", [False, True])
def test_a08_an_option_it_does_not_know_is_told_with_its_name(
    database: Database, slot: str, shop: Path, options: dict[str, str], *, has_slot: bool
) -> None:
    if has_slot:
        assert cdcwatch("slot", "create", "-c", shop).code == 0
    probe = probe_plugin(settings_for(database, slot), options, own_slot=slot if has_slot else None)
    assert probe.was_loaded
    assert probe.refusal is not None
    assert probe.refusal.remedy.startswith("this wal2json doesn't know an option")
    with database.connect() as connection:
        assert len(slots_named(connection, slot)) == int(has_slot)


def test_a08_the_slots_own_plugin_decides(database: Database, slot: str, shop: Path) -> None:
    """Configured for wal2json, and the slot is pgoutput's: it is looked into by its own, and check says so."""
    published = shop.with_name("pgoutput.toml")
    published.write_text(shop.read_text().replace("[slot]\n", '[slot]\nplugin = "pgoutput"\n'))
    assert cdcwatch("slot", "create", "-c", published).code == 0
    with database.connect() as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
        assert load_table(connection, Settings()).qualified_name == "public.orders"
    told = cdcwatch("check", "-c", shop)
    assert told.code == 1
    assert f"slot {slot} has the plugin pgoutput, not wal2json" in told.out
    shown = cdcwatch("slot", "peek", "-c", published)
    assert "scheduled 2030-01-01T00:00:00.000000Z" in shown.out


@pytest.mark.parametrize(("made", "configured"), [("pgoutput", "wal2json"), ("wal2json", "pgoutput")])
def test_a08_run_names_the_slots_own_plugin_before_its_options_are_refused(
    database: Database, slot: str, shop: Path, made: str, configured: str
) -> None:
    assert cdcwatch("slot", "create", "--plugin", made, "-c", shop).code == 0
    shop.write_text(shop.read_text().replace("[slot]\n", f'[slot]\nplugin = "{configured}"\n'))
    told = run_to_the_end("run", "-c", shop)
    assert told.code == 3
    assert f"slot {slot} has the plugin {made}, not {configured}\n" in told.err
    assert f'remedy: set slot.plugin = "{made}"' in told.err
