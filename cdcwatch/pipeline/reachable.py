"""A first look at a server that may be away."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from cdcwatch.backoff import Backoff
from cdcwatch.errors import UnavailableError
from cdcwatch.log import told_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

T = TypeVar("T")

_log = logging.getLogger(__name__)


def once_reachable(look: Callable[[], T], ended: threading.Event, *, stands_by: bool) -> T | None:
    """What `look` gives, tried again while it raises UnavailableError; None when `ended` before.

    Without `stands_by` that error is raised.
    """
    backoff, last_error = Backoff(first_s=0.2, most_s=5.0), ""
    while not ended.is_set():
        try:
            return look()
        except UnavailableError as error:
            if not stands_by:
                raise
            wait_s = backoff.next_s()
            remedy = f" (remedy: {error.remedy})" if str(error) != last_error else ""
            last_error = str(error)
            _log.warning("%s; again in %.1f s%s", error, wait_s, remedy, extra=told_of(error))
            ended.wait(wait_s)
    return None
