"""C12: libpq's sslmode stays what the DSN says; check tells whether the link is encrypted."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.command import cdcwatch, write_configuration
from tests.slots import QUIET

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres


_AUTHORITY = """
[ca]
default_ca = own
[own]
database = {folder}/index
rand_serial = yes
new_certs_dir = {folder}
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = IP:127.0.0.1
basicConstraints = CA:TRUE
"""


def _certificate(folder: Path, name: str, *, years: tuple[int, int] = (2020, 2099)) -> Path:
    """A self-signed certificate for 127.0.0.1, its own authority, valid between two years; the key beside it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    own = folder / name
    own.mkdir()
    (own / "index").touch()
    (own / "ca.cnf").write_text(_AUTHORITY.format(folder=own))
    key, request, certificate = own / "c.key", own / "c.csr", own / "c.crt"
    start, end = (f"{year}0101000000Z" for year in years)
    for arguments in (
        ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=shop"],
        [
            *("ca", "-batch", "-selfsign", "-notext", "-config", own / "ca.cnf", "-keyfile", key, "-in", request),
            *("-out", certificate, "-startdate", start, "-enddate", end),
        ],
    ):
        made = subprocess.run([openssl, *arguments], capture_output=True, check=False)
        assert made.returncode == 0, made.stderr
    return certificate


def _encrypt(server: LocalPostgres, certificate: Path) -> None:
    for suffix, setting in ((".crt", "ssl_cert_file"), (".key", "ssl_key_file")):
        kept = server.directory / "data" / f"server{suffix}"
        shutil.copy(certificate.with_suffix(suffix), kept)
        kept.chmod(0o600)
        if server._user is not None:
            shutil.chown(kept, server._user)
        server.settings[setting] = str(kept)
    server.settings["ssl"] = "on"
    server.restart()


class Link:
    """What check says over a DSN with further parameters."""

    def __init__(self, server: LocalPostgres, path: Path) -> None:
        self._server, self._path = server, path

    def tls(self, parameters: str) -> str:
        file = write_configuration(self._path, f"{self._server.dsn()} {parameters}", QUIET)
        told = json.loads(cdcwatch("check", "--json", "-c", file).out)["checks"]
        return str(next(one["message"] for one in told if one["name"] in {"tls", "database"}))


def test_c12_without_tls_on_the_server(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    link = Link(own_postgres, tmp_path / "shop.toml")
    assert link.tls("sslmode=prefer") == "not encrypted, and doesn't leave this machine"
    assert link.tls("") == "not encrypted, and doesn't leave this machine"
    for mode in ("require", "verify-full"):
        ended = cdcwatch(
            "check", "-c", write_configuration(tmp_path / "tls.toml", f"{own_postgres.dsn()} sslmode={mode}")
        )
        assert ended.code == 3, ended
        assert ended.err.count("\n") == 2
    assert "server does not support SSL" in link.tls("sslmode=require")


def test_c12_with_tls_on_the_server(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    certificate = _certificate(tmp_path, "good")
    _encrypt(own_postgres, certificate)
    link = Link(own_postgres, tmp_path / "shop.toml")
    assert link.tls("sslmode=prefer").startswith("encrypted (TLS")
    assert "would also prove that it is the right server" in link.tls("sslmode=require")
    verified = f"sslmode=verify-full sslrootcert={certificate}"
    assert "the server's certificate is verified" in link.tls(verified)
    assert "does not match host name" in link.tls(f"{verified} host=localhost")
    assert "certificate verify failed" in link.tls(f"sslmode=verify-full sslrootcert={_certificate(tmp_path, 'other')}")
    assert link.tls("sslmode=disable") == "not encrypted, and doesn't leave this machine"


def test_c12_an_expired_certificate_is_refused_where_it_is_verified(
    own_postgres: LocalPostgres, tmp_path: Path
) -> None:
    certificate = _certificate(tmp_path, "expired", years=(2020, 2021))
    _encrypt(own_postgres, certificate)
    link = Link(own_postgres, tmp_path / "shop.toml")
    assert link.tls("sslmode=require").startswith("encrypted (TLS")
    assert "certificate verify failed" in link.tls(f"sslmode=verify-ca sslrootcert={certificate}")
