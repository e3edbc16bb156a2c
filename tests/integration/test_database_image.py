"""What docker/postgres.Dockerfile's image runs at its first start, on servers that know a list of plugins and that don't."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.command import run_to_the_end

if TYPE_CHECKING:
    from cdcwatch.local import LocalPostgres
    from tests.services import Database, Kafka

DOCKER = Path(__file__).parents[2] / "docker"
_NAMED = "WHERE name = 'output_plugin_libraries'"
HAS_LIST = f"SELECT count(*) FROM pg_settings {_NAMED}"
WRITTEN = f"SELECT count(*) FROM pg_file_settings {_NAMED} AND sourcefile LIKE '%auto.conf'"


def _environment(server: LocalPostgres, password: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{server.binaries}{os.pathsep}{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "POSTGRES_USER": "postgres",
        "POSTGRES_DB": "postgres",
        "CDCWATCH_PASSWORD": password,
        "CDCWATCH_INSTALL_SQL": str(DOCKER.parent / "sql/install.sql"),
    }


def _allow(server: LocalPostgres) -> None:
    """As the image's entrypoint hands a .sql file to psql."""
    command = [
        "psql",
        "-v",
        "ON_ERROR_STOP=1",
        "--no-psqlrc",
        "-U",
        "postgres",
        "-d",
        "postgres",
        "-f",
        "10-logical.sql",
    ]
    subprocess.run(command, cwd=DOCKER / "postgres", env=_environment(server, ""), check=True, capture_output=True)


def test_its_first_start_leaves_a_shop_that_check_passes(own_postgres: LocalPostgres, kafka: Kafka, topic: str) -> None:
    _allow(own_postgres)
    own_postgres.reload()
    for _ in range(2):
        subprocess.run(
            ["bash", "20-shop.sh"], cwd=DOCKER / "postgres", env=_environment(own_postgres, 'it\'s \\ "1"'), check=True
        )
    with psycopg.connect(own_postgres.dsn()) as connection:
        assert connection.execute(WRITTEN).fetchone() == connection.execute(HAS_LIST).fetchone()
        assert connection.execute(
            "SELECT rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid WHERE rolname = 'cdcwatch'"
        ).fetchone() == (True,)
    # compose.yaml's configuration, with this server's and this broker's addresses.
    environment = {
        "CDCWATCH_POSTGRES__DSN": own_postgres.dsn(user="cdcwatch"),
        "CDCWATCH_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "CDCWATCH_KAFKA__TOPIC": topic,
    }
    created = run_to_the_end("slot", "create", "-c", DOCKER / "cdcwatch.toml", environment=environment)
    assert created.code == 0, created
    checked = run_to_the_end("check", "-c", DOCKER / "cdcwatch.toml", environment=environment)
    assert checked.code == 0, checked


def test_the_list_of_plugins_is_written_where_the_server_has_one_and_nowhere_else(
    postgres_18: LocalPostgres, database_18: Database
) -> None:
    with database_18.connect() as connection:
        _allow(postgres_18)
        assert connection.execute(WRITTEN).fetchone() == connection.execute(HAS_LIST).fetchone()
        connection.execute("ALTER SYSTEM RESET ALL")
