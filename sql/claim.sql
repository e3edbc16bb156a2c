-- close.action = "claim": an order whose close calls something outside. Its status becomes close.claim.processing together
-- with a row of cdcwatch.claims, and stays so until the outside has answered: what may have taken effect there must not
-- look open again. Everything that is recorded is fenced by the claim's id.

-- name: claim_batch
-- Claims what of a batch is open, due by the database's clock and unchanged. Locks as close_batch does, and tells what was
-- locked and not changed as it does, without a start. The deadline is checked too: the idempotency key was made of it. A
-- claim that is left over from before is written over.
WITH _wanted AS (
    SELECT * FROM unnest({key_arrays}, %(versions)s::bigint[], %(deadlines)s::timestamptz[], %(names)s::text[],
                         %(idempotency_keys)s::uuid[])
                  AS _wanted ({keys}, _version, _deadline, _name, _idempotency_key)
),
_locked AS (
    SELECT {row_keys}, _wanted._deadline, {status} AS _status, _wanted._version, _wanted._name, _wanted._idempotency_key
    FROM {table} AS {row}
    JOIN _wanted ON {same_key_as_wanted}
    WHERE {unchanged_from_wanted} AND {is_open} AND {deadline} = _wanted._deadline AND {deadline} <= clock_timestamp()
    ORDER BY {ordered_keys}
    FOR UPDATE OF {row} SKIP LOCKED
),
_claimed AS (
    UPDATE {table} AS {row}
    SET {claims}
    FROM _locked
    WHERE {same_key_as_locked}
      AND {unchanged_from_locked} AND {is_open}
      AND {deadline} = _locked._deadline AND {deadline} <= clock_timestamp()
    RETURNING {returned_keys}, _locked._deadline, _locked._status, _locked._version, _locked._name,
              _locked._idempotency_key
),
_kept AS (
    INSERT INTO cdcwatch.claims AS _claims
        (relation, key, claim_id, idempotency_key, attempt, started_at, next_at, deadline, status, version, last_error)
    SELECT {relation}, _name, %(claim)s::uuid, _idempotency_key, 1, clock_timestamp(),
           clock_timestamp() + make_interval(secs => %(stuck_after_s)s), _deadline, _status, _version, ''
    FROM _claimed
    ON CONFLICT (relation, key) DO UPDATE
    SET claim_id = excluded.claim_id, idempotency_key = excluded.idempotency_key, attempt = excluded.attempt,
        started_at = excluded.started_at, next_at = excluded.next_at, deadline = excluded.deadline,
        status = excluded.status, version = excluded.version, last_error = excluded.last_error
    RETURNING _claims.key AS _kept_name, _claims.started_at AS _started_at
)
SELECT {key_outputs}, _idempotency_key::text, _status, _deadline, _version, _started_at
FROM _claimed JOIN _kept ON _kept_name = _name
UNION ALL
SELECT {key_outputs}, NULL, NULL, _deadline, NULL, NULL FROM _locked
WHERE (SELECT count(*) FROM _locked) > (SELECT count(*) FROM _claimed)
  AND NOT EXISTS (SELECT FROM _claimed WHERE _claimed._name = _locked._name)

-- name: take_over
-- Takes what is to be tried again, and claims whose holder has not been heard of for so long that it may be dead: its
-- attempt is made once more under another id, and what it records later finds nothing. An order that has left the
-- processing status meanwhile is somebody else's; its claim is let go. The statement's time, not the clock's, bounds the
-- range of the index: what waits for later is not looked at.
WITH _due AS (
    SELECT _claims.key AS _name, _claims.claim_id IS NOT NULL AS _is_stuck
    FROM cdcwatch.claims AS _claims
    WHERE _claims.relation = {relation} AND _claims.next_at <= statement_timestamp()
    ORDER BY _claims.next_at
    LIMIT %(rows)s
    FOR UPDATE SKIP LOCKED
),
_held AS MATERIALIZED (
    SELECT {row_keys}, _due._name, _due._is_stuck
    FROM _due
    JOIN {table} AS {row} ON {same_key_as_named}
    WHERE {is_processing}
),
_let_go AS (
    DELETE FROM cdcwatch.claims AS _claims
    USING _due
    WHERE _claims.relation = {relation} AND _claims.key = _due._name
      AND NOT EXISTS (SELECT FROM _held WHERE _held._name = _due._name)
),
_taken AS (
    UPDATE cdcwatch.claims AS _claims
    SET claim_id = %(claim)s::uuid, attempt = _claims.attempt + CASE WHEN _held._is_stuck THEN 0 ELSE 1 END,
        started_at = clock_timestamp(), next_at = clock_timestamp() + make_interval(secs => %(stuck_after_s)s)
    FROM _held
    WHERE _claims.relation = {relation} AND _claims.key = _held._name
    RETURNING {held_keys}, _held._is_stuck, _claims.attempt, _claims.idempotency_key, _claims.status, _claims.deadline,
              _claims.version
)
SELECT {key_outputs}, _is_stuck, attempt, idempotency_key::text, status, deadline, version FROM _taken

-- name: record_closed
-- The outside has done its part: the claim ends, and the order gets its last status. What is not returned was fenced off;
-- without a closed row, somebody else has changed the order's status meanwhile.
WITH _done AS (
    SELECT * FROM unnest({key_arrays}, %(names)s::text[], %(claims)s::uuid[]) AS _done ({keys}, _name, _claim)
),
_ended AS (
    DELETE FROM cdcwatch.claims AS _claims
    USING _done
    WHERE _claims.relation = {relation} AND _claims.key = _done._name AND _claims.claim_id = _done._claim
    RETURNING {done_keys}, _done._name, _claims.deadline AS _deadline
),
_closed AS (
    UPDATE {table} AS {row}
    SET {changes}
    FROM _ended
    WHERE {same_key_as_ended} AND {is_processing}
    RETURNING {returned_keys}, {column} AS _column, {version} AS _version, _ended._name AS _closed_name,
              clock_timestamp() AS _closed_at
){keep}
SELECT _ended._name, _ended._deadline, _closed._version, _closed._closed_at
FROM _ended LEFT JOIN _closed ON _closed._closed_name = _ended._name

-- name: record_failed
-- The outside has refused for the last time: the claim ends, the order gets the failed status, and the stream takes along
-- what becomes its dead letter.
WITH _done AS (
    SELECT * FROM unnest({key_arrays}, %(names)s::text[], %(claims)s::uuid[], %(notes)s::text[])
                  AS _done ({keys}, _name, _claim, _note)
),
_ended AS (
    DELETE FROM cdcwatch.claims AS _claims
    USING _done
    WHERE _claims.relation = {relation} AND _claims.key = _done._name AND _claims.claim_id = _done._claim
    RETURNING {done_keys}, _done._name, _done._note
),
_failed AS (
    UPDATE {table} AS {row}
    SET {gives_up}
    FROM _ended
    WHERE {same_key_as_ended} AND {is_processing}
    RETURNING _ended._name AS _failed_name
)
SELECT _ended._name, _failed._failed_name IS NOT NULL,
       CASE WHEN _failed._failed_name IS NOT NULL
            THEN pg_logical_emit_message(true, %(prefix)s, _ended._note)::text END
FROM _ended LEFT JOIN _failed ON _failed._failed_name = _ended._name

-- name: record_retry
-- Another attempt later, by whichever instance comes by then.
UPDATE cdcwatch.claims AS _claims
SET claim_id = NULL, next_at = clock_timestamp() + make_interval(secs => _done._delay_s), last_error = _done._error
FROM unnest(%(names)s::text[], %(claims)s::uuid[], %(delays_s)s::float8[], %(errors)s::text[])
     AS _done (_name, _claim, _delay_s, _error)
WHERE _claims.relation = {relation} AND _claims.key = _done._name AND _claims.claim_id = _done._claim
RETURNING _claims.key

-- name: hand_back
-- Claims of which no call has begun: anybody may take them at once, and the attempt doesn't count.
UPDATE cdcwatch.claims AS _claims
SET claim_id = NULL, next_at = clock_timestamp(), attempt = _claims.attempt - 1
FROM unnest(%(names)s::text[], %(claims)s::uuid[]) AS _done (_name, _claim)
WHERE _claims.relation = {relation} AND _claims.key = _done._name AND _claims.claim_id = _done._claim
RETURNING _claims.key

-- name: rights
-- Whether the table of claims is there and its schema ours to use, and what of the rights on it the role lacks.
SELECT claims.oid IS NOT NULL,
       ARRAY(SELECT kind FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS kind
              WHERE NOT has_table_privilege(claims.oid, kind)),
       quote_ident(current_user)
FROM (SELECT) AS one
LEFT JOIN pg_class claims
       ON claims.relname = 'claims' AND claims.relkind IN ('r', 'p')
      AND claims.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'cdcwatch')
      AND has_schema_privilege(claims.relnamespace, 'USAGE')
