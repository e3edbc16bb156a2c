-- The shop's stock, and what each order holds of it. The table of handled events is made by sql/install_consume.sql.
CREATE TABLE stock (
    sku       text PRIMARY KEY,
    available integer NOT NULL CHECK (available >= 0)
);
CREATE TABLE reservations (
    order_id    text    NOT NULL,
    sku         text    NOT NULL REFERENCES stock,
    quantity    integer NOT NULL CHECK (quantity > 0),
    released_at timestamptz,
    PRIMARY KEY (order_id, sku)
);
