"""Whose an order is: the worker's that has the partition in which the order's events stand. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from cdcwatch.handoff.murmur2 import partition_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from cdcwatch.table import Key


class Ownership(Struct, frozen=True):
    """One state of it; every change makes another."""

    partitions: int = 0
    """That the topic has, as far as is known."""
    before: tuple[int, ...] = ()
    """That it had until lately: we may know of more before the group has given them to anybody."""
    assigned: frozenset[int] = frozenset()
    given_up: frozenset[int] = frozenset()
    """That were ours and are not: what comes back of them from the database is let go."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ours."""
        return not self.assigned

    def partition(self, key: Key) -> int:
        """Where the order's events stand; -1 while the topic is not known."""
        return partition_of(str(key).encode(), self.partitions) if self.partitions else -1

    def owns(self, key: Key) -> bool:
        """Whether an order found in the table is ours: by the partitions there are, or by those that there were.

        So it is somebody's all the time while partitions are added, and for a while two workers': the row decides.
        """
        if self.partition(key) in self.assigned:
            return True
        return bool(self.before) and any(partition_of(str(key).encode(), one) in self.assigned for one in self.before)

    def has_lost(self, key: Key) -> bool:
        """Whether it was ours, and is not.

        Not the same as not owning it: the sweep finds others' orders, and before partitions were added an order's
        events stood elsewhere.
        """
        return bool(self.given_up) and self.partition(key) in self.given_up and not (self.before and self.owns(key))

    def gaining(self, partitions: Collection[int]) -> Ownership:
        """With these as well."""
        gained = frozenset(partitions)
        return replace(self, assigned=self.assigned | gained, given_up=self.given_up - gained)

    def losing(self, partitions: Collection[int]) -> Ownership:
        """Without these."""
        lost = self.assigned & frozenset(partitions)
        return replace(self, assigned=self.assigned - lost, given_up=self.given_up | lost)

    def counting(self, partitions: int) -> Ownership:
        """With so many partitions in the topic. More than before: orders have moved, and nothing counts as given up.

        The counts before stay in force until `settled`.
        """
        if partitions == self.partitions:
            return self
        before = {*self.before, self.partitions} - {0, partitions}
        return replace(self, partitions=partitions, before=tuple(sorted(before)), given_up=frozenset())

    def settled(self) -> Ownership:
        """By the count of now alone: everybody knows it."""
        return replace(self, before=()) if self.before else self
