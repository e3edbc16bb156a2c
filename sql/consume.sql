-- The record of handled events of cdcwatch.consume. `consumer` is the group; source and event_id make an event's identity.
-- Rows are written in the order of their key, so that two batches never wait for each other in a circle.

-- name: known
-- Which of these are completed or given up.
SELECT source, event_id
  FROM cdcwatch.processed_events
  JOIN unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted (source, event_id) USING (source, event_id)
 WHERE consumer = %(consumer)s AND (state = 'completed' OR is_given_up)

-- name: begin
-- Takes these in hand where nobody has them, a lease has run out, or an attempt failed; tells how each of them stands.
-- `known` is of the statement's beginning: what another did meanwhile shows in `taken`, or at the next look.
WITH wanted AS (
    SELECT source, event_id FROM unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted (source, event_id)
), known AS (
    SELECT * FROM cdcwatch.processed_events JOIN wanted USING (source, event_id) WHERE consumer = %(consumer)s
), taken AS (
    INSERT INTO cdcwatch.processed_events AS held
                (consumer, source, event_id, state, attempts, owner, lease_until)
    SELECT %(consumer)s, source, event_id, %(state)s, 1, %(owner)s,
           clock_timestamp() + make_interval(secs => %(lease_s)s)
      FROM wanted ORDER BY source, event_id
        ON CONFLICT (consumer, source, event_id) DO UPDATE
       SET state = EXCLUDED.state, owner = EXCLUDED.owner, lease_until = EXCLUDED.lease_until,
           attempts = held.attempts + (held.state <> 'processing' OR held.owner <> EXCLUDED.owner)::int,
           changed_at = clock_timestamp()
     WHERE (held.state = 'failed' AND NOT held.is_given_up)
        OR (held.state = 'processing' AND (held.owner = EXCLUDED.owner OR held.lease_until <= clock_timestamp()))
    RETURNING source, event_id, attempts
)
SELECT source, event_id,
       CASE WHEN taken.attempts IS NOT NULL THEN 'ours'
            WHEN known.is_given_up THEN 'given up'
            WHEN known.state = 'completed' THEN 'completed'
            ELSE 'busy' END AS verdict,
       coalesce(taken.attempts, 0) AS attempts,
       coalesce(known.state = 'processing' AND known.owner <> %(owner)s, false) AS is_takeover,
       greatest(coalesce(extract(epoch FROM known.lease_until - clock_timestamp())::float8, 0), 0) AS wait_s
  FROM wanted LEFT JOIN known USING (source, event_id) LEFT JOIN taken USING (source, event_id)

-- name: complete
-- These are handled; returns those that were written. One that is another's by now is left to it; a row that is gone is
-- made anew.
INSERT INTO cdcwatch.processed_events AS held (consumer, source, event_id, state, attempts)
SELECT %(consumer)s, source, event_id, 'completed', 1
  FROM unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted (source, event_id) ORDER BY source, event_id
    ON CONFLICT (consumer, source, event_id) DO UPDATE
   SET state = 'completed', owner = NULL, lease_until = NULL, is_given_up = false, changed_at = clock_timestamp()
 WHERE held.state <> 'processing' OR held.owner = %(owner)s
RETURNING source, event_id

-- name: fail
-- An attempt failed, or was the last. `counted`: 1 where its beginning was rolled back with its transaction, and is
-- counted here unless the row is in hand: then it was counted as it began.
INSERT INTO cdcwatch.processed_events AS held (consumer, source, event_id, state, attempts, last_error, is_given_up)
VALUES (%(consumer)s, %(source)s, %(id)s, 'failed', 1, %(error)s, %(is_given_up)s)
    ON CONFLICT (consumer, source, event_id) DO UPDATE
   SET state = 'failed', owner = NULL, lease_until = NULL, last_error = EXCLUDED.last_error,
       attempts = held.attempts + CASE WHEN held.state = 'processing' THEN 0 ELSE %(counted)s END,
       is_given_up = EXCLUDED.is_given_up, changed_at = clock_timestamp()
 WHERE held.state = 'failed' OR (held.state = 'processing' AND held.owner = %(owner)s)

-- name: release
-- Taken in hand and not begun: the attempt is not counted.
UPDATE cdcwatch.processed_events AS held
   SET state = 'failed', owner = NULL, lease_until = NULL, attempts = held.attempts - 1, changed_at = clock_timestamp()
  FROM unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted (source, event_id)
 WHERE held.consumer = %(consumer)s AND held.source = wanted.source AND held.event_id = wanted.event_id
   AND held.state = 'processing' AND held.owner = %(owner)s
RETURNING held.source, held.event_id

-- name: renew
-- The lease begins anew; returns those that are still the owner's.
UPDATE cdcwatch.processed_events AS held
   SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
  FROM unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted (source, event_id)
 WHERE held.consumer = %(consumer)s AND held.source = wanted.source AND held.event_id = wanted.event_id
   AND held.state = 'processing' AND held.owner = %(owner)s
RETURNING held.source, held.event_id

-- name: forget
-- As if never seen.
DELETE FROM cdcwatch.processed_events AS held
 USING unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted (source, event_id)
 WHERE held.consumer = %(consumer)s AND held.source = wanted.source AND held.event_id = wanted.event_id
RETURNING held.source, held.event_id

-- name: purge
-- One batch of what was completed or given up long ago, the oldest first. What is in hand or to be tried again stays.
DELETE FROM cdcwatch.processed_events
 WHERE ctid = ANY (ARRAY(
       SELECT ctid FROM cdcwatch.processed_events
        WHERE consumer = %(consumer)s AND (state = 'completed' OR is_given_up)
          AND changed_at < clock_timestamp() - make_interval(secs => %(older_than_s)s)
        ORDER BY changed_at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
