"""C12: libpq's sslmode stays what the DSN says, on the stream's connection and on the others; check tells what became of it."""

from __future__ import annotations

import json
import shutil
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdcwatch.database import connect
from cdcwatch.errors import PreconditionError
from cdcwatch.slot.stream import ReplicationConnection
from tests import services
from tests.certificates import Authority
from tests.command import ORDERS, cdcwatch, run_to_the_end, start_cdcwatch, write_configuration
from tests.slots import QUIET
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.certificates import Certificate


class Encrypted:
    """A server that lets nobody in without TLS but the role plain; its certificate may be changed."""

    def __init__(self, server: LocalPostgres, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.authority, self.other = Authority(folder / "good"), Authority(folder / "other")
        self.expired = Authority(folder / "expired", years=(2020, 2021))
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE ROLE plain LOGIN SUPERUSER")
            connection.execute(ORDERS)
        hba = server.directory / "data" / "pg_hba.conf"
        hba.write_text(
            "hostssl all postgres all trust\nhostssl replication postgres all trust\nhost all plain all trust\n"
        )
        self._place(self.authority.issue("IP:127.0.0.1"))
        server.settings["ssl"] = "on"
        server.reload()
        wait_until(self.has_tls, 20, "the server has TLS")

    def dsn(self, parameters: str = "", user: str = "postgres") -> str:
        return f"{self.server.dsn(user=user)} {parameters}"

    def verified(self, mode: str = "verify-full", authority: Authority | None = None) -> str:
        return f"sslmode={mode} sslrootcert={(authority or self.authority).path}"

    def has_tls(self) -> bool:
        try:
            psycopg.connect(self.dsn("sslmode=require")).close()
        except psycopg.OperationalError:
            return False
        return True

    @contextmanager
    def showing(self, certificate: Certificate) -> Iterator[None]:
        """The server has another certificate for a while."""
        kept = [self._data / name for name in ("server.crt", "server.key")]
        before = [path.read_bytes() for path in kept]
        mark = self.server.log_path.stat().st_size
        self._place(certificate)
        self._reload(mark)
        try:
            yield
        finally:
            mark = self.server.log_path.stat().st_size
            for path, content in zip(kept, before, strict=True):
                path.write_bytes(content)
            self._reload(mark)

    def _reload(self, mark: int) -> None:
        self.server.reload()
        wait_until(
            lambda: b"reloading configuration" in self.server.log_path.read_bytes()[mark:], 20, "the server reloads"
        )

    @property
    def _data(self) -> Path:
        return self.server.directory / "data"

    def _place(self, certificate: Certificate) -> None:
        for name, source in (("server.crt", certificate.path), ("server.key", certificate.key)):
            kept = self._data / name
            shutil.copy(source, kept)
            kept.chmod(0o600)
            if self.server._user is not None:
                shutil.chown(kept, self.server._user)
        self.server.settings |= {"ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    with services.local_postgres() as server:
        yield Encrypted(server, tmp_path_factory.mktemp("certificates"))


def told(path: Path, dsn: str, rest: str = QUIET) -> dict[str, dict[str, Any]]:
    """What check says, by the name of the check."""
    ended = cdcwatch("check", "--json", "-c", write_configuration(path, dsn, rest))
    return {one["name"]: one for one in json.loads(ended.out)["checks"]}


def tls_of(path: Path, dsn: str) -> str:
    found = told(path, dsn)
    return str((found.get("tls") or found["database"])["message"])


def test_c12_without_tls_on_the_server(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    shop = tmp_path / "shop.toml"
    assert tls_of(shop, f"{own_postgres.dsn()} sslmode=prefer") == "not encrypted, and doesn't leave this machine"
    assert tls_of(shop, own_postgres.dsn()) == "not encrypted, and doesn't leave this machine"
    for mode in ("require", "verify-full"):
        path = write_configuration(tmp_path / "tls.toml", f"{own_postgres.dsn()} sslmode={mode}")
        ended = cdcwatch("check", "-c", path)
        assert ended.code == 3, ended
        assert ended.err.count("\n") == 2
    assert "server does not support SSL" in tls_of(shop, f"{own_postgres.dsn()} sslmode=require")


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_c12_both_connections_are_encrypted(encrypted: Encrypted, mode: str) -> None:
    dsn = encrypted.dsn(encrypted.verified(mode))
    with connect(dsn, application_name="close") as closing_one, closing(ReplicationConnection(dsn)) as stream:
        for pid in (closing_one.info.backend_pid, stream.pid):
            row = closing_one.execute("SELECT ssl, version FROM pg_stat_ssl WHERE pid = %s", [pid]).fetchone()
            assert row is not None
            assert (row[0], row[1][:4]) == (True, "TLSv")


def test_c12_what_check_says_of_each_mode(encrypted: Encrypted, tmp_path: Path) -> None:
    shop = tmp_path / "shop.toml"
    assert tls_of(shop, encrypted.dsn("sslmode=prefer")).startswith("encrypted (TLS")
    assert "would also prove that it is the right server" in tls_of(shop, encrypted.dsn("sslmode=require"))
    for mode in ("verify-ca", "verify-full"):
        assert "the server's certificate is verified" in tls_of(shop, encrypted.dsn(encrypted.verified(mode)))
    assert tls_of(shop, encrypted.dsn("sslmode=disable", "plain")) == "not encrypted, and doesn't leave this machine"
    by_the_way = f'replication_dsn = "{encrypted.dsn("sslmode=disable", "plain")}"\n{QUIET}'
    message = told(shop, encrypted.dsn(encrypted.verified()), by_the_way)["tls"]["message"]
    assert message.startswith("postgres.dsn encrypted (TLS")
    assert "postgres.replication_dsn not, and doesn't leave this machine" in message
    refused = told(shop, encrypted.dsn("sslmode=disable"))["database"]
    assert "no encryption" in refused["message"]
    assert "sslmode=verify-full" in refused["remedy"]


REFUSALS = {
    "another host": ("does not match host name", "connect by a name that the server's certificate holds"),
    "another authority": ("certificate verify failed", "set sslrootcert to the authority"),
    "an expired authority": ("certificate verify failed", "renew what has expired"),
    "an expired certificate": ("certificate verify failed", "renew what has expired"),
    "no authority": ("root certificate file", "set sslrootcert"),
}


@contextmanager
def refused(encrypted: Encrypted, why: str) -> Iterator[str]:
    """A DSN that the server's certificate is not good enough for."""
    certificate, parameters = None, encrypted.verified()
    if why == "another host":
        parameters += " host=localhost hostaddr=127.0.0.1"
    elif why == "another authority":
        parameters = encrypted.verified(authority=encrypted.other)
    elif why == "an expired authority":
        certificate, parameters = (
            encrypted.expired.issue("IP:127.0.0.1"),
            encrypted.verified(authority=encrypted.expired),
        )
    elif why == "an expired certificate":
        certificate = encrypted.authority.issue("IP:127.0.0.1", years=(2020, 2021))
    else:
        parameters = "sslmode=verify-full sslrootcert=/nowhere/root.crt"
    if certificate is None:
        yield encrypted.dsn(parameters)
        return
    with encrypted.showing(certificate):
        yield encrypted.dsn(parameters)


@pytest.mark.parametrize("why", REFUSALS)
def test_c12_what_is_not_proven_is_refused_at_once_on_either_connection(
    encrypted: Encrypted, tmp_path: Path, why: str
) -> None:
    message, remedy = REFUSALS[why]
    with refused(encrypted, why) as dsn:
        for made in (lambda: connect(dsn, application_name="close"), lambda: ReplicationConnection(dsn)):
            with pytest.raises(PreconditionError, match=message) as caught:
                made()
            assert "\n" not in str(caught.value)
            assert remedy in caught.value.remedy
        ended = cdcwatch("check", "-c", write_configuration(tmp_path / "shop.toml", dsn, QUIET))
        assert (ended.code, ended.err.count("\n")) == (3, 2), ended
        by_the_way = f'replication_dsn = "{dsn}"\n{QUIET}'
        found = told(tmp_path / "shop.toml", encrypted.dsn("sslmode=require"), by_the_way)["replication"]
        assert message in found["message"]
        assert remedy in found["remedy"]


def test_c12_run_refuses_them_too_and_works_through_verify_full(encrypted: Encrypted, tmp_path: Path) -> None:
    shop = tmp_path / "shop.toml"
    rest = f'[slot]\nname = "orders"\n{QUIET}'
    with refused(encrypted, "another authority") as dsn:
        ended = run_to_the_end("run", "-c", write_configuration(shop, dsn, rest))
        assert (ended.code, ended.err.count("remedy:")) == (3, 1), ended
    verified = encrypted.dsn(encrypted.verified())
    path = write_configuration(shop, verified, rest)
    assert cdcwatch("slot", "create", "-c", path).code == 0
    with refused(encrypted, "another authority") as dsn:
        write_configuration(shop, verified, f'replication_dsn = "{dsn}"\n{rest}')
        ended = run_to_the_end("run", "-c", path)
        assert (ended.code, ended.err.count("remedy:")) == (3, 1), ended
    process = start_cdcwatch("run", "-c", write_configuration(shop, verified, rest))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        with psycopg.connect(encrypted.dsn(), autocommit=True) as connection:
            connection.execute("INSERT INTO orders VALUES (1, 'pending', clock_timestamp())")
            count = "SELECT count(*) FROM orders WHERE status = 'expired'"
            wait_until(lambda: connection.execute(count).fetchone() == (1,), 30, "the order is closed")
            links = connection.execute(
                "SELECT application_name, bool_and(ssl) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
                " WHERE application_name LIKE 'cdcwatch%' GROUP BY 1"
            ).fetchall()
            assert {"cdcwatch", "cdcwatch close"} <= {name for name, _ in links}
            assert all(is_encrypted for _, is_encrypted in links)
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0
