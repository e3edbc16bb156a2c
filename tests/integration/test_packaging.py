"""What is installed is what is in the tree: wheel and sdist are built, and the wheel of the sdist goes into a clean environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

from cdcwatch import __version__
from tests.archives import unpack

ROOT = Path(__file__).parents[2]
# Ways in which pip says that there is no registry to ask: nothing is wrong with the package then.
OFFLINE = ("Failed to establish a new connection", "Connection refused", "Temporary failure in name resolution")
LOOKS = """
import importlib, pkgutil, cdcwatch
OF_AN_EXTRA = {"cdcwatch.tracing.spans", "cdcwatch.tracing.edges", "cdcwatch.handoff.kafka.avro", "cdcwatch.handoff.kafka.registry"}
from importlib import resources
from cdcwatch.queries import query, script
print(cdcwatch.__file__)
assert "CREATE ROLE" in script("install") and query("close", "read_clock")
for module in pkgutil.walk_packages(cdcwatch.__path__, "cdcwatch."):
    if not module.name.endswith("__main__") and module.name not in OF_AN_EXTRA and ".redis." not in module.name:
        importlib.import_module(module.name)
assert "DeadlineEvent" in resources.files("cdcwatch").joinpath("schemas/deadline-event.v1.avsc").read_text()
for module, extra in (("kafka.avro", "avro"), ("redis.bus", "redis")):
    try:
        importlib.import_module(f"cdcwatch.handoff.{module}")
    except Exception as error:
        assert error.remedy == f"pip install 'cdcwatch[{extra}]'", error
"""


def _run(*command: str | Path, cwd: Path) -> str:
    ended = subprocess.run([*command], cwd=cwd, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _build(source: Path, into: Path, *targets: str) -> None:
    _run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-d",
        into,
        *[part for one in targets for part in ("-t", one)],
        cwd=source,
    )


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        # RECORD holds a digest of each of the others.
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def _in_the_tree() -> dict[str, bytes]:
    """The package's files and, where the wheel has it, sql/."""
    files = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in (ROOT / "cdcwatch").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return files | {f"cdcwatch/sql/{path.name}": path.read_bytes() for path in (ROOT / "sql").glob("*.sql")}


def _install(python: Path, wheel: Path, cwd: Path) -> None:
    """With what it says that it needs, by the ordinary pip; without a registry on what this environment has."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-input", "--no-compile"]
    ended = subprocess.run([*pip, "--retries", "1", wheel], cwd=cwd, capture_output=True, text=True, check=False)
    if ended.returncode != 0 and any(said in ended.stderr for said in OFFLINE):
        print("no registry answers: what cdcwatch needs is taken from this environment")
        _run(*pip, "--no-deps", wheel, cwd=cwd)
        own = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=cwd).strip())
        (own / "needed.pth").write_text(sysconfig.get_path("purelib"))
        return
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_is_built_is_whole_and_runs_in_a_clean_environment(tmp_path: Path) -> None:
    _build(ROOT, tmp_path, "wheel", "sdist")
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    contents = _contents(wheel)
    about = f"cdcwatch-{__version__}.dist-info"
    assert {name: data for name, data in contents.items() if not name.startswith(about)} == _in_the_tree()
    assert {"cdcwatch/py.typed", "cdcwatch/sql/install.sql", "cdcwatch/local/kafka-pom.xml"} <= set(contents)
    assert f"{about}/licenses/LICENSE" in contents
    metadata = message_from_string(contents[f"{about}/METADATA"].decode())
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert {"demo", "otel", "avro"} <= set(metadata.get_all("Provides-Extra", []))

    # The sdist holds all that it takes to build, to read and to test.
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "Makefile", "tools/bring-packages", "tests/conftest.py"} <= names
    unpack(sdist, tmp_path)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    _build(unpacked, tmp_path / "again", "wheel")
    (again,) = (tmp_path / "again").glob("*.whl")
    assert _contents(again) == contents

    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python, elsewhere = environment / "bin" / "python", tmp_path / "again"
    _install(python, again, elsewhere)
    assert _run(environment / "bin" / "cdcwatch", "--version", cwd=elsewhere) == f"cdcwatch {__version__}\n"
    # Every module can be imported with what was installed, sql/ is read from the package.
    assert _run(python, "-I", "-c", LOOKS, cwd=elsewhere).startswith(str(environment))
