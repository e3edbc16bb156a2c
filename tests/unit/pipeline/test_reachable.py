import threading

import pytest

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.pipeline import reachable
from cdcwatch.pipeline.reachable import once_reachable


class Look:
    def __init__(self, *errors):
        self.errors = list(errors)

    def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        return "seen"


AWAY = UnavailableError("the server is away", remedy="start it")


class Immediately:
    def __init__(self, **_):
        pass

    def next_s(self):
        return 0.0


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr(reachable, "Backoff", Immediately)


def test_a_server_that_is_away_is_asked_again():
    assert once_reachable(Look(AWAY, AWAY), threading.Event(), stands_by=True) == "seen"


def test_the_remedy_is_told_once(caplog):
    once_reachable(Look(AWAY, AWAY), threading.Event(), stands_by=True)
    assert [record.getMessage() for record in caplog.records] == [
        "the server is away; again in 0.0 s (remedy: start it)",
        "the server is away; again in 0.0 s",
    ]


def test_who_does_not_stand_by_is_told_at_once():
    with pytest.raises(UnavailableError, match="away"):
        once_reachable(Look(AWAY), threading.Event(), stands_by=False)


def test_what_no_retry_mends_is_raised():
    with pytest.raises(PreconditionError, match="no such table"):
        once_reachable(Look(PreconditionError("no such table", remedy="-")), threading.Event(), stands_by=True)


def test_an_end_meanwhile_ends_it():
    ended = threading.Event()

    def look():
        ended.set()
        raise AWAY

    assert once_reachable(look, ended, stands_by=True) is None
