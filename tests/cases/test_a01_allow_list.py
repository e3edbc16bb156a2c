"""A1: minor releases that let in only the plugins of output_plugin_libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import ORDERS, cdcwatch, write_configuration
from tests.slots import QUIET, let_in, wait_for_plugins

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres


def test_a01_a_plugin_that_is_not_let_in(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", own_postgres.dsn(), QUIET)
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").fetchall():
            pytest.skip("this minor release restricts no plugins")
        connection.execute(ORDERS)
        connection.execute("CREATE ROLE plain LOGIN REPLICATION; GRANT SELECT, UPDATE ON orders TO plain")
        let_in(connection, "pgoutput", "test_decoding")

        refused = cdcwatch("slot", "create", "-c", shop)
        assert refused.code == 3
        remedy = refused.err.partition("remedy: ")[2].strip()
        assert remedy == (
            "ALTER SYSTEM SET output_plugin_libraries = 'pgoutput', 'test_decoding', 'wal2json'; SELECT pg_reload_conf();"
        )
        assert "pgoutput is part of the server" in refused.err
        assert "EXTENSION" not in refused.err
        # A role that may not read the setting learns it from the server's refusal: in the check, and at create.
        plain = write_configuration(tmp_path / "plain.toml", own_postgres.dsn(user="plain"), QUIET)
        for arguments, code in ((["check"], 1), (["slot", "create"], 3)):
            told = cdcwatch(*arguments, "-c", plain)
            assert told.code == code
            assert 'library "wal2json" may not be used as an output plugin' in told.said
            assert remedy in told.said
        assert connection.execute("SELECT FROM pg_replication_slots").fetchall() == []

        for statement in remedy.rstrip(";").split("; "):
            connection.execute(statement)
        wait_for_plugins(connection, "pgoutput", "test_decoding", "wal2json")
        assert cdcwatch("slot", "create", "-c", plain).code == 0
