"""Checks of the watched table: identity, statuses, index, rights, row security, publication. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.slot.check import Check
from cdcwatch.slot.identity import inexact_leaves, making_exact
from cdcwatch.slot.partitions import named
from cdcwatch.slot.publication import (
    UNTOLD,
    UNTOLD_REMEDY,
    creation_text,
    publication_flaw,
    quoted_name,
    tells_notes,
    watched_columns,
)

if TYPE_CHECKING:
    from cdcwatch.slot.facts import Facts

_INSTALL_IDENTITY: Final = "; -- as sql/install.sql does with -v identity=on"
_GENERATED_PUBLISHED_SINCE: Final = 180_000


def table(facts: Facts) -> Check:
    """There, and of a kind that can be watched."""
    if facts.table is None:
        return Check("table", "fail", str(facts.table_error), facts.table_error.remedy if facts.table_error else "")
    found = facts.table
    key = found.quoted(column.name for column in found.watched.key)
    deadline = found.quoted([found.watched.deadline.name])
    leaves = f", {len(found.partitions)} partitions" if found.partitions is not None else ""
    return Check("table", "ok", f"{found.sql_name}, key ({key}), deadline {deadline}{leaves}")


def columns(facts: Facts) -> Check | None:
    """None of the watched ones is computed where the plugin doesn't send computed ones."""
    if facts.table is None or not facts.table.generated:
        return None
    generated, plugin = facts.table.generated, facts.settings.slot.plugin
    late = plugin == "pgoutput" and facts.server.version_number < _GENERATED_PUBLISHED_SINCE
    silent = [
        name for name in watched_columns(facts.table) if generated.get(name) == "v" or (name in generated and late)
    ]
    if not silent:
        return Check("columns", "ok", f"generated columns are sent by {plugin}")
    return Check(
        "columns",
        "fail",
        f"{plugin} does not send the generated column {facts.table.quoted(silent)}",
        'a stored one comes with slot.plugin = "wal2json", or from PostgreSQL 18 on; else make it an ordinary column'
        f" that a trigger fills: ALTER TABLE {facts.table.sql_name} ALTER COLUMN {facts.table.quoted(silent[:1])}"
        " DROP EXPRESSION",
    )


def time_zone(facts: Facts) -> Check | None:
    """Of a deadline without time zone: the server and we read the zone's local times alike."""
    if facts.table is None or not facts.table.watched.zone:
        return None
    zone, differing = facts.table.watched.zone, facts.zone_disagreement
    if differing is not None:
        return Check(
            "time_zone",
            "warn",
            f"the server's data of {zone} differs from ours, first at {differing}: what the server says is closed,"
            " but events and the window tell another deadline",
            "bring both to the same release: the system's tzdata package on the server and here",
        )
    return Check("time_zone", "ok", f"deadlines are local times of {zone}, by the server as by this machine")


def version(facts: Facts) -> Check | None:
    """A number that every change counts up."""
    if facts.table is None:
        return None
    if facts.table.watched.version is None:
        left = "deadline" if facts.table.watched.status is None else "status and deadline"
        return Check(
            "version",
            "warn",
            f"no version column: a close relies on {left} alone",
            f"ALTER TABLE {facts.table.sql_name} ADD COLUMN version integer NOT NULL DEFAULT 0;"
            ' let every writer count it up, and set table.version = "version"',
        )
    return Check("version", "ok", f"version column {facts.table.quoted([facts.table.watched.version.name])}")


def identity(facts: Facts) -> Check | None:
    """What the stream tells of old rows."""
    found = facts.table
    if found is None:
        return None
    weaker = inexact_leaves(found)
    # wal2json tells what each partition logs; pgoutput speaks in the parent's name.
    by_leaf = bool(found.partitions) and facts.settings.slot.plugin == "wal2json"
    if weaker and (by_leaf or found.is_identity_exact):
        return Check(
            "identity",
            "warn",
            f"{len(weaker)} of {len(found.partitions or ())} partitions log the key only, whatever their parent does:"
            f" {named([leaf.sql_name for leaf in weaker])}; an update of them gives the state it leaves, and an equal"
            " state may be repeated",
            making_exact(found),
        )
    if found.watched.identity == "f":
        return Check("identity", "ok", "replica identity FULL: events are exact, at the price of more WAL")
    if by_leaf or found.is_identity_exact:
        covered = "the key, status and deadline" if found.watched.status is not None else "the key and the deadline"
        return Check("identity", "ok", f"replica identity covers {covered}: events are exact")
    return Check(
        "identity",
        "warn",
        "replica identity has the key only: an update gives the state it leaves, and an equal state may be repeated",
        making_exact(found) + (_INSTALL_IDENTITY if found.partitions is None else ""),
    )


def status(facts: Facts) -> Check | None:
    """The configured statuses can stand in the column, and the open ones occur."""
    found, told = facts.table, facts.statuses
    if found is None or told is None or found.watched.status is None:
        return None
    column = found.quoted([found.watched.status.name])
    if told.unfit:
        missing = ", ".join(repr(one) for one in told.unfit)
        labels = told.labels or ()
        near = [label for label in labels if label.lower() in {one.lower() for one in told.unfit}]
        kind = "is no label of its enum" if told.labels is not None else f"doesn't fit {found.watched.status.type}"
        remedy = (
            f"write it as its enum does: {', '.join(map(repr, near))}"
            if near
            else f"set table.open and close.status to statuses of the table: {', '.join(labels)}"
            f"; or ALTER TYPE {found.watched.status.type} ADD VALUE '{told.unfit[0]}'"
            if told.labels is not None
            else f"set table.open and close.status to what {column} ({found.watched.status.type}) can hold"
        )
        return Check("status", "fail", f"{column}: {missing} {kind}", remedy)
    if told.barred:
        one, constraint = told.barred[0]
        return Check(
            "status",
            "fail",
            f"{column}: the constraint {constraint} refuses {one!r}, which a close writes",
            f"let it in: ALTER TABLE {found.sql_name} DROP CONSTRAINT {constraint}, ADD CONSTRAINT {constraint}"
            " CHECK (…) NOT VALID; or set another close.status",
        )
    if told.never_open:
        return Check(
            "status",
            "warn",
            f"{column}: by the statistics no order has the status {' or '.join(sorted(found.watched.open))}",
            f"SELECT {column}, count(*) FROM {found.sql_name} GROUP BY 1; then set table.open (case counts)",
        )
    return Check("status", "ok", f"status column {column}, open: {', '.join(sorted(found.watched.open))}")


def index(facts: Facts) -> Check | None:
    """Due orders are found by a partial index: by the plan of that very scan."""
    found = facts.table
    if found is None or facts.rights is None or not facts.rights.may_read:
        return None
    if facts.statuses is not None and facts.statuses.unfit:
        return None
    deadline = found.quoted([found.watched.deadline.name])
    making = f"CREATE INDEX CONCURRENTLY ON {found.sql_name} ({deadline}) WHERE {facts.open_condition}"
    if found.partitions is not None:
        making = making.replace(" CONCURRENTLY", "") + " -- blocks writers; partition by partition: docs/runbook.md"
    if facts.invalid_indexes:
        return Check(
            "index",
            "warn",
            f"an interrupted build left an invalid index: {', '.join(facts.invalid_indexes)}",
            "; ".join(f"DROP INDEX CONCURRENTLY {one}" for one in facts.invalid_indexes)
            + ("" if facts.due_index else f"; {making}"),
        )
    if not facts.due_index:
        return Check("index", "warn", "no index finds due orders: every look for them reads the whole table", making)
    if not facts.due_index_is_partial:
        return Check(
            "index",
            "warn",
            f"due orders are found by the index {facts.due_index}, which holds the closed ones too and grows with them",
            making,
        )
    return Check("index", "ok", f"due orders are found by the index {facts.due_index}")


def rights(facts: Facts) -> Check | None:
    """SELECT, and what the close does."""
    if facts.table is None or facts.rights is None:
        return None
    name, role, action = facts.table.sql_name, facts.role.name, facts.settings.close.action
    missing = [] if facts.rights.may_select else ["SELECT"]
    if action in {"update", "claim"} and not facts.rights.may_update:
        missing.append("UPDATE")
    if action == "delete" and not facts.rights.may_delete:
        missing.append("DELETE")
    if action == "delete" and not facts.rights.may_lock:
        # Locking a row before it is deleted takes that right on any one column.
        missing.append(f"UPDATE ({facts.table.quoted(column.name for column in facts.table.watched.key[:1])})")
    grants = [f"GRANT {', '.join(missing)} ON {name} TO {role}"] if missing else []
    if not facts.rights.may_use_schema:
        grants.insert(0, f"GRANT USAGE ON SCHEMA {facts.table.sql_schema} TO {role}")
        missing.insert(0, "USAGE of its schema")
    if missing:
        return Check("rights", "fail", f"{role} lacks {', '.join(missing)} on {name}", "; ".join(grants))
    if facts.settings.close.also.strip() and action != "none" and not facts.rights.may_make_temporary:
        return Check(
            "rights",
            "fail",
            f"{role} lacks TEMPORARY on the database, where close.also reads the temporary table closed",
            f"GRANT TEMPORARY ON DATABASE {facts.rights.database} TO {role}",
        )
    return Check("rights", "ok", f"{role} may read {name}" + " and close its orders" * (action != "none"))


def row_security(facts: Facts) -> Check | None:
    """No policy hides orders: the stream tells of all rows, a close would find but some."""
    if facts.table is None or facts.rights is None or not facts.rights.is_filtered:
        return None
    role, name = facts.role.name, facts.table.sql_name
    return Check(
        "row_security",
        "fail",
        f"row-level security of {name} filters what {role} sees: orders it hides would never be closed",
        f"CREATE POLICY cdcwatch ON {name} TO {role} USING (true) WITH CHECK (true); or ALTER ROLE {role} BYPASSRLS",
    )


def publication(facts: Facts) -> Check | None:
    """For pgoutput: there before the slot, with the table, every change of it and every watched column."""
    found, told = facts.table, facts.publication
    if found is None or facts.settings.slot.plugin != "pgoutput":
        return None
    if told is None:
        return _no_publication(facts)
    name = quoted_name(facts.settings.slot.publication)
    if not tells_notes(facts.settings, facts.server.version_number):
        return Check("publication", "fail", UNTOLD, UNTOLD_REMEDY)
    flaw = publication_flaw(facts.settings, found, told, facts.server.version_number)
    if flaw is not None:
        return Check("publication", "fail", f"publication {name} {flaw.said}", flaw.remedy)
    return Check("publication", "ok", f"publication {name} has the table and its columns")


def _no_publication(facts: Facts) -> Check:
    name = quoted_name(facts.settings.slot.publication)
    making = creation_text(facts.settings, facts.all_tables, facts.server.version_number)
    if facts.slot is not None and facts.slot.plugin == "pgoutput":
        return Check(
            "publication",
            "fail",
            f"there is no publication {name}, and slot {facts.slot.name} is there already: changes made before the"
            " publication can't be read",
            f"cdcwatch slot drop, then cdcwatch slot create (it makes the publication first): {making}",
        )
    if not facts.may_publish:
        return Check(
            "publication",
            "fail",
            f"there is no publication {name}, and {facts.role.name} may not make one",
            f"as an owner of the table with CREATE in the database: {making}",
        )
    return Check("publication", "ok", f"slot create makes the publication {name}")
