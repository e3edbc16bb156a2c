-- How statements read the watched columns: expressions, put into other queries. They depend on no setting of the session,
-- so that a pooled connection gives what the stream gives.

-- name: local_deadline
-- A deadline without time zone as the instant that it is by the zone's clocks; a date is the beginning of its day. A local
-- time of the calendar's first or last day may be no timestamptz, and a date in years to come no timestamp.
-- https://www.postgresql.org/docs/current/functions-datetime.html#FUNCTIONS-DATETIME-ZONECONVERT
CASE WHEN {column} >= '294276-12-31' AND {column} < 'infinity' THEN timestamptz '294276-12-31 23:59:59.999999+00'
     WHEN {column} < '4714-11-25 BC' AND {column} > '-infinity' THEN timestamptz '4714-11-24 00:00:00+00 BC'
     ELSE {column}::timestamp AT TIME ZONE {zone} END

-- name: local_bound
-- An instant in local time, with `days` of room for what zones do to their clocks: for the bare column, which has the index.
({instant} AT TIME ZONE {zone} + interval '{days} day')::{type}

-- name: local_page
-- A local time as if it were one of UTC, to come back as the integer that a timestamptz is.
{column}::timestamp AT TIME ZONE 'UTC'

-- name: after_page
-- The local time of a page's last row again.
({instant} AT TIME ZONE 'UTC')::{type}

-- name: date_key
-- A date or timestamp in ISO form, whatever the DateStyle.
replace(to_jsonb({column}) #>> '{{}}', 'T', ' ')

-- name: timestamptz_key
-- A timestamptz in ISO form and in UTC.
CASE WHEN isfinite({column})
     THEN regexp_replace(replace(to_jsonb({column} AT TIME ZONE 'UTC') #>> '{{}}', 'T', ' '), '( BC)?$', '+00\1')
     ELSE to_jsonb({column}) #>> '{{}}' END

-- name: bytea_key
-- Bytes in hex, whatever the bytea_output.
'\x' || encode({column}, 'hex')

-- name: boolean_key
-- true and false: the type's own output has a letter each.
{column}::text

-- name: plain_key
-- A type that writes itself alike whatever is set: a cast to text would cut off the blanks that char(n) is filled up with.
concat({column})

-- name: pinned_key
-- Any other type as it writes itself in the stream: interval, real, arrays and ranges of dates. The settings hold to the end
-- of the transaction, which through a pooler is as far as they may. A volatile function keeps the planner from merging it.
(SELECT concat({column}) FROM (
    SELECT set_config('DateStyle', 'ISO', true), set_config('TimeZone', 'UTC', true),
           set_config('IntervalStyle', 'postgres', true), set_config('extra_float_digits', '3', true),
           set_config('bytea_output', 'hex', true)) AS _pinned)
