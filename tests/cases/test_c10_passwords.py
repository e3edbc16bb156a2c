"""C10: a password with every awkward character, in every place it can stand, and never in what we print."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest

from cdcwatch.configuration import load_settings
from tests.command import cdcwatch, run_to_the_end, write_configuration
from tests.services import local_postgres
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalPostgres

PASSWORD = 'p@ss:w/r%d #1"'
# Any of these on the screen is a part of it.
PARTS = ("p@ss", "ss:w", "w/r", "r%d", '#1"')


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalPostgres]:
    """A server on which the role nasty needs its password."""
    with local_postgres() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE nasty LOGIN PASSWORD '{PASSWORD}'")
        hba = server.directory / "data" / "pg_hba.conf"
        hba.write_text("host all nasty 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        server.reload()
        wait_until(lambda: not _may_enter(server), 20, "the server asks for the password")
        yield server


def _may_enter(server: LocalPostgres) -> bool:
    try:
        psycopg.connect(server.dsn(user="nasty"), password="wrong").close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    monkeypatch.delenv("PGPASSWORD", raising=False)


def _said(path: Path, code: int) -> str:
    """What every command says, which must end with `code` and hold no part of the password."""
    said = repr(load_settings(path))
    for arguments in (["check"], ["check", "--debug"], ["slot", "status"], ["slot", "create"], ["pending"]):
        ended = cdcwatch(*arguments, "-c", path)
        if arguments == ["check"]:
            assert ended.code == code, ended
        said += ended.said
    assert not [part for part in PARTS if part in said], said
    return said


def test_the_forms_that_work(guarded: LocalPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    escaped = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    keywords = f"host=127.0.0.1 port={guarded.port} user=nasty dbname=postgres"
    uri = f"postgresql://nasty:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/postgres"
    for dsn in (f"{keywords} password='{escaped}'", uri):
        # 1: the table is missing, so that the role was let in.
        assert "there is no table public.orders" in _said(write_configuration(tmp_path / "shop.toml", dsn), 1)
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"127.0.0.1:{guarded.port}:*:nasty:{PASSWORD.replace(':', chr(92) + ':')}\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    assert "there is no table" in _said(write_configuration(tmp_path / "shop.toml", keywords), 1)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    service = tmp_path / "services"
    service.write_text(
        f"[shop]\nhost=127.0.0.1\nport={guarded.port}\nuser=nasty\ndbname=postgres\npassword={PASSWORD}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    assert "there is no table" in _said(write_configuration(tmp_path / "shop.toml", "service=shop"), 1)
    monkeypatch.setenv("CDCWATCH_POSTGRES__DSN", uri)
    assert "there is no table" in _said(write_configuration(tmp_path / "shop.toml", ""), 1)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://nasty:{password}@127.0.0.1:{port}/postgres",
        "postgres://nasty:{password}@127.0.0.1:{port}/postgres?application_name=x",
        "host=127.0.0.1 port={port} user=nasty password={password}",
        "host=127.0.0.1 port={port} user=nasty password={password} dbname=postgres",
    ],
)
@pytest.mark.parametrize("password", [PASSWORD, "p@ss", "p@ss:w", "12/p@ss", "12/w/r", "p@ss w/r", "w/r%d", "12?p@ss"])
def test_the_forms_that_cannot_work_are_refused_without_showing_it(
    guarded: LocalPostgres, tmp_path: Path, dsn: str, password: str
) -> None:
    text = dsn.format(port=guarded.port, password=password)
    code = (
        3 if "=" in dsn.split("?", maxsplit=1)[0] and " " not in password else 2
    )  # as a keyword it is only a wrong password
    said = _said(write_configuration(tmp_path / "shop.toml", text), code)
    if code == 2:
        assert "percent-encode" in said


def test_a_wrong_password_is_no_outage(guarded: LocalPostgres, tmp_path: Path) -> None:
    uri = f"postgresql://nasty:{quote(PASSWORD[::-1], safe='')}@127.0.0.1:{guarded.port}/postgres"
    said = _said(write_configuration(tmp_path / "shop.toml", uri), 3)
    assert "password authentication failed" in said
    assert "remedy: set the right password" in said


@pytest.mark.parametrize("password", [PASSWORD, "p@ss", "p@ss:w", "12/p@ss", "p@ss w/r"])
def test_the_replication_dsn_is_no_way_around(guarded: LocalPostgres, tmp_path: Path, password: str) -> None:
    """It is read by the stream's own connection, which must not echo it either."""
    raw = f"postgresql://nasty:{password}@127.0.0.1:{guarded.port}/postgres".replace('"', '\\"')
    shop = write_configuration(
        tmp_path / "shop.toml", guarded.dsn(), f'replication_dsn = "{raw}"\n[telemetry]\nlisten = ""\n'
    )
    with psycopg.connect(guarded.dsn(), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, status text, expires_at timestamptz, version int)"
        )
    try:
        _said(shop, 1)
        for arguments in (
            ["run"],
            ["run", "--debug"],
            ["slot", "peek"],
            ["slot", "list"],
            ["slot", "advance", "--to", "current"],
        ):
            ended = run_to_the_end(*arguments, "-c", shop)
            assert ended.code in {2, 3}, ended
            assert not [part for part in PARTS if part in ended.said], ended.said
    finally:
        with psycopg.connect(guarded.dsn(), autocommit=True) as connection:
            connection.execute("DROP TABLE orders")
