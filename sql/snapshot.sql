-- The read of the table with which a new slot begins: its events are published as snapshot events.

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

-- name: open_rows
-- Every open row with a deadline that can come: the partial index's predicate. Of some partitions alone it is asked
-- through their table, on which we have rights.
SELECT {key_texts}, {deadline}, {status}, {version}
  FROM {table}
 WHERE {is_open} AND {column} IS NOT NULL AND {column} < 'infinity' AND {is_wanted};
