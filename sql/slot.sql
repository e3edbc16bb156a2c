-- The replication slot's life: made, watched, dropped. Nothing here ends a backend.

-- name: unhurried
-- Settings of the connection that makes a slot: its own time limit, and none of the role's that would end the wait for
-- running transactions earlier; and the server notices by itself when we are gone. Only settings this server knows.
-- https://www.postgresql.org/docs/current/runtime-config-client.html
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN %(timeout_ms)s::text
                                  WHEN 'client_connection_check_interval' THEN '1s'
                                  ELSE '0' END, false)
  FROM pg_settings
 WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'client_connection_check_interval');

-- name: create_slot
-- Waits until every transaction that was running has ended, in all databases.
-- https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
SELECT lsn FROM pg_create_logical_replication_slot(%(slot)s, %(plugin)s);

-- name: create_failover_slot
-- The same with a slot that is synchronised to standbys; PostgreSQL 17 and later.
-- https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS-SYNCHRONIZATION
SELECT lsn FROM pg_create_logical_replication_slot(%(slot)s, %(plugin)s, failover => true);

-- name: blockers
-- Whom the backend `creator` waits for: transactions that have written, a second old or more, and prepared ones. The age is
-- NULL for other roles' transactions unless this role is a member of pg_read_all_stats.
-- https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-ACTIVITY-VIEW
SELECT activity.pid                                                                            AS pid,
       extract(epoch FROM clock_timestamp() - activity.xact_start)::float8                     AS age_s,
       coalesce(activity.application_name, '')                                                 AS application,
       coalesce(activity.usename::text, activity.backend_type, '')                             AS role_name,
       coalesce(activity.datname::text, '')                                                    AS database
  FROM pg_stat_activity activity
 WHERE activity.pid NOT IN (%(creator)s, pg_backend_pid())
   AND (activity.pid = ANY (pg_blocking_pids(%(creator)s))
        OR activity.backend_xid IS NOT NULL
           AND coalesce(activity.xact_start <= clock_timestamp() - interval '1 second', true))
UNION ALL
SELECT NULL, extract(epoch FROM clock_timestamp() - prepared.prepared)::float8,
       'prepared transaction ' || prepared.gid, prepared.owner::text, prepared.database::text
  FROM pg_prepared_xacts prepared
 ORDER BY age_s DESC NULLS LAST
 LIMIT 10;

-- name: create_temporary_slot
-- A slot that ends with its connection: whether a plugin can be loaded and what it accepts shows on one.
SELECT pg_create_logical_replication_slot(%(slot)s, %(plugin)s, true);

-- name: drop_temporary_slot
-- When it was made; one whose making failed is gone by itself.
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %(slot)s AND temporary;

-- name: slot_status
-- Slots with its owner and its distances, all in bytes. Columns that came with later versions are NULL before them
-- (to_jsonb: this one query has to be read by all of them).
-- https://www.postgresql.org/docs/current/view-pg-replication-slots.html
SELECT slot.slot_name::text                                                                    AS name,
       slot.slot_type                                                                          AS kind,
       slot.plugin::text                                                                       AS plugin,
       slot.database::text                                                                     AS database,
       current_database()::text                                                                AS connected_database,
       slot.active                                                                             AS active,
       slot.active_pid                                                                         AS owner_pid,
       activity.application_name                                                               AS owner_application,
       host(activity.client_addr)                                                              AS owner_address,
       slot.confirmed_flush_lsn::text                                                          AS confirmed_flush_lsn,
       slot.restart_lsn::text                                                                  AS restart_lsn,
       (here.lsn - slot.confirmed_flush_lsn)::int8                                             AS lag_bytes,
       (here.lsn - slot.restart_lsn)::int8                                                     AS retained_bytes,
       to_jsonb(slot) ->> 'wal_status'                                                         AS wal_status,
       (to_jsonb(slot) ->> 'safe_wal_size')::int8                                              AS safe_wal_bytes,
       to_jsonb(slot) ->> 'invalidation_reason'                                                AS invalidation_reason,
       (SELECT nullif(setting, '-1')::bigint * 1048576
          FROM pg_settings WHERE name = 'max_slot_wal_keep_size')                              AS keep_bytes,
       age(slot.catalog_xmin)                                                                  AS catalog_xmin_age,
       coalesce((to_jsonb(slot) ->> 'failover')::bool, false)                                  AS failover,
       extract(epoch FROM clock_timestamp()
                          - (to_jsonb(slot) ->> 'inactive_since')::timestamptz)::float8        AS inactive_s,
       here.lsn::text                                                                          AS server_lsn
  FROM pg_replication_slots slot
  LEFT JOIN pg_stat_activity activity ON activity.pid = slot.active_pid
 CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                         ELSE pg_current_wal_lsn() END) AS here (lsn)
 WHERE slot.slot_name = %(slot)s::text OR %(slot)s::text IS NULL AND slot.slot_type = 'logical' AND NOT slot.temporary
 ORDER BY slot.slot_name;

-- name: wal_written
-- What the server has written so far, and its average since its statistics were reset; PostgreSQL 14 and later.
-- https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-WAL-VIEW
SELECT (wal.wal_bytes / greatest(extract(epoch FROM clock_timestamp() - wal.stats_reset), 1))::float8
  FROM pg_stat_wal wal;

-- name: wal_position
-- Where the WAL ends, with the server's clock: two of them are a rate.
SELECT ((CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)
        - '0/0'::pg_lsn)::int8,
       extract(epoch FROM clock_timestamp())::float8;

-- name: flushed_lsn
-- No slot may be moved beyond.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text, (SELECT system_identifier::text FROM pg_control_system());

-- name: peek
-- The slot's changes as the plugin writes them, byte for byte, without consuming any: a function that gives text would
-- convert a text plugin's words, which the stream does not. Read up to a number of them at the end of a transaction, or up
-- to an LSN. https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
SELECT lsn::text, data
  FROM pg_logical_slot_peek_binary_changes(%(slot)s, %(upto_lsn)s::pg_lsn, %(upto_count)s, VARIADIC %(options)s::text[]);

-- name: advance_slot
-- Moves the slot; what lies between is gone for it.
SELECT end_lsn::text FROM pg_replication_slot_advance(%(slot)s, %(lsn)s::pg_lsn);

-- name: create_publication
-- Before the slot: a slot of pgoutput that finds no publication at a change fails there for ever.
-- https://www.postgresql.org/docs/current/sql-createpublication.html
CREATE PUBLICATION {publication} FOR TABLE {members}{options};

-- name: drop_publication
-- One that was made for a slot that then was not.
DROP PUBLICATION IF EXISTS {publication};

-- name: drop_slot
-- Refused by the server while somebody reads the slot.
SELECT pg_drop_replication_slot(%(slot)s);

-- name: pinned
-- Settings of a connection that reads changes: instants and numbers in the form that the decoders know, as the stream has
-- them. https://www.postgresql.org/docs/current/runtime-config-client.html
SELECT set_config('DateStyle', 'ISO', false), set_config('TimeZone', 'UTC', false),
       set_config('IntervalStyle', 'postgres', false), set_config('extra_float_digits', '3', false),
       set_config('bytea_output', 'hex', false);
