-- Reads of the table: with which a new slot begins, after a gap, on request. Their events are snapshot events.

-- name: patient
-- The snapshot is kept while the topic is read, longer than a role's limits for idle transactions may allow.
-- https://www.postgresql.org/docs/current/runtime-config-client.html
SELECT set_config(name, '0', true)
  FROM pg_settings
 WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout', 'statement_timeout');

-- name: visibility
-- What this snapshot shows: transactions it sees are in it, the others come with the stream. The LSN is taken after the
-- snapshot, so that every transaction it shows has committed before it.
-- https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
SELECT pg_snapshot_xmin(shown)::text::bigint,
       pg_snapshot_xmax(shown)::text::bigint,
       ARRAY(SELECT xid::text::bigint FROM pg_snapshot_xip(shown) AS xid),
       pg_current_wal_insert_lsn()::text,
       clock_timestamp()
  FROM pg_current_snapshot() AS shown;

-- name: flush
-- Commits something, and so flushes the WAL up to here, on this server alone: a standby that is away holds up no read.
-- https://www.postgresql.org/docs/current/wal-async-commit.html
SELECT set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, 'cdcwatch.flush', '');

-- name: open_rows
-- Every open row with a deadline that can come: the partial index's predicate. Of some partitions alone it is asked
-- through their table, on which we have rights.
SELECT {key_texts}, {deadline}, {status}, {version}
  FROM {table}
 WHERE {is_open} AND {column} IS NOT NULL AND {column} < 'infinity' AND {is_wanted};

-- name: rows_of_keys
-- The rows that orders of the topic have, which the read didn't show open.
SELECT {key_texts}, {deadline}, {status}, {version}
  FROM {table}
  JOIN unnest({key_arrays}) AS wanted ({wanted}) ON {same_key};

-- name: writers
-- Transactions that have written to tables or partitions of theirs and have not ended: who writes locks until the end.
-- Which of the tables, which transaction, and the process; NULL of a prepared one.
-- https://www.postgresql.org/docs/current/view-pg-locks.html
SELECT DISTINCT wanted.oid::int8, held.virtualtransaction, held.pid
  FROM unnest(%(oids)s::oid[]) AS wanted(oid)
  JOIN pg_locks AS held
    ON held.relation = wanted.oid OR held.relation IN (SELECT relid FROM pg_partition_tree(wanted.oid::regclass))
 WHERE held.locktype = 'relation' AND held.granted AND held.mode IN ('RowExclusiveLock', 'AccessExclusiveLock')
   AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: estimate
-- About how many rows a query gives, by the planner: for how long a read takes, and nothing else.
-- https://www.postgresql.org/docs/current/sql-explain.html
EXPLAIN (FORMAT JSON) {query};
