"""The progress records: a hash, one field a slot."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cdcwatch.errors import PreconditionError
from cdcwatch.handoff.progress import Progress
from cdcwatch.handoff.redis.client import connected, lua, talking
from cdcwatch.handoff.redis.keys import owner_key, progress_key, staged_key

if TYPE_CHECKING:
    from cdcwatch.settings import RedisSettings


def find_progress(settings: RedisSettings, slot: str) -> Progress | None:
    """The slot's record; None where there is none. UnavailableError, PreconditionError."""
    client = connected(settings)
    try:
        with talking():
            found = client.hget(progress_key(settings), slot)
    finally:
        client.close()
    return None if found is None else read_record(found, progress_key(settings), slot)


def forget_progress(settings: RedisSettings, slot: str) -> bool:
    """Takes it away, and the slot from whoever writes for it. Whether there was one.

    The next start finds none and publishes a snapshot.
    """
    client = connected(settings)
    try:
        with talking():
            keys = [owner_key(settings), progress_key(settings), staged_key(settings, slot)]
            return bool(client.eval(lua("forget"), len(keys), *keys, slot, uuid.uuid4().hex))
    finally:
        client.close()


def read_record(record: bytes, key: str, slot: str) -> Progress:
    """PreconditionError where it is none of ours."""
    try:
        return Progress.from_json(record)
    except (ValueError, KeyError, TypeError):
        raise PreconditionError(
            f"the record of {slot} in {key} can't be read: it is of another version, or not ours",
            remedy="start the version of cdcwatch that wrote it",
        ) from None
