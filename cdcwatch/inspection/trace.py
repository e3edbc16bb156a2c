"""Which event each change gives: the real derivation, watched change by change. Pure.

A change's events are found again by their ordinals, which are counted here as the derivation counts them: a delete
waits for what follows it, a changed key is two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdcwatch.decode.change import DELETE, INSERT, UPDATE, Begin, Change, Of, Together, Truncate, Unreadable
from cdcwatch.decode.note import CloseFailure, Closing
from cdcwatch.inspection.reason import MERGED, behind, why_none
from cdcwatch.lsn import format_lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.deadline.derivation import Derivation
    from cdcwatch.deadline.position import Position, SnapshotVisibility
    from cdcwatch.deadline.rule import DeadlineRule
    from cdcwatch.decode.change import AnyMessage, Row
    from cdcwatch.table import Key

TRUNCATE_KIND: Final = "truncate"
UNREADABLE_KIND: Final = "unreadable"
CLOSE_FAILED_KIND: Final = "close_failed"


class Traced(NamedTuple):
    """One change, and what it comes to."""

    commit_lsn: str
    kind: str
    """insert, update, delete, truncate, unreadable or close_failed."""
    key: str
    event: dict[str, Any] | None
    """The CloudEvent, or the dead letter's record; None when there is none."""
    why: str | None
    """Why there is none."""
    table: str = ""
    """Where several are watched."""

    def document(self) -> dict[str, Any]:
        """For scripts."""
        return {name: value for name, value in self._asdict().items() if name != "table" or value}


class _Step(NamedTuple):
    """An ordinal and what it stands for."""

    ordinal: int
    kind: str
    key: str
    old: Row | None
    new: Row | None
    table: int


class Tracer:
    """Feeds a derivation and tells what came of each message."""

    def __init__(
        self,
        rules: Mapping[str, DeadlineRule],
        derivation: Derivation,
        covered: Position,
        snapshot: SnapshotVisibility | None,
    ) -> None:
        """`rules`: by table, in the order of the derivation's."""
        self._rules, self._derivation = list(rules.values()), derivation
        self._names = list(rules) if len(rules) > 1 else [""]
        self._turned_to = 0
        self._covered, self._snapshot = covered, snapshot
        self._begin: Begin | None = None
        self._ordinal = 0
        self._held: Change | None = None
        self._closing: set[tuple[int, Key]] = set()
        derivation.restart(covered, snapshot)

    def feed(self, message: AnyMessage) -> list[Traced]:
        """What has become certain: a delete is told with the message after it."""
        if isinstance(message, Together):
            return [traced for part in message.parts for traced in self.feed(part)]
        steps, inner = [], message
        if isinstance(message, Of):
            inner = message.message
            if message.table != self._turned_to:
                steps = self._settled()
                self._turned_to = message.table
        merged = self._merges(inner)
        steps += self._steps(inner)
        self._derivation.feed(message)
        events = {_ordinal_of(event): event for event in map(_parsed, self._derivation.drain().events)}
        traced = [self._traced(step, events) for step in steps]
        if merged is not None:
            traced.insert(0, Traced(self._lsn(), DELETE, merged, None, MERGED, self._names[self._turned_to]))
        return traced

    def _merges(self, message: AnyMessage) -> str | None:
        held = self._held
        if held is not None and isinstance(message, Change) and message.kind == INSERT and message.key == held.key:
            return str(held.key)
        return None

    def _steps(self, message: AnyMessage) -> list[_Step]:
        if isinstance(message, Begin):
            self._begin, self._ordinal, self._held, self._closing = message, 0, None, set()
            return []
        if isinstance(message, Change):
            return self._change_steps(message)
        steps = self._settled()
        if isinstance(message, Truncate):
            steps.append(self._step(TRUNCATE_KIND, "*", None, None))
        elif isinstance(message, Unreadable):
            steps.append(self._step(UNREADABLE_KIND, "?", None, None))
        elif isinstance(message, CloseFailure):
            steps.append(self._step(CLOSE_FAILED_KIND, ", ".join(message.key), None, None))
        elif isinstance(message, Closing):
            self._closing |= {(self._turned_to, key) for key in message.keys}
        return steps

    def _change_steps(self, change: Change) -> list[_Step]:
        held = self._held
        if held is not None and change.kind == INSERT and change.key == held.key:
            self._held = None
            self._ordinal += 1  # the delete's, which gives nothing by itself
            return [self._step(UPDATE, change.key, held.old, change.new)]
        steps = self._settled()
        if change.new is None and (self._turned_to, change.key) in self._closing:
            self._closing.discard((self._turned_to, change.key))
            steps.append(self._step(DELETE, change.key, change.old, None))
        elif change.new is None:
            self._held = change
        elif change.old_key is not None:
            steps.append(self._step(DELETE, change.old_key, change.old, None))
            steps.append(self._step(INSERT, change.key, None, change.new))
        else:
            steps.append(self._step(change.kind, change.key, change.old, change.new))
        return steps

    def _settled(self) -> list[_Step]:
        held, self._held = self._held, None
        return [] if held is None else [self._step(DELETE, held.key, held.old, None)]

    def _step(self, kind: str, key: Key, old: Row | None, new: Row | None) -> _Step:
        self._ordinal += 1
        return _Step(self._ordinal, kind, str(key), old, new, self._turned_to)

    def _traced(self, step: _Step, events: dict[int, dict[str, Any]]) -> Traced:
        event = events.get(step.ordinal)
        why = None
        if event is None:
            known = behind(self._begin, step.ordinal, self._covered, self._snapshot) if self._begin else None
            why = known or why_none(self._rules[step.table], step.old, step.new)
        return Traced(self._lsn(), step.kind, step.key, event, why, self._names[step.table])

    def _lsn(self) -> str:
        return format_lsn(self._begin.commit_lsn) if self._begin else ""


def _parsed(event: Any) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads(event.value)
    return value


def _ordinal_of(event: dict[str, Any]) -> int:
    return int(str(event["id"]).rpartition("-")[2])
