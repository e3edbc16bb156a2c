"""Managed services: what an operator does there in place of ALTER SYSTEM and a superuser. Pure.

https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/PostgreSQL.Concepts.General.FeatureSupport.LogicalReplication.html
https://cloud.google.com/sql/docs/postgres/replication/configure-logical-replication
https://learn.microsoft.com/azure/postgresql/flexible-server/concepts-logical
https://supabase.com/docs/guides/database/replication
https://neon.com/docs/guides/logical-replication-neon
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Service(Struct, frozen=True):
    """A managed PostgreSQL, known by a role that only it has."""

    name: str
    marker_role: str
    parameters: str
    """Where its parameters are set, as a command or a place: `{name}`, `{value}`."""
    logical: str
    """What makes wal_level logical."""
    replication: str = "ALTER ROLE {role} REPLICATION"
    """What lets a role use slots: `{role}`."""
    direct: str = ""
    """How to get past its own pooler."""
    note: str = ""
    """What a slot's owner must know."""

    def set(self, name: str, value: str, *, restart: bool) -> str:
        """The remedy that gives a parameter a value."""
        return self.parameters.format(name=name, value=value) + ("; then restart the instance" if restart else "")


SERVICES: Final = (
    Service(
        "Amazon RDS or Aurora",
        "rds_superuser",
        "in the DB parameter group: {name} = {value}",
        "in the DB (cluster) parameter group: rds.logical_replication = 1; then reboot the instance",
        replication="GRANT rds_replication TO {role}",
        direct="the instance's own endpoint, not RDS Proxy's",
        note="a major version upgrade refuses to start while logical slots exist: drop them before",
    ),
    Service(
        "Google Cloud SQL",
        "cloudsqlsuperuser",
        "gcloud sql instances patch INSTANCE --database-flags={name}={value} (with all flags set already: the list is"
        " replaced)",
        "gcloud sql instances patch INSTANCE --database-flags=cloudsql.logical_decoding=on (with all flags set already:"
        " the list is replaced); it restarts the instance",
        replication="ALTER ROLE {role} REPLICATION (as a member of cloudsqlsuperuser)",
    ),
    Service(
        "Google AlloyDB",
        "alloydbsuperuser",
        "gcloud alloydb instances update INSTANCE --database-flags={name}={value} (with all flags set already)",
        "gcloud alloydb instances update INSTANCE --database-flags=alloydb.logical_decoding=on (with all flags set"
        " already); it restarts the instance",
        replication="ALTER ROLE {role} REPLICATION (as a member of alloydbsuperuser)",
    ),
    Service(
        "Azure Database for PostgreSQL",
        "azure_pg_admin",
        "az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER --name {name}"
        " --value {value}",
        "az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER --name wal_level"
        " --value logical; then az postgres flexible-server restart --resource-group GROUP --name SERVER",
        replication="ALTER ROLE {role} REPLICATION (as the server's admin)",
        direct="port 5432, not 6432, where its PgBouncer listens",
    ),
    Service(
        "Supabase",
        "supabase_admin",
        "supabase --experimental --project-ref REF postgres-config update --config {name}={value}",
        "wal_level is logical there by default: ask its support",
        direct="the direct connection string (db.REF.supabase.co, port 5432), not the pooler's; its IPv4 add-on where"
        " there is no IPv6",
    ),
    Service(
        "Neon",
        "neon_superuser",
        "in the project's settings: {name} = {value}",
        "enable logical replication in the project's settings: it restarts all computes and can't be undone",
        replication="ALTER ROLE {role} REPLICATION (roles made in its console have it)",
        direct="the host name without -pooler",
        note="it removes slots that were inactive for about 40 hours, and those of a restored branch",
    ),
)

REPLICATION_ROLES: Final = ("rds_replication",)
"""Roles whose members may use slots without the attribute."""


def service_of(marker_role: str | None) -> Service | None:
    """The service whose role the server has."""
    return next((service for service in SERVICES if service.marker_role == marker_role), None)


def set_parameter(service: Service | None, name: str, value: str, *, restart: bool) -> str:
    """The remedy that gives a server's parameter a value. `value`: as SQL writes it."""
    if service is not None:
        return service.set(name, value.replace("'", ""), restart=restart)
    after = "then restart the server" if restart else "SELECT pg_reload_conf();"
    return f"ALTER SYSTEM SET {name} = {value}; {after}"
