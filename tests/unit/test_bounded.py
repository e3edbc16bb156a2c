"""A wait for the server that has an end: on a generator and a clock of the test's own."""

from __future__ import annotations

import psycopg
import pytest

from cdcwatch.database import bounded, explain
from cdcwatch.errors import UnavailableError

NONE, READ = 0, 1


def answers_after(reads):
    """As psycopg's: asks to read until there is an answer."""
    for _ in range(reads):
        while not (yield READ):
            pass
    return "answer"


class Waiting:
    """A bounded wait of 15 s, driven by hand."""

    def __init__(self, reads):
        self.now_s = 100.0
        self.given_up = 0
        self.gen = bounded(answers_after(reads), 15.0, self.give_up, lambda: self.now_s)
        assert next(self.gen) == READ

    def give_up(self):
        self.given_up += 1

    def silence(self, times):
        for _ in range(times):
            self.now_s += 1
            assert self.gen.send(NONE) == READ


def test_the_answer_is_handed_on():
    waiting = Waiting(1)
    with pytest.raises(StopIteration) as end:
        waiting.gen.send(READ)
    assert (end.value.value, waiting.given_up) == ("answer", 0)


def test_silence_for_too_long_closes_the_connection():
    waiting = Waiting(1)
    waiting.silence(15)
    waiting.now_s += 1
    with pytest.raises(psycopg.OperationalError) as raised:
        waiting.gen.send(NONE)
    assert waiting.given_up == 1
    explained = explain(raised.value)
    assert isinstance(explained, UnavailableError)
    assert str(explained).startswith("PostgreSQL: no answer for 15 s")


def test_every_byte_begins_the_wait_anew():
    waiting = Waiting(3)
    for _ in range(2):
        waiting.silence(15)
        assert waiting.gen.send(READ) == READ
    waiting.silence(15)
    with pytest.raises(StopIteration):
        waiting.gen.send(READ)
    assert waiting.given_up == 0


def test_errors_pass_through():
    def broken():
        yield READ
        raise psycopg.OperationalError("the server closed the connection")

    gen = bounded(broken(), 15.0, lambda: None)
    next(gen)
    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        gen.send(READ)
