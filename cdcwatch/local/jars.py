"""Java programs from their Maven artifacts: brought once, kept in a cache."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from cdcwatch.local.binaries import find_maven
from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.process import launched

_COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")
_MAVEN_TIMEOUT_S = 600


def cache() -> Path:
    """CDCWATCH_CACHE, else ~/.cache/cdcwatch."""
    return Path(os.environ.get("CDCWATCH_CACHE") or Path.home() / ".cache" / "cdcwatch").absolute()


def bring(pom: Path, name: str, *, what: str) -> Path:
    """The directory `name` of the cache, with the jars that the pom asks for at run time.

    LocalServiceError without Maven or its repository; `what` is what it then could not bring.
    """
    jars = cache() / name
    if jars.is_dir():
        return jars
    maven = find_maven()
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache(), prefix="unfinished-") as unfinished:
        brought = Path(unfinished) / "jars"
        copied = shutil.copy(pom, Path(unfinished) / "pom.xml")
        options = ["-q", "-B", "-f", str(copied), _COPY_JARS, "-DincludeScope=runtime", f"-DoutputDirectory={brought}"]
        done = subprocess.run(
            launched([maven, *options], user=None, death_signal=signal.SIGTERM),
            cwd=unfinished,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_MAVEN_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise LocalServiceError(
                f"Maven could not bring {what}: {reason(done.stdout)}",
                remedy="see that Maven reaches its repository (proxy and mirror: ~/.m2/settings.xml)",
            )
        try:
            brought.rename(jars)
        except OSError:  # another process was quicker
            if not jars.is_dir():
                raise
    return jars


def reason(output: bytes) -> str:
    """The first line marked as an error, else the last line that says something."""
    lines = [line.strip() for line in _TERMINAL_CODE.sub("", output.decode(errors="replace")).split("\n")]
    said = [line for line in lines if line]
    return next((line for line in said if "ERROR" in line), said[-1] if said else "it said nothing")
