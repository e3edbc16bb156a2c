-- The shop of `cdcwatch demo`: its tables, what its application does, and what is counted to compare them with their topics.
-- {table}, {deadline}, {open} and {closed} are a stand's own: its table, deadline column, open status and closed status.

-- name: orders
-- The watched table. The key is dense and small, so that the demo may keep a few bytes an order.
CREATE TABLE {table} (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer     text        NOT NULL,
    amount_cents int         NOT NULL,
    status       text        NOT NULL DEFAULT {open},
    version      int         NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    {deadline}   timestamptz NOT NULL,
    paid_at      timestamptz,
    closed_at    timestamptz
);

-- name: seats
-- What reservations take and give back, as a ledger. The application's own part is a trigger: a seat is taken with the
-- reservation, and given back when the customer cancels or it is deleted; what expires, the close itself gives back (close.also).
CREATE TABLE seats (reservation bigint NOT NULL, free int NOT NULL);
GRANT INSERT ON seats TO {role};
CREATE FUNCTION take_or_give_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO seats VALUES (NEW.id, -1);
    ELSIF TG_OP = 'DELETE' OR (NEW.status = 'cancelled' AND OLD.status <> 'cancelled') THEN
        INSERT INTO seats VALUES (OLD.id, 1);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER seats AFTER INSERT OR UPDATE OR DELETE ON reservations FOR EACH ROW EXECUTE FUNCTION take_or_give_back();

-- name: seats_taken
-- By the ledger, and by the reservations that hold one.
SELECT -(SELECT sum(free) FROM seats), (SELECT count(*) FROM reservations WHERE status IN ('held', 'paid'));

-- name: place
-- A new order; its deadline is by the database's clock.
INSERT INTO {table} (customer, amount_cents, {deadline})
VALUES (%(customer)s, %(amount_cents)s, clock_timestamp() + %(lifetime_ms)s * interval '1 millisecond')
RETURNING id, {deadline}, version;

-- name: pay
-- No row: it expired before the money came.
UPDATE {table} SET status = 'paid', paid_at = clock_timestamp(), version = version + 1
 WHERE id = %(id)s AND status = {open}
RETURNING {deadline}, version;

-- name: extend
-- The customer asked for more time, before it was over.
UPDATE {table} SET {deadline} = {deadline} + %(by_ms)s * interval '1 millisecond', version = version + 1
 WHERE id = %(id)s AND status = {open} AND {deadline} > clock_timestamp()
RETURNING {deadline}, version;

-- name: cancel
-- By the customer.
UPDATE {table} SET status = 'cancelled', version = version + 1
 WHERE id = %(id)s AND status = {open}
RETURNING {deadline}, version;

-- name: delete
-- By the shop: a test order, a customer who wants to be forgotten.
DELETE FROM {table} WHERE id = %(id)s AND status = {open}
RETURNING {deadline}, version;

-- name: waiting
-- Pending orders: all, those due within a minute, those due already. Along the partial index.
SELECT count(*), count(*) FILTER (WHERE {deadline} < clock_timestamp() + interval '1 minute'),
       count(*) FILTER (WHERE {deadline} <= clock_timestamp())
  FROM {table} WHERE status = {open};

-- name: lateness
-- How late orders from `first_id` on were closed, in milliseconds: count, early ones, median, 99th percentile, worst.
SELECT count(*), count(*) FILTER (WHERE late_ms < 0),
       percentile_disc(0.5) WITHIN GROUP (ORDER BY late_ms),
       percentile_disc(0.99) WITHIN GROUP (ORDER BY late_ms), max(late_ms)
  FROM (SELECT extract(epoch FROM closed_at - {deadline})::float8 * 1000 AS late_ms
          FROM {table} WHERE id >= %(first_id)s AND status = {closed}) AS closed;

-- name: statuses
-- How many orders ended how.
SELECT status, count(*) FROM {table} GROUP BY status;

-- name: rows
-- Every order as it ended.
SELECT id, status, version, {deadline} FROM {table};

-- name: slot
-- What is confirmed, and how many bytes of WAL come after it. Asked here and not through the service's own queries: the
-- comparison must not rest on what it compares.
SELECT confirmed_flush_lsn::text, (pg_current_wal_lsn() - confirmed_flush_lsn)::int8
  FROM pg_replication_slots WHERE slot_name = %(slot)s;

-- name: wal_end
-- The insert position: every commit so far ends before it.
SELECT pg_current_wal_insert_lsn()::text;
