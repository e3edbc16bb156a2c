"""One judged precondition: a line of `cdcwatch check`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from cdcwatch.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.errors import CdcwatchError

State = Literal["ok", "warn", "fail"]


class Check(Struct, frozen=True):
    """One precondition."""

    name: str
    state: State
    message: str
    remedy: str = ""
    """SQL or a command that mends it; empty when ok."""
    unreachable: bool = False
    """It failed because a server could not be asked, not for what the server said."""


def failed(name: str, error: CdcwatchError) -> Check:
    """A check that ended in an error of ours."""
    return Check(name, "fail", str(error), error.remedy, isinstance(error, UnavailableError))


def exit_code(checks: Sequence[Check]) -> int:
    """1 when a check failed for what a server said; else 3 when a server could not be asked; else 0."""
    failures = [check for check in checks if check.state == "fail"]
    if any(not check.unreachable for check in failures):
        return 1
    return 3 if failures else 0
