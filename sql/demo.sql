-- The shop of `cdcwatch demo`: its table, what its application does, and what is counted to compare it with the topic.

-- name: orders
-- The watched table. The key is dense and small, so that the demo may keep a few bytes an order.
CREATE TABLE orders (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer     text        NOT NULL,
    amount_cents int         NOT NULL,
    status       text        NOT NULL DEFAULT 'pending',
    version      int         NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    paid_at      timestamptz,
    closed_at    timestamptz
);

-- name: place
-- A new order; its deadline is by the database's clock.
INSERT INTO orders (customer, amount_cents, expires_at)
VALUES (%(customer)s, %(amount_cents)s, clock_timestamp() + %(lifetime_ms)s * interval '1 millisecond')
RETURNING id, expires_at, version;

-- name: pay
-- No row: it expired before the money came.
UPDATE orders SET status = 'paid', paid_at = clock_timestamp(), version = version + 1
 WHERE id = %(id)s AND status = 'pending'
RETURNING expires_at, version;

-- name: extend
-- The customer asked for more time, before it was over.
UPDATE orders SET expires_at = expires_at + %(by_ms)s * interval '1 millisecond', version = version + 1
 WHERE id = %(id)s AND status = 'pending' AND expires_at > clock_timestamp()
RETURNING expires_at, version;

-- name: cancel
-- By the customer.
UPDATE orders SET status = 'cancelled', version = version + 1
 WHERE id = %(id)s AND status = 'pending'
RETURNING expires_at, version;

-- name: delete
-- By the shop: a test order, a customer who wants to be forgotten.
DELETE FROM orders WHERE id = %(id)s AND status = 'pending'
RETURNING expires_at, version;

-- name: waiting
-- Pending orders: all, those due within a minute, those due already. Along the partial index.
SELECT count(*), count(*) FILTER (WHERE expires_at < clock_timestamp() + interval '1 minute'),
       count(*) FILTER (WHERE expires_at <= clock_timestamp())
  FROM orders WHERE status = 'pending';

-- name: lateness
-- How late orders from `first_id` on were closed, in milliseconds: count, early ones, median, 99th percentile, worst.
SELECT count(*), count(*) FILTER (WHERE late_ms < 0),
       percentile_disc(0.5) WITHIN GROUP (ORDER BY late_ms),
       percentile_disc(0.99) WITHIN GROUP (ORDER BY late_ms), max(late_ms)
  FROM (SELECT extract(epoch FROM closed_at - expires_at)::float8 * 1000 AS late_ms
          FROM orders WHERE id >= %(first_id)s AND status = 'expired') AS closed;

-- name: statuses
-- How many orders ended how.
SELECT status, count(*) FROM orders GROUP BY status;

-- name: rows
-- Every order as it ended.
SELECT id, status, version, expires_at FROM orders;

-- name: slot
-- What is confirmed, and how many bytes of WAL come after it. Asked here and not through the service's own queries: the
-- comparison must not rest on what it compares.
SELECT confirmed_flush_lsn::text, (pg_current_wal_lsn() - confirmed_flush_lsn)::int8
  FROM pg_replication_slots WHERE slot_name = %(slot)s;

-- name: wal_end
-- The insert position: every commit so far ends before it.
SELECT pg_current_wal_insert_lsn()::text;
