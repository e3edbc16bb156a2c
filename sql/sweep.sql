-- The compensation scan: what is overdue in the table, and the instances that share the work.

-- name: overdue
-- A page of what has been due for longer than the grace, by the server's own clock, oldest first. The bound is
-- statement_timestamp(), which does not change within the statement: so the partial index is read up to there and no
-- order of the future is looked at. No lock is taken: the closing statement takes it, and skips what others hold.
SELECT {key_outputs}, {deadline}, {version}, {mark}
FROM {table} AS {row}
WHERE {is_open} AND {is_overdue}{begin}
ORDER BY {column}
LIMIT %(limit)s

-- name: grace_ago
-- Since when an order of a page is due at the latest.
(statement_timestamp() - %(grace_us)s::bigint * interval '1 microsecond')

-- name: from_mark
-- A further page: from the last deadline of the one before, which may have more orders than that page had room for.
 AND {column} >= {first}

-- name: may_register
-- Whether this role may keep itself in the table of instances; no row where sql/install.sql has not made it.
SELECT has_schema_privilege('cdcwatch', 'USAGE')
       AND has_table_privilege(relation.oid, 'SELECT') AND has_table_privilege(relation.oid, 'INSERT')
       AND has_table_privilege(relation.oid, 'UPDATE') AND has_table_privilege(relation.oid, 'DELETE')
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE schema.nspname = 'cdcwatch' AND relation.relname = 'instances';

-- name: beat
-- A sign of life; the first one registers.
INSERT INTO cdcwatch.instances AS known (id, watched, weight, name, seen_at)
VALUES (%(id)s::uuid, %(watched)s::oid, %(weight)s::float8, %(name)s, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, weight = excluded.weight;

-- name: alive
-- Who sweeps this table and was seen of late.
SELECT id::text, weight FROM cdcwatch.instances
 WHERE watched = %(watched)s::oid AND seen_at > clock_timestamp() - %(dead_after_s)s * interval '1 second';

-- name: bury
-- Those that did not take their leave, long after.
DELETE FROM cdcwatch.instances WHERE seen_at < clock_timestamp() - interval '1 day';

-- name: withdraw
-- An instance that ends, or can't do its share.
DELETE FROM cdcwatch.instances WHERE id = %(id)s::uuid;

-- name: position
-- Where the primary's WAL is safe: a standby is sent no more than that.
-- https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-BACKUP
SELECT pg_current_wal_flush_lsn()::text;

-- name: identity
-- Which server and database this is, to tell whether a standby is one of ours.
SELECT (SELECT system_identifier::text FROM pg_control_system()), current_database()::text, pg_is_in_recovery();

-- name: replayed
-- Whether a standby has replayed up to there; NULL where the server is no standby any more.
-- https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-RECOVERY-CONTROL
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() >= %(lsn)s::pg_lsn END;
