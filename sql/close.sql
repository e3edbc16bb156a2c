-- name: close_batch
-- Closes what of a batch is open, due by the database's clock and unchanged, and returns it with its old deadline.
-- The rows are locked first, in the order of the key: writers that come in another order then can't deadlock with it.
-- A row that someone else holds is left to a later attempt. The change checks again what the lock has already checked.
-- A row that was locked and not changed all the same, as where a trigger says so, comes without a time of its close.
WITH _wanted AS (
    SELECT * FROM unnest({key_arrays}, %(versions)s::bigint[]) AS _wanted ({keys}, _version)
),
_locked AS (
    SELECT {row_keys}, {column} AS _column, {deadline} AS _deadline, _wanted._version
    FROM {table} AS {row}
    JOIN _wanted ON {same_key_as_wanted}
    WHERE {unchanged_from_wanted} AND {is_open} AND {deadline} <= clock_timestamp()
    ORDER BY {ordered_keys}
    FOR UPDATE OF {row} SKIP LOCKED
){note},
_closed AS (
    {close}
    WHERE {same_key_as_locked}
      AND {unchanged_from_locked} AND {is_open} AND {deadline} <= clock_timestamp()
    RETURNING {returned_keys}, _locked._column, _locked._deadline, {version} AS _version,
              clock_timestamp() AS _closed_at
){keep}
SELECT {key_outputs}, _deadline, _version, _closed_at FROM _closed
UNION ALL
-- Counted first: the planner takes both for a row or two and would compare each with each.
SELECT {key_outputs}, _deadline, NULL, NULL FROM _locked
WHERE (SELECT count(*) FROM _locked) > (SELECT count(*) FROM _closed)
  AND NOT EXISTS (SELECT FROM _closed WHERE {same_key_as_closed})

-- name: updates_locked
-- What close_batch does with the locked rows: close.action = "update".
UPDATE {table} AS {row} SET {changes} FROM _locked

-- name: deletes_locked
-- The same of close.action = "delete". The join holds it back until the note is written.
DELETE FROM {table} AS {row} USING _locked, _noted

-- name: note_locked
-- The part of close_batch that says which orders it is about to delete, by a transactional logical message: the stream has
-- it before the deletes, which it tells from the application's own.
, _noted AS MATERIALIZED (
    SELECT pg_logical_emit_message(true, {prefix}, json_build_object(
               'note', {kind}, 'table_oid', {oid}, 'keys', json_agg({noted_key}))::text) AS _lsn
    FROM _locked HAVING count(*) > 0
)

-- name: hex_texts
-- A key in that note: its columns' texts, whatever the database's encoding, in hexadecimal UTF-8.
json_build_array({texts})

-- name: hex_text
-- One of them.
encode(convert_to({text}, 'UTF8'), 'hex')

-- name: make_closed
-- The relation that the SQL of close.also reads, of the watched table's own types; gone at the end of the transaction.
CREATE TEMPORARY TABLE closed ON COMMIT DROP AS
SELECT {columns} FROM {table} AS {row} WITH NO DATA

-- name: keep_closed
-- The part of close_batch that fills it.
, _kept AS (INSERT INTO pg_temp.closed SELECT {columns} FROM _closed)

-- name: read_again
-- The orders that a close passed over, as they are now.
SELECT {key_outputs}, {status}, {version}, {deadline}, coalesce({deadline} <= clock_timestamp(), false)
FROM {table} AS {row}
JOIN unnest({key_arrays}) AS _wanted ({keys}) ON {same_key_as_wanted}

-- name: open_deadlines
-- A page of the window: open orders by deadline, all those of the page's last deadline included, so that the next page
-- begins after it. The statuses are literals and the bounds parameters, so that a partial index serves the range alone.
SELECT {key_outputs}, {deadline}, {version}, {mark}
FROM {table} AS {row}
WHERE {is_open} AND {in_range}
ORDER BY {column}
FETCH FIRST {page_rows} ROWS WITH TIES

-- name: between_instants
-- The range of a page, of a timestamptz.
{column} {after} {first} AND {column} <= %(through)s

-- name: between_local_times
-- The range of a page, of a deadline without time zone: roughly by the column, which has the index, and exactly. Pages go
-- by the column; where clocks are changed its order is not quite that of the instants.
{column} {after} {first} AND {column} <= {last}
    AND {deadline} {after_exactly} %(after)s AND {deadline} <= %(through)s

-- name: takes_writes
-- Whether a transaction may write: neither a standby, nor default_transaction_read_only.
SELECT NOT current_setting('transaction_read_only')::boolean

-- name: read_clock
-- The database's clock.
SELECT clock_timestamp()

-- name: leave_notes
-- One transaction's logical messages: decoded with the stream, so that its reader tells what they say.
SELECT pg_logical_emit_message(true, %(prefix)s, _note) FROM unnest(%(notes)s::text[]) AS _note
