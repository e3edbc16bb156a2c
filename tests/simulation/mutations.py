"""The rules that the guarantees rest on, each taken away on its own: the simulation must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdcwatch.close.window import Window
from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.watermark import Watermark
from cdcwatch.pipeline.follower import ReadingState

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.simulation.world import World


def keepalive_rule(_: World, patch: pytest.MonkeyPatch) -> None:
    """A keepalive's position counts inside a transaction too."""

    def idle_at(self: Derivation, wal_end: int) -> None:
        self._end_lsn = max(self._end_lsn, wal_end)

    patch.setattr(Derivation, "in_transaction", False)
    patch.setattr(Derivation, "idle_at", idle_at)


def contiguous_prefix(_: World, patch: pytest.MonkeyPatch) -> None:
    """The greatest acknowledgement counts, whatever is missing before it."""

    def acknowledge(self: Watermark, sequence: range) -> None:
        self._low = max(self._low, sequence.stop)
        self._advance()

    patch.setattr(Watermark, "acknowledge", acknowledge)


def version_guard(world: World, _: pytest.MonkeyPatch) -> None:
    """A close doesn't look at the version."""
    world.server.rules.checks_version = False


def deadline_guard(world: World, _: pytest.MonkeyPatch) -> None:
    """A close doesn't look at the deadline."""
    world.server.rules.checks_deadline = False


def delivery_check(world: World, _: pytest.MonkeyPatch) -> None:
    """What was handed to the producer counts as delivered."""
    world.checks_delivery = False


def fencing(world: World, _: pytest.MonkeyPatch) -> None:
    """An older process can go on writing."""
    world.checks_epoch = False


def skip_on_restart(_: World, patch: pytest.MonkeyPatch) -> None:
    """What the topic holds is derived again."""
    restart = Derivation.restart
    patch.setattr(Derivation, "restart", lambda self, _covered, visibility=None: restart(self, Position(), visibility))


def skip_of_the_snapshot(_: World, patch: pytest.MonkeyPatch) -> None:
    """What the read of the table has shown is derived again."""
    restart = Derivation.restart
    patch.setattr(Derivation, "restart", lambda self, covered, _visibility=None: restart(self, covered))


def other_writers(_: World, patch: pytest.MonkeyPatch) -> None:
    """Events in the topic that another process wrote are taken for ours."""
    patch.setattr(Outbox, "accounts_for", lambda _self, _durable: True)


def replay_of_the_snapshot(_: World, patch: pytest.MonkeyPatch) -> None:
    """At least once, too, the stream skips what the read of the table has shown."""
    begin_at = ReadingState.begin_at
    patch.setattr(
        ReadingState, "begin_at", lambda self, start, mark, **_how: begin_at(self, start, mark, skips_snapshot=True)
    )


def closes_before_the_read(_: World, patch: pytest.MonkeyPatch) -> None:
    """What was closed before a first read was published is told by nobody."""
    patch.setattr(DeadlineRule, "is_close", lambda _self, _derived: False)


def clock_of_the_window(_: World, patch: pytest.MonkeyPatch) -> None:
    """The window believes in the database's clock as it was a while ago."""
    known = Window.__init__

    def once(self: Window, *parts: Any, **how: Any) -> None:
        known(self, *parts, **how)
        observe = self._database_clock.observe
        self._database_clock.observe = (  # type: ignore[method-assign]
            lambda samples: self._database_clock.is_known or observe(samples)
        )

    patch.setattr(Window, "__init__", once)


MUTATIONS: dict[str, Callable[[World, pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        keepalive_rule,
        contiguous_prefix,
        version_guard,
        deadline_guard,
        delivery_check,
        fencing,
        skip_on_restart,
        skip_of_the_snapshot,
        other_writers,
        replay_of_the_snapshot,
        closes_before_the_read,
        clock_of_the_window,
    )
}
