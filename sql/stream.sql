-- What the reader asks on its replication connection, which takes simple queries only.

-- name: slot_facts
-- The slot as the reader finds it. https://www.postgresql.org/docs/current/view-pg-replication-slots.html
SELECT slot.plugin::text, slot.database::text, slot.confirmed_flush_lsn::text, slot.wal_status,
       (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout')
  FROM pg_replication_slots slot
 WHERE slot.slot_name = %(slot)s;

-- name: slot_holder
-- Who reads the slot now; no row when nobody does.
SELECT sender.pid, sender.application_name, sender.client_addr::text
  FROM pg_replication_slots slot
  JOIN pg_stat_replication sender ON sender.pid = slot.active_pid
 WHERE slot.slot_name = %(slot)s;

-- name: current_lsn
-- The insert position: pg_current_wal_lsn() can lie before the last commit.
SELECT pg_current_wal_insert_lsn()::text;

-- name: relation_name
-- What a table is called now, whatever it was called when its OID was noted.
SELECT schema.nspname || '.' || relation.relname
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE relation.oid = %(oid)s;
