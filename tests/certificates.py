"""Certificate authorities of a test's own, by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_CONFIGURATION = """
[ca]
default_ca = own
[own]
database = {folder}/index
rand_serial = yes
new_certs_dir = {folder}
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[authority]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = hash
[host]
basicConstraints = CA:FALSE
subjectAltName = {names}
"""


@dataclass(frozen=True)
class Certificate:
    """PEM files."""

    path: Path
    key: Path


class Authority:
    """Valid between two years, as is what it issues unless told otherwise."""

    def __init__(self, folder: Path, *, years: tuple[int, int] = (2020, 2099)) -> None:
        found = shutil.which("openssl")
        if found is None:
            pytest.skip("openssl is not installed")
        self._openssl, self._folder, self._count = found, folder, 0
        folder.mkdir()
        (folder / "index").touch()
        self._own = self._made("ca", "authority", "", years)
        self.path = self._own.path

    def issue(self, *names: str, years: tuple[int, int] = (2020, 2099)) -> Certificate:
        """For hosts, as `IP:127.0.0.1` or `DNS:localhost`."""
        self._count += 1
        return self._made(f"host{self._count}", "host", ",".join(names), years)

    def _made(self, name: str, section: str, names: str, years: tuple[int, int]) -> Certificate:
        folder = self._folder
        configuration, request = folder / f"{name}.cnf", folder / f"{name}.csr"
        made = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
        configuration.write_text(_CONFIGURATION.format(folder=folder, names=names or "DNS:authority"))
        self._run(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", made.key, "-out", request, "-subj", f"/CN={folder.name} {name}"),
        )
        signer = ("-selfsign", "-keyfile", made.key) if section == "authority" else self._signer()
        start, end = (f"{year}0101000000Z" for year in years)
        self._run(
            *("ca", "-batch", "-notext", "-config", configuration, "-extensions", section, *signer),
            *("-in", request, "-out", made.path, "-startdate", start, "-enddate", end),
        )
        return made

    def _signer(self) -> tuple[str | Path, ...]:
        return ("-cert", self._own.path, "-keyfile", self._own.key)

    def _run(self, *arguments: str | Path) -> None:
        done = subprocess.run([self._openssl, *arguments], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
