"""What is wrong with the slot, and what `recover` would do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from cdcwatch.errors import PreconditionError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.inspection.gap import find_gap
from cdcwatch.slot.admin import connected, require_idle
from cdcwatch.slot.creation import plan_slot, require_met
from cdcwatch.slot.status import read_status

if TYPE_CHECKING:
    from cdcwatch.settings import Settings
    from cdcwatch.slot.facts import OptionsOf


class Recovery(Struct, frozen=True):
    """A plan."""

    trouble: str
    """What is wrong."""
    drops_slot: bool
    statements: tuple[str, ...]
    """SQL that makes publication and slot; empty where the slot is good."""


def plan_recovery(settings: Settings, options_of: OptionsOf | None = None) -> Recovery:
    """Changes nothing. PreconditionError when nothing is wrong, when the slot is in use, or when a check fails."""
    bus = bus_of(settings)
    with connected(settings) as connection:
        status = read_status(connection, settings.slot.name)
    if status is None:
        if bus is None or bus.progress() is None:
            raise PreconditionError(  # and never was, as far as the topic knows
                f"there is no slot {settings.slot.name}, and no topic tells of one: nothing is to be recovered",
                remedy="cdcwatch slot create",
            )
        trouble = f"there is no slot {settings.slot.name}, and the topic holds events of one"
    else:
        require_idle(status)
        if status.plugin != settings.slot.plugin:
            raise PreconditionError(
                f"slot {status.name} has the plugin {status.plugin}, not {settings.slot.plugin}",
                remedy=f"set slot.plugin = \"{status.plugin}\", or see docs/runbook.md, 'Changing the plugin'",
            )
        trouble = f"slot {status.name} is lost: WAL that it needed is gone"
        if not status.is_lost:
            gap = find_gap(settings)
            if gap is None and bus is None:
                raise PreconditionError(
                    f"nothing is wrong with slot {status.name}, and there is no topic to compare with",
                    remedy="cdcwatch run reads on; it reads the open orders from the table at every start",
                )
            if gap is None:
                raise PreconditionError(
                    f"nothing is wrong: slot {status.name} holds what follows the topic's events",
                    remedy="cdcwatch run reads on; cdcwatch snapshot reads the table again all the same",
                )
            trouble = str(gap)
    drops_slot = status is not None and status.is_lost
    plan = plan_slot(settings, options_of, is_replaced=drops_slot)
    require_met(plan.checks)
    return Recovery(trouble, drops_slot, plan.statements)
