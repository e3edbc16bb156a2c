"""What `close.action = "claim"` needs besides the watched table: a table of its own, rights on it, and the endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdcwatch.close.claim import require_claims
from cdcwatch.database import translated
from cdcwatch.errors import CdcwatchError
from cdcwatch.queries import query
from cdcwatch.slot.check import Check, failed

if TYPE_CHECKING:
    import psycopg

    from cdcwatch.settings import Settings

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def claim_checks(connection: psycopg.Connection[Any], settings: Settings) -> list[Check]:
    """A line for the table of claims, one for the endpoint. Calls nothing: connects, and ends the connection."""
    if settings.close.action != "claim":
        return []
    return [_claims(connection), _endpoint(settings)]


def _claims(connection: psycopg.Connection[Any]) -> Check:
    try:
        with translated():
            row = connection.execute(query("claim", "rights")).fetchone()
        is_there, missing, role = row or (False, [], "")
        require_claims(is_there, missing, role)
    except CdcwatchError as error:
        return failed("claims", error)
    return Check("claims", "ok", f"{role} may write to cdcwatch.claims")


def _endpoint(settings: Settings) -> Check:
    from cdcwatch.close.outside import HttpOutside  # noqa: PLC0415  urllib3 only where it is used

    claim = settings.close.claim
    try:
        outside = HttpOutside(claim.url, lambda _: b"", connections=1, timeout_s=claim.timeout_s)
        outside.probe()
    except CdcwatchError as error:
        return failed("claim_url", error)
    if outside.scheme == "http" and outside.host not in _LOCAL:
        said = f"calls to {outside.host} are not encrypted: orders travel in the clear, and a password in the address"
        return Check("claim_url", "warn", said, "use an https:// address in close.claim.url")
    return Check("claim_url", "ok", f"{outside.scheme}://{outside.host} can be connected to; nothing was called")
