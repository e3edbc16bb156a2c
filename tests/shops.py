"""Schemas of public shop and ticketing projects, rebuilt in shape: keys, statuses, references, triggers and indexes as theirs.

Each keeps the oracle's ledger by a trigger of its own; key texts stand there as the topic has them.
"""

from __future__ import annotations

from dataclasses import dataclass

LEDGER = """
CREATE TABLE ledger (
  seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
  old_id text, new_id text, old_status text, new_status text, old_deadline timestamptz, new_deadline timestamptz,
  is_ours boolean NOT NULL DEFAULT current_setting('application_name') = 'cdcwatch close');
CREATE FUNCTION write_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO ledger (old_id, new_id, old_status, new_status, old_deadline, new_deadline) VALUES (
    {key_of_old}, {key_of_new}, {status_of_old}, {status_of_new}, OLD.{deadline}, NEW.{deadline});
  RETURN NULL;
END $$;
CREATE TRIGGER ledger AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION write_ledger();
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """A schema, how cdcwatch is told of it, and what goes on in it."""

    schema: str
    table: str
    deadline: str
    configuration: str
    order: str
    """Adds an order with the number `%(n)s`, due in `%(due_s)s` seconds."""
    deeds: tuple[str, ...]
    """What customers and staff do to the order `%(n)s`."""
    key: str = "{row}.id::text"
    status: str = "'open'"
    open: frozenset[str] = frozenset({"open"})
    closed: str = ""
    """The status that a close writes; empty: none."""

    @property
    def ledger(self) -> str:
        """The trigger that keeps it."""
        key, status = self.key, self.status
        return LEDGER.format(
            table=self.table,
            deadline=self.deadline,
            key_of_old=key.format(row="OLD"),
            key_of_new=key.format(row="NEW"),
            status_of_old=status.format(row="OLD"),
            status_of_new=status.format(row="NEW"),
        )


# Orders by UUID whose stock is allocated, line by line; Django's deferred foreign keys, several open statuses, no version.
# After Saleor, which expires unpaid orders and deallocates what they hold.
ORDERS = Shop(
    schema="""
CREATE TABLE channel_channel (id serial PRIMARY KEY, slug varchar(255) UNIQUE);
INSERT INTO channel_channel (slug) VALUES ('default');
CREATE TABLE order_order (
  id uuid PRIMARY KEY, number integer NOT NULL UNIQUE, created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(), status varchar(32) NOT NULL, charge_status varchar(32) NOT NULL DEFAULT 'none',
  user_email varchar(254) NOT NULL DEFAULT '', currency varchar(3) NOT NULL DEFAULT 'EUR',
  total_gross_amount numeric(20, 3) NOT NULL DEFAULT 0, metadata jsonb NOT NULL DEFAULT '{}', search_vector tsvector,
  channel_id integer NOT NULL DEFAULT 1 REFERENCES channel_channel DEFERRABLE INITIALLY DEFERRED,
  expires_at timestamptz NOT NULL, expired_at timestamptz);
CREATE INDEX order_order_due ON order_order (expires_at) WHERE status IN ('unconfirmed', 'unfulfilled');
CREATE INDEX order_meta_idx ON order_order USING gin (metadata);
CREATE UNIQUE INDEX order_order_identity ON order_order (id, status, expires_at);
ALTER TABLE order_order REPLICA IDENTITY USING INDEX order_order_identity;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  NEW.updated_at := clock_timestamp(); NEW.search_vector := to_tsvector('simple', NEW.user_email); RETURN NEW; END $$;
CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON order_order FOR EACH ROW EXECUTE FUNCTION touch();
CREATE TABLE order_orderline (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), quantity integer NOT NULL CHECK (quantity >= 0), variant_id integer NOT NULL,
  order_id uuid NOT NULL REFERENCES order_order DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX ON order_orderline (order_id);
CREATE TABLE warehouse_stock (
  id serial PRIMARY KEY, variant_id integer NOT NULL UNIQUE, quantity integer NOT NULL,
  quantity_allocated integer NOT NULL DEFAULT 0 CHECK (quantity_allocated >= 0));
INSERT INTO warehouse_stock (variant_id, quantity) SELECT n, 1000 FROM generate_series(0, 4) n;
CREATE TABLE warehouse_allocation (
  id serial PRIMARY KEY, quantity_allocated integer NOT NULL CHECK (quantity_allocated >= 0),
  order_line_id uuid NOT NULL REFERENCES order_orderline DEFERRABLE INITIALLY DEFERRED,
  stock_id integer NOT NULL REFERENCES warehouse_stock DEFERRABLE INITIALLY DEFERRED, UNIQUE (order_line_id, stock_id));
CREATE TABLE order_orderevent (
  id serial PRIMARY KEY, date timestamptz NOT NULL DEFAULT clock_timestamp(), type varchar(255) NOT NULL,
  order_id uuid NOT NULL REFERENCES order_order DEFERRABLE INITIALLY DEFERRED);
""",
    table="order_order",
    deadline="expires_at",
    configuration='''[table]
name = "order_order"
version = ""
open = ["unconfirmed", "unfulfilled"]
[close]
status = "expired"
batch_rows = 20
also = """
SELECT FROM warehouse_stock WHERE id IN (
  SELECT stock_id FROM closed JOIN order_orderline line ON line.order_id = closed.id
  JOIN warehouse_allocation held ON held.order_line_id = line.id) ORDER BY id FOR UPDATE;
WITH freed AS (
  DELETE FROM warehouse_allocation held USING order_orderline line, closed
  WHERE line.order_id = closed.id AND held.order_line_id = line.id RETURNING held.stock_id, held.quantity_allocated)
UPDATE warehouse_stock stock SET quantity_allocated = stock.quantity_allocated - total.freed
  FROM (SELECT stock_id, sum(quantity_allocated) AS freed FROM freed GROUP BY stock_id) total WHERE stock.id = total.stock_id;
INSERT INTO order_orderevent (type, order_id) SELECT 'expired', id FROM closed
"""
[close.set]
expired_at = "clock_timestamp()"
''',
    order="""
WITH ordered AS (
  INSERT INTO order_order (id, number, status, user_email, expires_at) VALUES (
    md5(%(n)s::text)::uuid, %(n)s, CASE %(n)s %% 3 WHEN 0 THEN 'unconfirmed' ELSE 'unfulfilled' END, 'é@shop.example',
    clock_timestamp() + %(due_s)s * interval '1 s') RETURNING id),
lines AS (
  INSERT INTO order_orderline (quantity, variant_id, order_id)
  SELECT %(n)s %% 4 + 1, (%(n)s + line) %% 5, id FROM ordered, generate_series(0, %(n)s %% 3) line RETURNING *),
stocks AS MATERIALIZED (SELECT id, variant_id FROM warehouse_stock ORDER BY id FOR UPDATE),
held AS (
  INSERT INTO warehouse_allocation (quantity_allocated, order_line_id, stock_id)
  SELECT lines.quantity, lines.id, stocks.id FROM lines JOIN stocks USING (variant_id) RETURNING *)
UPDATE warehouse_stock stock SET quantity_allocated = stock.quantity_allocated + total.quantity
  FROM (SELECT stock_id, sum(quantity_allocated) AS quantity FROM held GROUP BY stock_id) total WHERE stock.id = total.stock_id
""",
    deeds=(
        "UPDATE order_order SET status = 'fulfilled', charge_status = 'full' WHERE number = %(n)s AND status IN ('unconfirmed', 'unfulfilled')",
        "UPDATE order_order SET status = 'unfulfilled' WHERE number = %(n)s AND status = 'unconfirmed'",
        "UPDATE order_order SET expires_at = expires_at + interval '0.5 s' WHERE number = %(n)s AND status <> 'expired'",
        "UPDATE order_order SET metadata = metadata || '{\"seen\": true}' WHERE number = %(n)s",
    ),
    status="{row}.status",
    open=frozenset({"unconfirmed", "unfulfilled"}),
    closed="expired",
)

# Positions of carts, deleted when they expire; an add-on refers to its position by a deferred foreign key that nothing cascades.
# After pretix.
CARTS = Shop(
    schema="""
CREATE TABLE pretixbase_event (id bigserial PRIMARY KEY, slug varchar(50) NOT NULL, live boolean NOT NULL DEFAULT true);
INSERT INTO pretixbase_event (slug) VALUES ('concert');
CREATE TABLE pretixbase_seat (
  id bigserial PRIMARY KEY, event_id bigint NOT NULL REFERENCES pretixbase_event DEFERRABLE INITIALLY DEFERRED,
  seat_guid varchar(190) NOT NULL, blocked boolean NOT NULL DEFAULT false);
INSERT INTO pretixbase_seat (event_id, seat_guid) SELECT 1, 'A-' || n FROM generate_series(1, 200) n;
CREATE TABLE pretixbase_cartposition (
  id bigserial PRIMARY KEY, cart_id varchar(255), datetime timestamptz NOT NULL DEFAULT now(), expires timestamptz NOT NULL,
  price numeric(13, 2) NOT NULL DEFAULT 0, attendee_name_parts jsonb NOT NULL DEFAULT '{}', includes_tax boolean NOT NULL DEFAULT true,
  event_id bigint NOT NULL DEFAULT 1 REFERENCES pretixbase_event DEFERRABLE INITIALLY DEFERRED,
  seat_id bigint REFERENCES pretixbase_seat DEFERRABLE INITIALLY DEFERRED,
  addon_to_id bigint REFERENCES pretixbase_cartposition DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX ON pretixbase_cartposition (cart_id);
CREATE INDEX ON pretixbase_cartposition (expires);
CREATE INDEX ON pretixbase_cartposition (addon_to_id);
CREATE UNIQUE INDEX cartposition_identity ON pretixbase_cartposition (id, expires);
ALTER TABLE pretixbase_cartposition REPLICA IDENTITY USING INDEX cartposition_identity;
CREATE TABLE freed_seat (seat_id bigint, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION free_seat() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO freed_seat (seat_id) VALUES (OLD.seat_id); RETURN OLD; END $$;
CREATE TRIGGER free_seat BEFORE DELETE ON pretixbase_cartposition FOR EACH ROW WHEN (OLD.seat_id IS NOT NULL)
  EXECUTE FUNCTION free_seat();
""",
    table="pretixbase_cartposition",
    deadline="expires",
    configuration="""[table]
name = "pretixbase_cartposition"
deadline = "expires"
status = ""
version = ""
[close]
action = "delete"
batch_rows = 20
""",
    order="""
WITH position AS (
  INSERT INTO pretixbase_cartposition (id, cart_id, expires, seat_id) VALUES (
    %(n)s, 'cart@api', clock_timestamp() + %(due_s)s * interval '1 s', nullif(%(n)s %% 200, 0)) RETURNING id, expires)
INSERT INTO pretixbase_cartposition (id, cart_id, expires, addon_to_id)
SELECT 100000 + id, 'cart@api', expires, id FROM position WHERE %(n)s %% 5 = 0
""",
    deeds=(
        # Bought: positions of carts become those of an order, and are deleted by the shop.
        "DELETE FROM pretixbase_cartposition WHERE id IN (%(n)s, 100000 + %(n)s)",
        "UPDATE pretixbase_cartposition SET expires = expires + interval '0.5 s' WHERE id IN (%(n)s, 100000 + %(n)s)",
        "UPDATE pretixbase_cartposition SET price = price + 1 WHERE id = %(n)s",
        "DELETE FROM pretixbase_cartposition WHERE id = 100000 + %(n)s",
    ),
)

# Seats that are held for a while: no status, a key of two columns, a deadline that is NULL most of the time, Rails' lock_version.
# After the shape that ticket shops give their inventory.
HOLDS = Shop(
    schema="""
CREATE TABLE shows (id serial PRIMARY KEY, title text NOT NULL);
INSERT INTO shows (title) VALUES ('matinée');
CREATE TABLE seats (
  show_id integer NOT NULL REFERENCES shows ON DELETE CASCADE, place varchar(10) NOT NULL, customer_id uuid, sold_at timestamp,
  reserved_until timestamptz, lock_version integer NOT NULL DEFAULT 0, created_at timestamp NOT NULL DEFAULT now(),
  PRIMARY KEY (show_id, place), CHECK (sold_at IS NULL OR reserved_until IS NULL));
CREATE INDEX seats_held ON seats (reserved_until) WHERE reserved_until IS NOT NULL;
ALTER TABLE seats REPLICA IDENTITY FULL;
CREATE TABLE seat_audits (show_id integer, place varchar(10), was_until timestamptz, is_until timestamptz);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO seat_audits VALUES (NEW.show_id, NEW.place, OLD.reserved_until, NEW.reserved_until); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE OF reserved_until ON seats FOR EACH ROW EXECUTE FUNCTION audit();
""",
    table="seats",
    deadline="reserved_until",
    configuration="""[table]
name = "seats"
deadline = "reserved_until"
status = ""
version = "lock_version"
[close]
batch_rows = 20
set = { reserved_until = "NULL", customer_id = "NULL" }
""",
    order="""
INSERT INTO seats (show_id, place, customer_id, reserved_until)
VALUES (1, 'Ü' || %(n)s, gen_random_uuid(), clock_timestamp() + %(due_s)s * interval '1 s')
""",
    deeds=(
        "UPDATE seats SET sold_at = now(), reserved_until = NULL, lock_version = lock_version + 1 WHERE place = 'Ü' || %(n)s",
        "UPDATE seats SET reserved_until = reserved_until + interval '0.5 s', lock_version = lock_version + 1 WHERE place = 'Ü' || %(n)s",
        """UPDATE seats SET customer_id = gen_random_uuid(), reserved_until = clock_timestamp() + interval '0.3 s',
           lock_version = lock_version + 1 WHERE place = 'Ü' || %(n)s AND reserved_until IS NULL AND sold_at IS NULL""",
        "DELETE FROM seats WHERE place = 'Ü' || %(n)s",
    ),
    key="'[\"' || {row}.show_id || '\",\"' || {row}.place || '\"]'",
)

SHOPS = {"orders": ORDERS, "carts": CARTS, "holds": HOLDS}
