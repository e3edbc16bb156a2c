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
       EXISTS (SELECT FROM pg_settings WHERE name = 'max_slot_wal_keep_size')                  AS knows_slot_keep,
       current_setting('server_encoding')                                                      AS encoding,
       (SELECT extract(epoch FROM (setting || unit)::interval)::float8
          FROM pg_settings WHERE name = 'idle_replication_slot_timeout' AND setting <> '0')    AS idle_slot_timeout_s,
       current_setting('synchronized_standby_slots', true)                                     AS synchronized_standby_slots,
       (SELECT marker FROM unnest(%(service_roles)s::text[]) WITH ORDINALITY AS known (marker, place)
         WHERE EXISTS (SELECT FROM pg_roles WHERE rolname = marker)
         ORDER BY place LIMIT 1)                                                               AS service_role;

-- name: role_facts
-- Who we are, and what lets us use replication. Managed services grant a role of theirs instead of the attribute.
-- https://www.postgresql.org/docs/current/role-attributes.html
SELECT quote_ident(role.rolname)                                                               AS name,
       role.rolsuper                                                                           AS is_superuser,
       role.rolreplication                                                                     AS has_replication,
       (SELECT quote_ident(service.rolname) FROM pg_roles service
         WHERE service.rolname = ANY (%(granted)s) AND pg_has_role(role.oid, service.oid, 'MEMBER')
         LIMIT 1)                                                                              AS member_of,
       (SELECT quote_ident(service.rolname) FROM pg_roles service
         WHERE service.rolname = ANY (%(granted)s) LIMIT 1)                                    AS service_role
  FROM pg_roles role
 WHERE role.rolname = current_user;

-- name: session_facts
-- This connection as the server sees it: whether it is encrypted, whether it left the machine, and which process serves it.
-- A pooler hands out a process id of its own at connect, so that the two differ behind one.
-- https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-SSL-VIEW
SELECT pg_backend_pid()                                                                        AS backend_pid,
       coalesce(ssl.ssl, false)                                                                AS is_encrypted,
       coalesce(ssl.version, '')                                                               AS tls_version,
       inet_client_addr() IS NULL OR host(inet_client_addr()) = host(inet_server_addr())
           OR inet_client_addr() <<= inet '127.0.0.0/8'                                        AS is_local
  FROM pg_stat_ssl ssl
 WHERE ssl.pid = pg_backend_pid();

-- name: server_clock
-- The database's clock, to be compared with ours: microseconds since 1970.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8;

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
-- Every column with its type, as SQL writes both; of a domain also the type that it comes down to.
-- https://www.postgresql.org/docs/current/catalog-pg-attribute.html
SELECT attribute.attname::text                                                                 AS name,
       quote_ident(attribute.attname)                                                          AS sql_name,
       format_type(attribute.atttypid, attribute.atttypmod)                                    AS type,
       coalesce((WITH RECURSIVE bases AS (
                     SELECT domain.typbasetype, domain.typtypmod
                       FROM pg_type domain WHERE domain.oid = attribute.atttypid AND domain.typtype = 'd'
                     UNION ALL
                     SELECT inner_domain.typbasetype, inner_domain.typtypmod
                       FROM bases JOIN pg_type inner_domain ON inner_domain.oid = bases.typbasetype
                      WHERE inner_domain.typtype = 'd')
                 SELECT format_type(bases.typbasetype, bases.typtypmod)
                   FROM bases JOIN pg_type base ON base.oid = bases.typbasetype AND base.typtype <> 'd'), '')
                                                                                               AS base,
       CASE attribute.atttypid WHEN 'timestamptz'::regtype THEN 'timestamptz'
                               WHEN 'timestamp'::regtype THEN 'timestamp'
                               WHEN 'date'::regtype THEN 'date' ELSE '' END                    AS time_kind,
       attribute.attnotnull                                                                    AS is_not_null,
       coalesce(to_jsonb(attribute) ->> 'attgenerated', '')                                    AS generated
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

-- name: partitions
-- The leaves of a partitioned table, each with its own replica identity: it is not inherited from the parent.
-- https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-REPLICA-IDENTITY
SELECT leaf.oid::int8                                                                          AS oid,
       schema.nspname::text                                                                    AS schema,
       leaf.relname::text                                                                      AS name,
       leaf.relfilenode::int8                                                                  AS filenode,
       format('%%I.%%I', schema.nspname, leaf.relname)                                         AS sql_name,
       leaf.relkind::text                                                                      AS kind,
       leaf.relpersistence::text                                                               AS persistence,
       leaf.relreplident::text                                                                 AS identity,
       ARRAY(SELECT attribute.attname::text
               FROM pg_index index
               CROSS JOIN LATERAL unnest(index.indkey::int2[]) WITH ORDINALITY AS part (number, place)
               JOIN pg_attribute attribute
                 ON attribute.attrelid = index.indrelid AND attribute.attnum = part.number
              WHERE index.indrelid = leaf.oid AND index.indisvalid AND index.indimmediate
                AND part.place <= index.indnkeyatts
                AND (leaf.relreplident = 'd' AND index.indisprimary
                     OR leaf.relreplident = 'i' AND index.indisreplident))                     AS identity_columns,
       (SELECT quote_ident(part_class.relname)
          FROM pg_index part
          JOIN pg_class part_class ON part_class.oid = part.indexrelid
          JOIN pg_index whole ON whole.indexrelid = pg_partition_root(part.indexrelid)
         WHERE part.indrelid = leaf.oid AND part.indisvalid
           AND whole.indrelid = %(oid)s AND whole.indisreplident
         LIMIT 1)                                                                              AS identity_part,
       -- The rows that make it one, by the transactions that wrote them: freezing leaves xmin as it is.
       coalesce((SELECT string_agg(link.xmin::text, '.' ORDER BY link.inhrelid)
                   FROM pg_partition_ancestors(leaf.oid) AS above
                   JOIN pg_inherits link ON link.inhrelid = above.relid
                  WHERE link.inhrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)
                                           WHERE level > 0)), '')                              AS stamp
  FROM pg_partition_tree(%(oid)s::oid::regclass) AS tree
  JOIN pg_class leaf ON leaf.oid = tree.relid
  JOIN pg_namespace schema ON schema.oid = leaf.relnamespace
 WHERE tree.isleaf
 ORDER BY sql_name;

-- name: status_column
-- The status column: the labels of its enum, NULL when it is none, and the CHECK constraints about it alone.
-- https://www.postgresql.org/docs/current/catalog-pg-enum.html
SELECT (SELECT array_agg(label.enumlabel::text ORDER BY label.enumsortorder)
          FROM pg_enum label WHERE label.enumtypid = attribute.atttypid)                       AS labels,
       ARRAY(SELECT quote_ident(conname)
               FROM pg_constraint
              WHERE conrelid = attribute.attrelid AND contype = 'c' AND conkey = ARRAY[attribute.attnum]
              ORDER BY conname)                                                                AS constraint_names,
       ARRAY(SELECT pg_get_expr(conbin, conrelid)
               FROM pg_constraint
              WHERE conrelid = attribute.attrelid AND contype = 'c' AND conkey = ARRAY[attribute.attnum]
              ORDER BY conname)                                                                AS constraint_texts
  FROM pg_attribute attribute
 WHERE attribute.attrelid = %(oid)s AND attribute.attname = %(status)s;

-- name: status_fits
-- Whether a status is kept by the column's type as it is written.
SELECT ({status})::{type}::text = {status};

-- name: status_passes
-- What a CHECK constraint says of a status. Its text is the catalog's own.
SELECT ({constraint}) FROM (SELECT ({status})::{type} AS {column}) AS row;

-- name: statuses_seen
-- Whether the statistics list every status there is, and none of the wanted ones. Nothing of them leaves the server.
-- https://www.postgresql.org/docs/current/view-pg-stats.html
SELECT stats.n_distinct > 0
       AND cardinality(stats.most_common_vals::text::text[]) >= stats.n_distinct
       AND NOT stats.most_common_vals::text::text[] && %(statuses)s::text[]
  FROM pg_stats stats
 WHERE stats.schemaname = %(schema)s AND stats.tablename = %(table)s AND stats.attname = %(status)s
   AND stats.most_common_vals IS NOT NULL
 LIMIT 1;

-- name: publication_facts
-- The publication and what it says of the watched table. Columns that came with later versions are NULL before them. A column
-- list of all columns shows only in pg_publication_rel.
-- https://www.postgresql.org/docs/current/view-pg-publication-tables.html
SELECT publication.pubinsert AND publication.pubupdate AND publication.pubdelete
           AND publication.pubtruncate                                                         AS publishes_all,
       coalesce((to_jsonb(publication) ->> 'pubviaroot')::bool, false)                         AS via_root,
       coalesce(published.tablename IS NOT NULL, false)                                        AS has_table,
       ARRAY(SELECT jsonb_array_elements_text(to_jsonb(published) -> 'attnames'))              AS columns,
       to_jsonb(published) ->> 'rowfilter' IS NOT NULL                                         AS has_row_filter,
       EXISTS (SELECT FROM pg_publication_rel member
                WHERE member.prpubid = publication.oid AND member.prrelid = %(oid)s
                  AND to_jsonb(member) ->> 'prattrs' IS NOT NULL)                              AS has_column_list
  FROM pg_publication publication
  LEFT JOIN pg_publication_tables published
    ON published.pubname = publication.pubname
   AND published.schemaname = %(schema)s AND published.tablename = %(table)s
 WHERE publication.pubname = %(publication)s;

-- name: publication_stamp
-- Who wrote the publication, and its members that hold the table: itself, what it is a partition of, or their schemas.
-- An ALTER that is taken back leaves other rows; other tables that come and go don't. A member is found by what it
-- depends on: pg_publication_namespace came with PostgreSQL 15.
-- https://www.postgresql.org/docs/current/catalog-pg-publication-rel.html
WITH held AS (SELECT relation.oid, relation.relnamespace
                FROM pg_class relation
               WHERE relation.oid = %(oid)s
                  OR relation.oid IN (SELECT relid FROM pg_partition_ancestors(%(oid)s::oid::regclass)))
SELECT format('%%s.%%s', publication.oid, publication.xmin::text)                                      AS publication,
       coalesce(string_agg(format('%%s.%%s', member.objid, member.xmin), ' '
                           ORDER BY member.objid, member.xmin::text), '')                       AS members,
       coalesce(bool_and(member.xmin::text IN (SELECT attribute.xmin::text
                                                 FROM pg_attribute attribute
                                                WHERE attribute.attrelid = %(oid)s AND attribute.attnum > 0)),
                false)                                                                          AS goes_with_column
  FROM pg_publication publication
  LEFT JOIN pg_depend member
    ON member.refclassid = 'pg_publication'::regclass AND member.refobjid = publication.oid
   AND EXISTS (SELECT FROM pg_depend other
                WHERE other.classid = member.classid AND other.objid = member.objid
                  AND (other.refclassid = 'pg_class'::regclass AND other.refobjid IN (SELECT oid FROM held)
                       OR other.refclassid = 'pg_namespace'::regclass
                           AND other.refobjid IN (SELECT relnamespace FROM held)))
 WHERE publication.pubname = %(publication)s
 GROUP BY publication.oid, publication.xmin::text;

-- name: publication_rights
-- What making a publication for the table takes: to own it, and CREATE in the database.
-- https://www.postgresql.org/docs/current/logical-replication-security.html
SELECT pg_has_role(relation.relowner, 'USAGE') AND has_database_privilege(current_database(), 'CREATE')
  FROM pg_class relation
 WHERE relation.oid = %(oid)s;

-- name: index_facts
-- Of an index by name: whether it holds open rows alone.
SELECT bool_or(index.indpred IS NOT NULL)
  FROM pg_index index JOIN pg_class relation ON relation.oid = index.indexrelid
 WHERE relation.relname = %(index)s AND index.indrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)
                                                            UNION ALL SELECT %(oid)s::oid);

-- name: invalid_indexes
-- What an interrupted CREATE INDEX CONCURRENTLY leaves behind: written by every change, used by no query.
SELECT format('%%I.%%I', schema.nspname, relation.relname)
  FROM pg_index index
  JOIN pg_class relation ON relation.oid = index.indexrelid
  JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE index.indrelid = %(oid)s AND NOT index.indisvalid AND relation.relkind = 'i'
   AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index building WHERE building.index_relid = index.indexrelid)
 ORDER BY 1;

-- name: rights
-- What this role may do with the watched table. A right on the whole table counts for each of its columns. Row-level
-- security filters unless a policy lets this role see and change everything.
-- https://www.postgresql.org/docs/current/ddl-rowsecurity.html
-- https://www.postgresql.org/docs/current/functions-info.html
SELECT has_schema_privilege(relation.relnamespace, 'USAGE')                                    AS may_use_schema,
       NOT EXISTS (SELECT FROM unnest(%(read)s::text[]) AS wanted (name)
                    WHERE NOT has_column_privilege(relation.oid, wanted.name, 'SELECT'))       AS may_select,
       NOT EXISTS (SELECT FROM unnest(%(written)s::text[]) AS wanted (name)
                    WHERE NOT has_column_privilege(relation.oid, wanted.name, 'UPDATE'))       AS may_update,
       has_table_privilege(relation.oid, 'DELETE')                                             AS may_delete,
       has_any_column_privilege(relation.oid, 'UPDATE')                                        AS may_lock,
       has_database_privilege(current_database(), 'TEMPORARY')                                 AS may_make_temporary,
       quote_ident(current_database())                                                         AS database,
       row_security_active(relation.oid)
           AND (EXISTS (SELECT FROM pg_policies policy
                         WHERE policy.schemaname = schema.nspname
                           AND policy.tablename = relation.relname AND policy.permissive = 'RESTRICTIVE')
                OR NOT EXISTS (SELECT FROM pg_policies policy
                                WHERE policy.schemaname = schema.nspname
                                  AND policy.tablename = relation.relname AND policy.cmd = 'ALL'
                                  AND policy.qual = 'true' AND coalesce(policy.with_check, 'true') = 'true'
                                  AND EXISTS (SELECT FROM unnest(policy.roles) AS name
                                               WHERE name = 'public' OR pg_has_role(name, 'USAGE'))))
                                                                                               AS is_filtered
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE relation.oid = %(oid)s;

-- name: time_zone
-- Whether the server knows a time zone: an error (22023) where it doesn't; and, where it takes the name for one of its
-- abbreviations, the offset in microseconds that this one stands for.
-- https://www.postgresql.org/docs/current/datatype-datetime.html#DATATYPE-TIMEZONES
SELECT (statement_timestamp() AT TIME ZONE %(zone)s)::text,
       (SELECT (extract(epoch FROM known.utc_offset) * 1000000)::int8
          FROM pg_timezone_abbrevs known WHERE known.abbrev = upper(%(zone)s));

-- name: zone_samples
-- What the server makes of the zone's local times, every half hour of the years to come: both sides in microseconds since
-- 2000-01-01.
SELECT (extract(epoch FROM local - timestamp '2000-01-01') * 1000000)::int8,
       (extract(epoch FROM local AT TIME ZONE %(zone)s - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8
  FROM generate_series(date_trunc('year', statement_timestamp() AT TIME ZONE 'UTC'),
                       date_trunc('year', statement_timestamp() AT TIME ZONE 'UTC') + %(years)s * interval '1 year',
                       interval '30 minutes') AS local;

-- name: avoid_full_scans
-- Makes the planner's choice between an index and a full scan a question of possibility, not of the table's size today.
SET LOCAL enable_seqscan = off;

-- name: explain_due
-- The plan of the scan for due rows, as the sweep and `cdcwatch pending` run it.
-- https://www.postgresql.org/docs/current/using-explain.html
EXPLAIN (FORMAT JSON)
SELECT 1 FROM {table} WHERE {is_open} AND {is_due} ORDER BY {deadline} LIMIT 1;

-- name: partition_of_another
-- Of tables that are to be watched together, one that is a partition of another, and that other; no row when there is none.
-- https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-PARTITION
SELECT part.oid::int8, whole.oid::int8
  FROM unnest(%(oids)s::oid[]) AS part(oid)
  JOIN unnest(%(oids)s::oid[]) AS whole(oid)
    ON whole.oid <> part.oid AND whole.oid IN (SELECT relid::oid FROM pg_partition_ancestors(part.oid::regclass) AS up(relid))
 LIMIT 1;

-- name: understand
-- Whether several statements can be parsed and their names are known, without running them.
-- https://www.postgresql.org/docs/current/sql-createfunction.html
CREATE FUNCTION pg_temp.cdcwatch_also() RETURNS void LANGUAGE sql AS {body}
