from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cdcwatch import __version__
from cdcwatch.cli import check, look
from cdcwatch.cli.output import bytes_text, duration_text, table_text
from cdcwatch.errors import CdcwatchError, NotDurableError, PreconditionError, UnavailableError
from cdcwatch.handoff.record import Record
from tests.command import cdcwatch, require_parsable, start_cdcwatch, write_configuration

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "host=127.0.0.1 port=1 dbname=shop"


def test_the_version() -> None:
    assert cdcwatch("--version").out == f"cdcwatch {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such"],
        ["slot", "no-such"],
        ["check", "--no-such"],
        ["slot", "create", "--timeout", "soon"],
        ["pending", "-n"],
    ],
)
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    ended = cdcwatch(*arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.said


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "FILE", "slot", "status"],
        ["slot", "-c", "FILE", "status"],
        ["slot", "status", "-c", "FILE"],
        ["slot", "status", "--config", "FILE"],
        ["-c", "/nowhere.toml", "slot", "status", "-c", "FILE"],
        ["check", "-c", "FILE"],
        ["-c", "FILE", "check"],
    ],
)
def test_the_configuration_may_be_named_anywhere_and_the_nearest_wins(arguments: list[str], tmp_path: Path) -> None:
    file = write_configuration(tmp_path / "shop.toml", NOWHERE)
    ended = cdcwatch(*(str(file) if argument == "FILE" else argument for argument in arguments))
    assert ended.code == 3, ended
    assert "port 1 failed: Connection refused" in ended.err
    assert ended.err.count("\n") == 2


def test_tests_of_files_with_commands_find_wrong_ones() -> None:
    require_parsable("slot", "create", "--timeout", "60", "-c", "shop.toml")
    for wrong in (["sloth"], ["slot", "make"], ["run", "--role", "red"], ["check", "--fast"], ["explain"]):
        with pytest.raises(AssertionError):
            require_parsable(*wrong)


def test_a_missing_configuration_exits_2() -> None:
    ended = cdcwatch("check", "-c", "/nowhere.toml")
    assert ended.code == 2
    assert ended.err == (
        "cdcwatch: /nowhere.toml: No such file or directory\nremedy: name a readable file with -c/--config\n"
    )


def test_a_directory_without_configuration_is_told_beside_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    told = "no cdcwatch.toml in this directory, no -c FILE: every key has its default\n"
    assert cdcwatch("pending").err.startswith(told + "cdcwatch: ")
    with start_cdcwatch("run", environment={"PYTHONUNBUFFERED": "1"}) as process:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        process.terminate()
        process.communicate(timeout=60)
    assert said[0] == told, "a service that waits tells so too, and first"
    assert "Connection refused; again in 0." in said[1]
    assert " s (remedy: " in said[1]
    (tmp_path / "cdcwatch.toml").write_text('[slot]\nname = "mine"\n')
    assert told not in cdcwatch("pending").err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PreconditionError("it lacks", remedy="mend it"), 3),
        (UnavailableError("it lacks", remedy="mend it"), 3),
        (NotDurableError("it lacks", remedy="mend it"), 4),
        (CdcwatchError("it lacks", remedy="mend it"), 1),
    ],
)
def test_errors_are_one_line_and_a_remedy(error: CdcwatchError, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(check, "settings_of", fail)
    ended = cdcwatch("check")
    assert ended == type(ended)(code, "", "cdcwatch: it lacks\nremedy: mend it\n")
    assert "Traceback" in cdcwatch("check", "--debug").err


def test_what_nobody_foresaw_shows_its_place_but_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("hunter2")

    monkeypatch.setattr(check, "settings_of", fail)
    ended = cdcwatch("check")
    assert ended.code == 1
    assert ended.err.startswith("cdcwatch: unexpected ValueError at cli/check.py:")
    assert "remedy: " in ended.err
    assert "hunter2" not in ended.err
    assert "hunter2" in cdcwatch("--debug", "check").err


def test_start_up_imports_no_client_library() -> None:
    code = "import sys, cdcwatch.cli.main; print(sorted({'psycopg', 'confluent_kafka', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_closed_stdout_is_no_error() -> None:
    command = f"{sys.executable} -m cdcwatch check -c /nowhere/cdcwatch.toml >&-"
    ended = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 2), ended.stderr


def test_a_reader_that_has_enough_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cdcwatch", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(120)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            b'{"time":"T","type":"deadline.cancelled","subject":"7","data":{"deadline":"D","reason":"paid"}}',
            "T  cancelled  7  D  paid",
        ),
        (b'{"time":"T","type":"deadline.moved","subject":"7","data":{"deadline":"D"}}', "T  moved      7  D"),
        (b'{"time":"T","type":"deadline.cancelled","subject":"7","data":{"deadline":null}}', "T  cancelled  7  -"),
        (
            b'{"time":"T","type":"deadline.scheduled","subject":"7","data":{"deadline":"D","snapshot":true}}',
            "T  scheduled  7  D  [snapshot]",
        ),
        (b"noise", "not a deadline event: partition 1, offset 5"),
        (b"[]", "not a deadline event: partition 1, offset 5"),
    ],
)
def test_event_lines(value: bytes, line: str) -> None:
    assert look.event_line(Record(1, 5, 0, value)) == line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.44, "2.4 s"), (59.94, "59.9 s"), (243, "4 min 3 s"), (12_000, "3 h 20 min"), (439_200, "5 d 2 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_bytes_and_tables() -> None:
    assert [bytes_text(count) for count in (None, 0, 1023, 1536, 5 * 2**30)] == [
        "unknown", "0 B", "1023 B", "1.5 kB", "5.0 GB",
    ]  # fmt: skip
    assert table_text(("a", "long"), [("12345", "x")]) == "a      long\n12345  x"
