"""A2: a library that is absent, not let in, or of another build; none of them is an extension to create."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psycopg
import pytest

from cdcwatch.errors import PreconditionError
from cdcwatch.settings import PostgresSettings, Settings, SinkSettings
from cdcwatch.slot.creation import create_slot
from cdcwatch.slot.preflight import preflight
from tests.command import ORDERS
from tests.slots import let_in

if TYPE_CHECKING:
    from cdcwatch.local import LocalPostgres
    from cdcwatch.slot.check import Check


def _settings(server: LocalPostgres, plugin: str) -> Settings:
    """No settings file can name this plugin: it stands for a server on which ours is not as it should be."""
    settings = Settings(postgres=PostgresSettings(dsn=server.dsn()), sink=SinkSettings(kind="none"))
    return msgspec.structs.replace(
        settings,
        slot=msgspec.structs.replace(settings.slot, plugin=plugin),  # type: ignore[arg-type]
    )


def _told(server: LocalPostgres, plugin: str) -> Check:
    """What check says of the plugin, and create with it."""
    settings = _settings(server, plugin)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        check = next(one for one in preflight(connection, settings) if one.name == "plugin")
    with pytest.raises(PreconditionError) as caught:
        create_slot(settings, timeout_s=5)
    assert check.state == "fail"
    assert (str(caught.value), caught.value.remedy) == (check.message, check.remedy)
    assert "CREATE EXTENSION" not in check.message + check.remedy
    return check


def test_a02_three_states_of_a_library_are_told_apart(own_postgres: LocalPostgres) -> None:
    another = own_postgres.directory / "another.so"  # no output plugin of any PostgreSQL
    shutil.copy(_some_library(), another)
    another.chmod(0o755)
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        connection.execute(ORDERS)
        let_in(connection, "decoderbufs", str(another))
    absent = _told(own_postgres, "decoderbufs")
    assert "could not access file" in absent.message
    assert "install the library of decoderbufs" in absent.remedy
    assert "no extension has to be created" in absent.remedy

    misbuilt = _told(own_postgres, str(another))
    assert "incompatible library" in misbuilt.message
    assert f"that was built for PostgreSQL {own_postgres.major}" in misbuilt.remedy

    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").fetchall():
            return
    unlisted = _told(own_postgres, "wal2json")
    assert "does not list wal2json" in unlisted.message


def _some_library() -> Path:
    """A shared library that is there wherever PostgreSQL is."""
    for folder in (Path("/usr/lib"), Path("/lib"), Path("/usr/lib64")):
        for path in sorted(folder.glob("*/libz.so.1")) + sorted(folder.glob("libz.so.1")):
            return path.resolve()
    pytest.skip("no shared library to pass off as a plugin")
