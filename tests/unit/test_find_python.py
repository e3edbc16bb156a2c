"""`tools/find-python`: which Python `make` takes, and what it says where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/find-python"
NO_ENSUREPIP = '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec "{python}" "$@"\n'


def _asked(wanted: str, *directories: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*map(str, directories), "/usr/bin", "/bin"])
    environment = {"PATH": path, "PYTHON": wanted}
    return subprocess.run([TOOL], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("wanted", ["nowhere", "python3 -u", "/usr/bin", "-c", "exit", "command"])
def test_one_that_was_asked_for_and_is_none_is_told_in_a_line_with_a_remedy(wanted: str) -> None:
    asked = _asked(wanted)
    said, remedy = asked.stderr.splitlines()
    assert (asked.returncode, asked.stdout) == (1, "")
    assert said == f"no Python 3.11 or newer as PYTHON={wanted}"
    assert remedy.startswith("remedy: set PYTHON")
    brought = subprocess.run(
        [TOOL.with_name("bring-packages"), "demo"],
        env={**os.environ, "PYTHON": wanted}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (brought.returncode, brought.stderr) == (1, asked.stderr), "no package mends it"


def test_one_that_was_asked_for_is_the_only_one(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    (place / "own").symlink_to(sys.executable)
    (place / "bare").write_text(NO_ENSUREPIP.format(python=sys.executable))
    (place / "bare").chmod(0o755)
    for name in ("own", "bare"):
        assert _asked(name, place).stdout == f"{place / name}\n"
        assert _asked(str(place / name)).stdout == f"{place / name}\n"
