-- Prepares a database for cdcwatch: a role of least privilege, the index that finds due orders, the reserved schema, and,
-- when asked for, the replica identity that makes events exact. Run it as an owner of the table who may create roles;
-- running it again changes nothing:
--
--     psql -d shop -f install.sql
--     psql -d shop -f install.sql -v table=bookings -v key=booking_id -v deadline=held_until -v open=held -v identity=on
--     psql -d shop -f install.sql -v table=carts -v status= -v close=delete
--
-- Variables, with their defaults; names are written as they are, without quotes, and quoted here:
--
--     role=cdcwatch        the service's role
--     schema=public        of the watched table
--     table=orders
--     key=id               one key column; with several, make the identity index by hand after the model below
--     deadline=expires_at
--     status=status        empty: the table has none
--     open=pending         the status in which a deadline is live (table.open)
--     close=update         delete: with close.action = "delete", for which the role may delete orders
--     identity=off         on: also the replica identity over key, status and deadline
--
-- Not done here, as only a restart or the server's owner can: wal_level = logical, and the plugin's place in
-- output_plugin_libraries. `cdcwatch check` tells what is missing. The role gets no password here: set one with
-- \password, or let the role in by certificate or peer in pg_hba.conf.
--
-- Not for psql -1 (--single-transaction): indexes are built CONCURRENTLY, so that writers go on meanwhile.

\set ON_ERROR_STOP on
\set QUIET on
SET client_min_messages = warning;

\if :{?role}
\else
    \set role cdcwatch
\endif
\if :{?schema}
\else
    \set schema public
\endif
\if :{?table}
\else
    \set table orders
\endif
\if :{?key}
\else
    \set key id
\endif
\if :{?deadline}
\else
    \set deadline expires_at
\endif
\if :{?status}
\else
    \set status status
\endif
\if :{?open}
\else
    \set open pending
\endif
\if :{?close}
\else
    \set close update
\endif
\if :{?identity}
\else
    \set identity off
\endif
SELECT :'status' <> '' AS has_status, :'close' = 'delete' AS deletes \gset
\set open_index :table _cdcwatch_open
\set identity_index :table _cdcwatch_identity

-- Nothing is made where a name is wrong, or where an index is left from a run with another open status.
SELECT format('DO %L', format('BEGIN RAISE EXCEPTION USING MESSAGE = %L; END', format(
           '%I.%I has no column %I: name it by -v %s=…', :'schema', :'table', wanted.name, wanted.variable)))
  FROM (VALUES ('key', :'key'), ('deadline', :'deadline'), ('status', :'status')) AS wanted (variable, name)
 WHERE wanted.name <> ''
   AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = format('%I.%I', :'schema', :'table')::regclass
                      AND attname = wanted.name AND attnum > 0 AND NOT attisdropped)
\gexec
SELECT format('DO %L', format('BEGIN RAISE EXCEPTION USING MESSAGE = %L; END', format(
           'the index %I.%I is of an earlier run with another condition, %s: DROP INDEX CONCURRENTLY %I.%I',
           :'schema', :'open_index', condition, :'schema', :'open_index')))
  FROM (SELECT pg_get_expr(indpred, indrelid) AS condition
          FROM pg_index JOIN pg_class index_class ON index_class.oid = pg_index.indexrelid
         WHERE pg_index.indrelid = format('%I.%I', :'schema', :'table')::regclass
           AND index_class.relname = :'open_index' AND pg_index.indisvalid) AS known
 WHERE strpos(condition, CASE WHEN :'status' = '' THEN 'IS NOT NULL' ELSE replace(:'open', '''', '''''') END) = 0
\gexec

-- The role. REPLICATION lets it use slots; managed services grant a role of theirs for that instead of the attribute.
SELECT format('CREATE ROLE %I LOGIN', :'role')
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role')
\gexec
SELECT CASE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication')
            THEN format('GRANT rds_replication TO %I', :'role')
            ELSE format('ALTER ROLE %I REPLICATION', :'role') END
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role' AND (rolreplication OR rolsuper))
\gexec

-- A close that can't get its locks, hangs or is abandoned gives up: the next batch or the sweep tries again.
ALTER ROLE :"role" SET lock_timeout = '5s';
ALTER ROLE :"role" SET statement_timeout = '60s';
ALTER ROLE :"role" SET idle_in_transaction_session_timeout = '60s';

SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), :'role')
\gexec
GRANT USAGE ON SCHEMA :"schema" TO :"role";
\if :deletes
    -- A row is locked before it is deleted, which takes the right to update any one column.
    GRANT SELECT, DELETE, UPDATE (:"key") ON TABLE :"schema".:"table" TO :"role";
\else
    GRANT SELECT, UPDATE ON TABLE :"schema".:"table" TO :"role";
\endif

-- What cdcwatch itself must keep in the database.
CREATE SCHEMA IF NOT EXISTS cdcwatch;
COMMENT ON SCHEMA cdcwatch IS 'reserved for cdcwatch, which closes orders at their deadline';
GRANT USAGE ON SCHEMA cdcwatch TO :"role";
CREATE TABLE IF NOT EXISTS cdcwatch.instances (
    id uuid PRIMARY KEY,
    watched oid NOT NULL,
    weight float8 NOT NULL CHECK (weight > 0),
    name text NOT NULL,
    seen_at timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE cdcwatch.instances IS 'who sweeps which table, with a sign of life every two seconds';
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE cdcwatch.instances TO :"role";

-- For close.action = "claim": a row for each order whose external action is under way or is tried again. next_at: when
-- anybody may take it, as the next attempt (claim_id is NULL) or because its holder has been silent for too long.
CREATE TABLE IF NOT EXISTS cdcwatch.claims (
    relation        regclass    NOT NULL,
    key             text        NOT NULL,
    claim_id        uuid,
    idempotency_key uuid        NOT NULL,
    attempt         integer     NOT NULL,
    started_at      timestamptz NOT NULL,
    next_at         timestamptz NOT NULL,
    deadline        timestamptz NOT NULL,
    status          text,
    version         bigint      NOT NULL,
    last_error      text        NOT NULL,
    PRIMARY KEY (relation, key)
);
CREATE INDEX IF NOT EXISTS claims_next_at ON cdcwatch.claims (relation, next_at);
COMMENT ON TABLE cdcwatch.claims IS 'orders whose external action is under way, of close.action = "claim"';
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE cdcwatch.claims TO :"role";

-- The index of due orders. Its condition is written as the scans write it, so that the planner can prove one from the
-- other. By hand with several open statuses: … WHERE status IN ('pending', 'reserved').
-- An order that leaves the open status leaves this index, so its update is never a HOT update, whatever the fillfactor:
-- lowering fillfactor for the close's sake only makes the table larger. Updates of columns in no index stay HOT.
-- On a partitioned table CONCURRENTLY is refused: index and identity are made partition by partition, and the script
-- ends here (https://www.postgresql.org/docs/current/ddl-partitioning.html).
SELECT format('DO %L', format('BEGIN RAISE EXCEPTION USING MESSAGE = %L; END', format(
           '%I.%I is partitioned: role and rights are made; make index and identity on each partition by hand,'
           ' see docs/runbook.md, ''Partitioned tables''', :'schema', :'table')))
  FROM pg_class WHERE oid = format('%I.%I', :'schema', :'table')::regclass AND relkind = 'p'
\gexec
-- An interrupted build leaves an invalid index of the same name, which would be taken for the finished one.
SELECT format('DROP INDEX CONCURRENTLY %I.%I', :'schema', index_class.relname)
  FROM pg_index JOIN pg_class index_class ON index_class.oid = pg_index.indexrelid
 WHERE pg_index.indrelid = format('%I.%I', :'schema', :'table')::regclass
   AND index_class.relname IN (:'open_index', :'identity_index') AND NOT pg_index.indisvalid
\gexec
\if :has_status
    CREATE INDEX CONCURRENTLY IF NOT EXISTS :"open_index" ON :"schema".:"table" (:"deadline") WHERE :"status" = :'open';
\else
    CREATE INDEX CONCURRENTLY IF NOT EXISTS :"open_index"
        ON :"schema".:"table" (:"deadline") WHERE :"deadline" IS NOT NULL;
\endif

-- The replica identity. With it the WAL holds an order's old status and deadline exactly when one of them changes, at a
-- fraction of what REPLICA IDENTITY FULL writes, and events tell what changed. Its columns must be NOT NULL.
\if :identity
    SELECT format('DO %L', format('BEGIN RAISE EXCEPTION USING MESSAGE = %L; END', format(
               'the identity index needs NOT NULL columns: ALTER TABLE %I.%I %s', :'schema', :'table',
               string_agg(format('ALTER COLUMN %I SET NOT NULL', attname), ', ' ORDER BY attnum))))
      FROM pg_attribute
     WHERE attrelid = format('%I.%I', :'schema', :'table')::regclass
       AND attname IN (:'key', :'status', :'deadline') AND NOT attnotnull
    HAVING count(*) > 0
    \gexec
    \if :has_status
        CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS :"identity_index"
            ON :"schema".:"table" (:"key", :"status", :"deadline");
    \else
        CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS :"identity_index" ON :"schema".:"table" (:"key", :"deadline");
    \endif
    ALTER TABLE :"schema".:"table" REPLICA IDENTITY USING INDEX :"identity_index";
\endif

\echo prepared :schema.:table for the role :role
