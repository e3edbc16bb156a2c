"""H9, H7: a publication that is changed while pgoutput streams takes changes away without a word: found, and remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import cdcwatch
from tests.oracle.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

INSERT = "INSERT INTO orders (id, expires_at) VALUES (%s, now() + interval '1 day')"


@pytest.fixture
def world(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin="pgoutput") as world:
        world.install()
        yield world


@pytest.mark.parametrize(
    ("altered", "said", "mended"),
    [
        ("DROP TABLE orders", "does not hold public.orders", "ADD TABLE orders"),
        (
            "SET (publish = 'insert')",
            "leaves out some kinds of change",
            "SET (publish = 'insert, update, delete, truncate')",
        ),
        ("SET TABLE orders WHERE (id > 100)", "has a row filter", "SET TABLE orders"),
    ],
    ids=["table", "kinds", "rows"],
)
def test_h09_what_the_publication_leaves_out_is_a_gap(world: World, altered: str, said: str, mended: str) -> None:
    name = world.scalar("SELECT pubname FROM pg_publication")
    process = world.run()
    process.wait_ready()
    world.connection.execute(INSERT, [1])
    world.connection.execute(f"ALTER PUBLICATION {name} {altered}")  # type: ignore[call-overload]
    world.connection.execute(INSERT, [2])
    assert process.wait() == 3
    assert f"the publication {name} {said}" in world.log.read_text()
    world.connection.execute(f"ALTER PUBLICATION {name} {mended}")  # type: ignore[call-overload]
    assert world.run().wait() == 3
    with world.running("--accept-gap"):
        world.wait_confirmed()
    assert {record.key for record in world.events()} == {"1", "2"}


@pytest.mark.parametrize(
    ("when", "altered", "mended"),
    [
        ("streaming", "DROP TABLE orders", "ADD TABLE orders"),
        ("down", "SET TABLE orders WHERE (id <> 2)", "SET TABLE orders"),
        ("down", "SET (publish = 'update')", "SET (publish = 'insert, update, delete, truncate')"),
    ],
    ids=["table", "rows", "kinds"],
)
def test_h09_altered_and_put_back_between_two_looks_is_a_gap(
    world: World, altered: str, mended: str, when: str
) -> None:
    name = world.scalar("SELECT pubname FROM pg_publication")
    process = world.run()
    process.wait_ready()
    world.connection.execute(INSERT, [1])
    world.wait_confirmed()
    if when == "down":
        process.stop()
    world.connection.execute(f"ALTER PUBLICATION {name} {altered}")  # type: ignore[call-overload]
    world.connection.execute(INSERT, [2])
    world.connection.execute(f"ALTER PUBLICATION {name} {mended}")  # type: ignore[call-overload]
    if when == "streaming":
        assert process.wait() == 3
        assert "its publication was altered" in world.log.read_text()
    assert world.run().wait() == 3
    with world.running("--accept-gap"):
        world.wait_confirmed()
    assert {record.key for record in world.events()} == {"1", "2"}
    with world.running():
        world.wait_confirmed()


def test_h09_what_others_do_to_the_publication_is_no_gap(world: World) -> None:
    name = world.scalar("SELECT pubname FROM pg_publication")
    with world.running():
        world.connection.execute("CREATE TABLE others (id int PRIMARY KEY)")
        world.connection.execute(f"ALTER PUBLICATION {name} ADD TABLE others")  # type: ignore[call-overload]
        world.connection.execute("VACUUM FREEZE pg_publication, pg_publication_rel, pg_depend")
        world.connection.execute(INSERT, [1])
        world.wait_confirmed()
    world.connection.execute("DROP TABLE others")
    with world.running():
        world.connection.execute(INSERT, [2])
        world.wait_confirmed()
    assert [record.key for record in world.events()] == ["1", "2"]


def test_h09_a_listed_column_is_not_dropped_unless_everything_that_needs_it_goes(world: World) -> None:
    name = world.scalar("SELECT pubname FROM pg_publication")
    process = world.run()
    process.wait_ready()
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        world.connection.execute("ALTER TABLE orders DROP COLUMN version")
    world.connection.execute("ALTER TABLE orders DROP COLUMN version CASCADE")  # takes the table out of the publication
    assert world.scalar("SELECT count(*) FROM pg_publication_rel") == 0
    assert process.wait() == 3
    assert "has no column 'version'" in world.log.read_text()
    world.configuration.write_text(world.configuration.read_text() + '[table]\nversion = ""\n')
    told = world.run()
    assert told.wait() == 3
    assert "the publication of public.orders was altered" in world.log.read_text()
    assert "remedy: mend what `cdcwatch check` tells of it, then cdcwatch run --accept-gap" in world.log.read_text()
    checked = cdcwatch("check", "-c", world.configuration)
    assert f"publication {name} does not hold public.orders" in checked.out


def test_h09_changes_that_the_publication_makes_the_server_refuse_are_told_and_are_no_gap(world: World) -> None:
    """Its column list names every column, which pg_publication_tables shows as it shows none."""
    name = world.scalar("SELECT pubname FROM pg_publication")
    world.connection.execute(f"ALTER PUBLICATION {name} SET TABLE orders (id, status, expires_at, version, note)")  # type: ignore[call-overload]
    process = world.run()
    process.wait_ready()
    world.connection.execute(INSERT, [1])
    world.connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        world.connection.execute("UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 1")
    world.connection.execute(INSERT, [2])
    assert process.wait() == 3
    told = world.log.read_text()
    assert "that the replica identity of public.orders doesn't go with" in told
    assert f"remedy: ALTER PUBLICATION {name} SET TABLE public.orders\n" in told
    world.connection.execute(f"ALTER PUBLICATION {name} SET TABLE public.orders")  # type: ignore[call-overload]
    with world.running():
        world.connection.execute("UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 1")
        world.wait_confirmed()
    world.judge()


def test_h09_a_publication_made_anew_after_changes_is_told_with_the_way_out(world: World) -> None:
    name = world.scalar("SELECT pubname FROM pg_publication")
    world.connection.execute(f"DROP PUBLICATION {name}")  # type: ignore[call-overload]
    world.connection.execute(INSERT, [1])
    world.connection.execute(f"CREATE PUBLICATION {name} FOR TABLE orders")  # type: ignore[call-overload]
    assert world.run().wait() == 3
    log = world.log.read_text()
    assert "changes from before the publication was made" in log
    assert "cdcwatch slot advance --to current" in log
    assert cdcwatch("slot", "advance", "--to", "current", "--yes", "-c", world.configuration).code == 0
    with world.running("--accept-gap"):
        world.wait_confirmed()
    assert {record.key for record in world.events()} == {"1"}
