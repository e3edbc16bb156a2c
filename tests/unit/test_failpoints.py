"""Failpoints: nothing unless asked for, and a mistake in asking is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdcwatch import failpoints
from cdcwatch.errors import ConfigurationError
from cdcwatch.failpoints import NAMES, VARIABLE, FailpointError, arm, passing, reached
from tests.command import cdcwatch

PACKAGE = Path(failpoints.__file__).parent


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    arm({})


def test_nothing_happens_unless_asked_for():
    for name in NAMES:
        reached(name, 1_000_000)
    items = [1, 2, 3]
    assert passing("snapshot.scanned", items) is items


def test_the_nth_time_and_never_again():
    arm({VARIABLE: "stream.read=raise@3"})
    reached("stream.read")
    reached("stream.parsed")
    reached("stream.read")
    with pytest.raises(FailpointError):
        reached("stream.read")
    reached("stream.read")


def test_the_first_time_inside_of_something_large():
    arm({VARIABLE: " kafka.committed=raise@inside:100, stream.read=raise "})
    reached("kafka.committed")
    reached("kafka.committed", 99)
    with pytest.raises(FailpointError):
        reached("kafka.committed", 100)
    with pytest.raises(FailpointError):
        reached("stream.read")


def test_items_that_pass():
    arm({VARIABLE: "snapshot.scanned=raise@2"})
    passed = []
    with pytest.raises(FailpointError):
        passed.extend(passing("snapshot.scanned", range(5000)))
    passed = list(passing("snapshot.scanned", range(5000)))
    assert len(passed) == 5000


def test_it_is_told_on_stderr_before_it_happens(capfd):
    arm({VARIABLE: "stream.read=pause:0"})
    reached("stream.read")
    assert capfd.readouterr().err == "failpoint stream.read: pause:0\n"


@pytest.mark.parametrize(
    "wrong",
    [
        "no.such=kill",
        "stream.read",
        "stream.read=explode",
        "stream.read=kill@0",
        "stream.read=pause",
        "stream.read=kill@",
    ],
)
def test_what_there_is_not_is_a_mistake_of_the_environment(wrong, monkeypatch):
    with pytest.raises(ConfigurationError):
        arm({VARIABLE: wrong})
    monkeypatch.setenv(VARIABLE, wrong)
    ended = cdcwatch("check")
    assert ended.code == 2
    assert ended.err.startswith(f"cdcwatch: {VARIABLE}: ")
    assert "\nremedy: " in ended.err
    reached("stream.read")


def test_names_are_those_in_the_code():
    found = {
        name
        for path in PACKAGE.rglob("*.py")
        if path.name != "failpoints.py"
        for name in re.findall(r'failpoints\.(?:reached|passing)\(\s*"([^"]+)"', path.read_text())
    }
    assert found == set(NAMES)
