-- Prepares a database for PostgresStore of cdcwatch.consume: the table of the events that a service has handled. It stands in
-- the database of that service, beside what its handler changes. Running it again changes nothing:
--
--     psql -d stock -f sql/install_consume.sql
--
-- `PostgresStore(…).install()` does the same. The service's role then needs:
--
--     GRANT USAGE ON SCHEMA cdcwatch TO …;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON cdcwatch.processed_events TO …;

CREATE SCHEMA IF NOT EXISTS cdcwatch;
CREATE TABLE IF NOT EXISTS cdcwatch.processed_events (
    consumer     text        NOT NULL,
    source       text        NOT NULL,
    event_id     text        NOT NULL,
    state        text        NOT NULL CHECK (state IN ('processing', 'completed', 'failed')),
    attempts     integer     NOT NULL,
    owner        text,
    lease_until  timestamptz,
    last_error   text,
    is_given_up  boolean     NOT NULL DEFAULT false,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, source, event_id)
);
CREATE INDEX IF NOT EXISTS processed_events_changed_at ON cdcwatch.processed_events (changed_at);
COMMENT ON TABLE cdcwatch.processed_events IS 'events that consumers (by group) have handled, of cdcwatch.consume';
COMMENT ON COLUMN cdcwatch.processed_events.last_error IS 'the class of the last error, without its text';
COMMENT ON COLUMN cdcwatch.processed_events.is_given_up IS 'it became a dead letter, and is not tried again';
