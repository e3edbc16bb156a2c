-- What `cdcwatch pending` shows. Both scans run along the partial index over open deadlines, in one transaction: its
-- start is now to both.

-- name: pending
-- The open rows of the nearest deadlines, with the database's own time beside each.
SELECT now(), {deadline}, {version}, {key}
  FROM {table}
 WHERE {is_open} AND {column} < 'infinity'
 ORDER BY {column}
 LIMIT {limit};

-- name: one_snapshot
-- What the scans see: the same rows, though some are closed between them.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: overdue
-- How many open rows are due, counted up to a limit: a backlog must not be read in full to be known as one.
SELECT count(*)
  FROM (SELECT FROM {table} WHERE {is_open} AND {is_due} LIMIT {limit}) AS due;

-- name: order
-- One order by its key, with the database's own time; the key comes back as the table writes it.
SELECT clock_timestamp(), {deadline}, {status}, {version}, {is_open}, {key}
  FROM {table}
 WHERE {same_key};

-- name: canonical_key
-- A key's texts as its columns' types write them, whether or not there is such an order.
SELECT {key};
