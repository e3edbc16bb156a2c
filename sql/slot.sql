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

-- name: slot_status
-- The slot with its owner and its distances, all in bytes. Columns that came with later versions are NULL before them
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
          FROM pg_settings WHERE name = 'max_slot_wal_keep_size')                              AS keep_bytes
  FROM pg_replication_slots slot
  LEFT JOIN pg_stat_activity activity ON activity.pid = slot.active_pid
 CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                         ELSE pg_current_wal_lsn() END) AS here (lsn)
 WHERE slot.slot_name = %(slot)s;

-- name: drop_slot
-- Refused by the server while somebody reads the slot.
SELECT pg_drop_replication_slot(%(slot)s);
