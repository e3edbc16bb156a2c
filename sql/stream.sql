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

-- name: standing_of_reader
-- Whether somebody reads the slot, up to where what was read is in the topic, and where the WAL ends; no row without the
-- slot, or where it is another database's. For `--role close`, which holds no slot: any role may look here.
SELECT slot.active, coalesce(slot.confirmed_flush_lsn, '0/0')::text, pg_current_wal_insert_lsn()::text
  FROM pg_replication_slots slot
 WHERE slot.slot_name = %(slot)s AND slot.database = current_database();

-- name: current_lsn
-- The insert position: pg_current_wal_lsn() can lie before the last commit.
SELECT pg_current_wal_insert_lsn()::text;

-- name: relation_name
-- What a table is called now, whatever it was called when its OID was noted.
SELECT schema.nspname || '.' || relation.relname
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE relation.oid = %(oid)s;

-- name: standing
-- Whether a table that the stream names is a partition of the watched one; no row when there is none of that name now.
-- https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-PARTITION
SELECT EXISTS (SELECT FROM pg_partition_tree(%(oid)s::oid::regclass) AS tree WHERE tree.relid = relation.oid)
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE schema.nspname = %(schema)s AND relation.relname = %(name)s;

-- name: tables
-- Tables by their OIDs, for those that were partitions when they were noted.
SELECT relation.oid::int8, schema.nspname::text, relation.relname::text, relation.relfilenode::int8
  FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
 WHERE relation.oid = ANY (%(oids)s::oid[]);

-- name: is_followed
-- Whether a publication holds the table itself, or all there are: then it does so under every name.
-- https://www.postgresql.org/docs/current/catalog-pg-publication-rel.html
SELECT publication.puballtables
       OR EXISTS (SELECT FROM pg_publication_rel member
                   WHERE member.prpubid = publication.oid AND member.prrelid = %(oid)s)
  FROM pg_publication publication
 WHERE publication.pubname = %(publication)s;

-- name: heartbeat
-- A logical message outside of any transaction, for the stream to carry; needs no table and no right.
-- https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
SELECT pg_logical_emit_message(false, 'cdcwatch', '');
