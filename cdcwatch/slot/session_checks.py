"""Checks of the way to the server: pooler, replication connection, TLS, clocks, transactions that run long. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.slot.check import Check, failed

if TYPE_CHECKING:
    from cdcwatch.slot.facts import Facts
    from cdcwatch.slot.managed import Service

LONG_TRANSACTION_S: Final = 60.0


def replication(facts: Facts) -> Check | None:
    """A replication connection was made, over the DSN that the reader will use."""
    around = facts.surroundings
    if around is None:
        return None
    error = around.stream_error
    if error is None:
        return Check("replication", "ok", "a replication connection can be made")
    if _is_pooled(facts):
        direct = _direct(facts.server.service)
        return Check(
            "replication",
            "fail",
            f"no replication connection through the pooler: {error}",
            f"connect directly: set postgres.replication_dsn{direct}",
        )
    return failed("replication", error)


def pooler(facts: Facts) -> Check | None:
    """Nothing between the reader and the server."""
    around = facts.surroundings
    if around is None:
        return None
    if not _is_pooled(facts):
        way = (
            "postgres.dsn goes through a pooler, the stream directly" if around.main.is_pooled else "no pooler between"
        )
        return Check("pooler", "ok", way)
    return Check(
        "pooler",
        "warn" if around.stream_error is None else "fail",
        "a pooler stands between cdcwatch and the server, where the stream must go directly",
        f"connect directly: set postgres.replication_dsn{_direct(facts.server.service)}",
    )


def _is_pooled(facts: Facts) -> bool:
    around = facts.surroundings
    if around is None:
        return False
    if facts.settings.postgres.for_replication() != facts.settings.postgres.dsn:
        return around.stream is not None and around.stream.is_pooled
    return around.main.is_pooled


def _direct(service: Service | None) -> str:
    return f" to {service.direct}" if service and service.direct else ""


def tls(facts: Facts) -> Check | None:
    """Encrypted where it leaves the machine. libpq's sslmode stays as the DSN says."""
    if facts.surroundings is None:
        return None
    ways = [("postgres.dsn", facts.surroundings.main)]
    if facts.surroundings.stream is not None:
        ways.append(("postgres.replication_dsn", facts.surroundings.stream))
    for name, way in ways:
        if not way.is_encrypted and not way.is_local:
            return Check(
                "tls",
                "warn",
                f"the connection of {name} is not encrypted: passwords and orders travel in the clear",
                f"add sslmode=verify-full sslrootcert=… to {name} (the server needs ssl = on and a certificate)",
            )
    if not all(way.is_encrypted for _, way in ways) and any(way.is_encrypted for _, way in ways):
        said = ", ".join(
            f"{name} encrypted ({way.tls_version})"
            if way.is_encrypted
            else f"{name} not, and doesn't leave this machine"
            for name, way in ways
        )
        return Check("tls", "ok", said)
    unverified = [name for name, way in ways if way.is_encrypted and not way.verifies_server]
    if unverified:
        return Check(
            "tls",
            "ok",
            f"encrypted ({ways[0][1].tls_version}); sslmode=verify-full would also prove that it is the right server",
        )
    if any(way.is_encrypted for _, way in ways):
        return Check("tls", "ok", f"encrypted ({ways[0][1].tls_version}), the server's certificate is verified")
    return Check("tls", "ok", "not encrypted, and doesn't leave this machine")


def clock(facts: Facts) -> Check | None:
    """Near the database's. Whatever it is, nothing is closed early: the database's clock decides."""
    if facts.surroundings is None:
        return None
    offset_us, half_us = facts.surroundings.clock.offset_us, facts.surroundings.clock.uncertainty_us
    side = "ahead of" if offset_us > 0 else "behind"
    message = f"the database's clock is {abs(offset_us) / 1000:.1f} ms {side} ours, ± {half_us / 1000:.1f} ms"
    if abs(offset_us) - half_us > facts.settings.close.max_clock_offset_ms * 1000:
        return Check(
            "clock",
            "warn",
            message + ": nothing is closed early, but logs and lateness figures mislead",
            "timedatectl set-ntp true on both machines; chronyc tracking tells how far each is off",
        )
    return Check("clock", "ok", message)


def transactions(facts: Facts) -> Check | None:
    """None that has run for long: a slot in the making waits for all of them."""
    if facts.surroundings is None:
        return None
    running = facts.surroundings.running
    old = [one for one in running if one.age_s is not None and one.age_s >= LONG_TRANSACTION_S]
    if old:
        oldest = max(old, key=lambda one: one.age_s or 0.0)
        others = f", and {len(old) - 1} more" if len(old) > 1 else ""
        mend = (
            f"ROLLBACK PREPARED or COMMIT PREPARED it ({oldest.application})"
            if oldest.pid is None
            else f"end it in its application, or SELECT pg_cancel_backend({oldest.pid})"
        )
        return Check(
            "transactions",
            "warn",
            f"a transaction has run for {(oldest.age_s or 0.0) / 60:.0f} min ({oldest.who}){others}:"
            " slot create waits for it",
            f"{mend}; slot create --timeout bounds the wait",
        )
    unknown = sum(one.age_s is None for one in running)
    if unknown:
        return Check(
            "transactions", "ok", f"{unknown} writing transactions of an age that {facts.role.name} may not see"
        )
    return Check("transactions", "ok", "no writing transaction has run for a minute")


def sweep(facts: Facts) -> Check | None:
    """Whether instances share the sweep, and whether the standby of sweep.dsn can be scanned."""
    found = facts.sweep
    if found is None:
        return None
    standby = found.standby
    if standby is not None and standby.error is not None:
        said = f"the standby of sweep.dsn can't be asked, and the primary is scanned: {standby.error}"
        return Check("sweep", "warn", said, standby.error.remedy)
    if standby is not None and not standby.is_ours:
        return Check(
            "sweep",
            "warn",
            "sweep.dsn is no standby of the server and database of postgres.dsn: the primary is scanned",
            "set sweep.dsn to a hot standby, with the same dbname; or take it out",
        )
    if standby is not None and not standby.keeps_up:
        return Check(
            "sweep",
            "warn",
            f"the standby of sweep.dsn lags by over {facts.settings.sweep.max_delay_ms} ms: the primary is scanned",
            "see pg_stat_replication on the primary; or raise sweep.max_delay_ms",
        )
    where = "the primary is scanned" if standby is None else "the standby is scanned and keeps up"
    if found.may_register:
        return Check("sweep", "ok", f"{where}; instances share the work")
    why = "is not there" if found.may_register is None else f"may not be written by {facts.role.name}"
    said = f"{where}; cdcwatch.instances {why} (sql/install.sql): each instance sweeps everything"
    return Check("sweep", "ok", said)
