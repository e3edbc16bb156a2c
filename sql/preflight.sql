-- What `cdcwatch check` and `cdcwatch slot create` ask of the server and of the watched table: one block a group of facts.
-- All of it may be read by any role that can log in.

-- name: server_facts
-- Version, settings and what is taken of the two limits that a slot and its reader need one of each.
-- https://www.postgresql.org/docs/current/runtime-config-replication.html
SELECT current_setting('server_version_num')::int                                              AS version_number,
       current_setting('server_version')                                                       AS version,
       current_setting('wal_level')                                                            AS wal_level,
       pg_is_in_recovery()                                                                     AS in_recovery,
       current_setting('max_replication_slots')::int                                           AS slots_allowed,
       (SELECT count(*)::int FROM pg_replication_slots)                                        AS slots_taken,
       current_setting('max_wal_senders')::int                                                 AS walsenders_allowed,
       (SELECT count(*)::int FROM pg_stat_replication)                                         AS walsenders_taken,
       (SELECT nullif(setting, '-1')::bigint * 1048576
          FROM pg_settings WHERE name = 'max_slot_wal_keep_size')                              AS slot_keep_bytes,
       EXISTS (SELECT FROM pg_settings WHERE name = 'max_slot_wal_keep_size')                  AS knows_slot_keep;

-- name: role_facts
-- Who we are, and what lets us use replication. Managed services grant a role of theirs instead of the attribute.
-- https://www.postgresql.org/docs/current/role-attributes.html
SELECT quote_ident(role.rolname)                                                               AS name,
       role.rolsuper                                                                           AS is_superuser,
       role.rolreplication                                                                     AS has_replication,
       (SELECT quote_ident(service.rolname) FROM pg_roles service
         WHERE service.rolname IN ('rds_replication') AND pg_has_role(role.oid, service.oid, 'MEMBER')
         LIMIT 1)                                                                              AS member_of,
       (SELECT quote_ident(service.rolname) FROM pg_roles service
         WHERE service.rolname IN ('rds_replication') LIMIT 1)                                 AS service_role
  FROM pg_roles role
 WHERE role.rolname = current_user;

-- name: allowed_plugins
-- The output plugins this server lets in; NULL where the setting doesn't exist. Fails with 42501 where it exists and this
-- role may not read it (only superusers and members of pg_read_all_settings may).
SELECT current_setting('output_plugin_libraries', true) AS allowed_plugins;

-- name: relation
-- The watched table, whatever kind of relation it is.
-- https://www.postgresql.org/docs/current/catalog-pg-class.html
SELECT relation.oid::int8                                                                      AS oid,
       relation.relkind::text                                                                  AS kind,
       relation.relpersistence::text                                                           AS persistence,
       relation.relreplident::text                                                             AS identity,
       quote_ident(schema.nspname)                                                             AS sql_schema,
       format('%%I.%%I', schema.nspname, relation.relname)                                     AS sql_name
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE schema.nspname = %(schema)s AND relation.relname = %(name)s;

-- name: near_matches
-- Tables whose name differs from the wanted one in case or schema only.
SELECT format('%%I.%%I', schema.nspname, relation.relname) AS sql_name
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE lower(relation.relname) = lower(%(name)s) AND relation.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND schema.nspname NOT LIKE 'pg\_%%' AND schema.nspname <> 'information_schema'
 ORDER BY schema.nspname <> %(schema)s, 1
 LIMIT 5;

-- name: columns
-- Every column with its type, as SQL writes both.
-- https://www.postgresql.org/docs/current/catalog-pg-attribute.html
SELECT attribute.attname::text                                                                 AS name,
       quote_ident(attribute.attname)                                                          AS sql_name,
       format_type(attribute.atttypid, attribute.atttypmod)                                    AS type,
       attribute.atttypid = 'timestamptz'::regtype                                             AS is_timestamptz,
       attribute.attnotnull                                                                    AS is_not_null
  FROM pg_attribute attribute
 WHERE attribute.attrelid = %(oid)s AND attribute.attnum > 0 AND NOT attribute.attisdropped
 ORDER BY attribute.attnum;

-- name: unique_indexes
-- The indexes that can tell rows apart: unique, valid, over whole rows and plain columns; the primary key's columns in its
-- order. A deferrable one is no replica identity.
-- https://www.postgresql.org/docs/current/catalog-pg-index.html
SELECT index.indisprimary                                                                      AS is_primary,
       index.indisreplident                                                                    AS is_identity,
       index.indimmediate                                                                      AS is_immediate,
       array_agg(attribute.attname::text ORDER BY part.place)                                  AS columns
  FROM pg_index index
  CROSS JOIN LATERAL unnest(index.indkey::int2[]) WITH ORDINALITY AS part (number, place)
  JOIN pg_attribute attribute ON attribute.attrelid = index.indrelid AND attribute.attnum = part.number
 WHERE index.indrelid = %(oid)s AND index.indisunique AND index.indisvalid
   AND index.indpred IS NULL AND index.indexprs IS NULL AND part.place <= index.indnkeyatts
 GROUP BY index.indexrelid, index.indisprimary, index.indisreplident, index.indimmediate
 ORDER BY index.indisprimary DESC, index.indexrelid;

-- name: rights
-- What this role may do with the watched table. A right on the whole table counts for each of its columns.
-- https://www.postgresql.org/docs/current/functions-info.html
SELECT has_schema_privilege(relation.relnamespace, 'USAGE')                                    AS may_use_schema,
       NOT EXISTS (SELECT FROM unnest(%(read)s::text[]) AS wanted (name)
                    WHERE NOT has_column_privilege(relation.oid, wanted.name, 'SELECT'))       AS may_select,
       NOT EXISTS (SELECT FROM unnest(%(written)s::text[]) AS wanted (name)
                    WHERE NOT has_column_privilege(relation.oid, wanted.name, 'UPDATE'))       AS may_update,
       has_table_privilege(relation.oid, 'DELETE')                                             AS may_delete
  FROM pg_class relation
 WHERE relation.oid = %(oid)s;

-- name: avoid_full_scans
-- Makes the planner's choice between an index and a full scan a question of possibility, not of the table's size today.
SET LOCAL enable_seqscan = off;

-- name: explain_due
-- The plan of the scan for due rows, as the sweep and `cdcwatch pending` run it.
-- https://www.postgresql.org/docs/current/using-explain.html
EXPLAIN (FORMAT JSON)
SELECT 1 FROM {table} WHERE {is_open} AND {deadline} <= statement_timestamp() ORDER BY {deadline} LIMIT 1;
