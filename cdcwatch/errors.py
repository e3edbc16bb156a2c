"""What can go wrong, by what the operator can do about it.

Every error is one line and one remedy; the exit codes are part of the command line's contract.
"""

from __future__ import annotations

from typing import ClassVar


class CdcwatchError(Exception):
    """One line of what is wrong; `remedy` is what to do about it. Neither ever holds row values or passwords."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class CheckFailedError(CdcwatchError):
    """A check or a threshold failed."""

    exit_code = 1


class ConfigurationError(CdcwatchError):
    """The command line or the configuration says something it can't."""

    exit_code = 2


class PreconditionError(CdcwatchError):
    """The database or the broker lacks something that no retry will bring."""

    exit_code = 3


class NotDurableError(CdcwatchError):
    """The process had to end before what it had read was durable; nothing of that was confirmed."""

    exit_code = 4


class UnavailableError(CdcwatchError):
    """The database or the broker is away for now: try again, with back-off."""

    exit_code = 3


class ConnectionBrokeError(UnavailableError):
    """A connection that worked broke over a statement: the server, the way to it, or what the statement did there."""


class DecodeError(CdcwatchError):
    """A message of the stream that can't be understood."""

    exit_code = 3


class GapError(DecodeError):
    """The stream shows that changes of the watched table are missing from it: noted in the progress record."""
