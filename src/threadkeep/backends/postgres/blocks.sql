-- The PostgreSQL schema, and the statements that differ from the shared ones. A thread's number is a hash of its key,
-- so the two most frequent requests are one statement each: `load-checkpoints`, and `commit`, which is assembled from
-- the parts that a batch needs.
-- Ids are UTF-8 in bytea: their byte order is Python's order of strings, and NUL is allowed. Times are milliseconds
-- since 1970. There are no foreign keys, sequences, triggers or functions: each is missing in some database that
-- distributes tables.

-- schema-0: the table that records migrations
CREATE TABLE IF NOT EXISTS tk_schema (
    version integer PRIMARY KEY,
    made timestamptz NOT NULL DEFAULT now()
);

-- versions: the last migration: its version, its time; from 5 on the oldest versions whose code can read and write
SELECT * FROM tk_schema ORDER BY version DESC LIMIT 1;

-- lock-schema: let other clients that migrate wait here, until the end of the transaction; readers do not wait. Nothing
-- of the table may be locked before: a migration that alters it would wait for those who wait for this
ALTER TABLE tk_schema SET (fillfactor = 100);

-- set-version: record a migration
INSERT INTO tk_schema (version) VALUES (:version);

-- storage-state: whether commits wait for the disk, the schema of pgvector (see vector-schema), and the last migration
SELECT current_setting('synchronous_commit'), ({vector-schema}), s.* FROM tk_schema s ORDER BY s.version DESC LIMIT 1;

-- set-synchronous: how durable the commit of this transaction is
SELECT set_config('synchronous_commit', :synchronous, true);

-- schema-exists: returns a row if the schema exists
SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = :schema;

-- create-schema: create the schema
CREATE SCHEMA IF NOT EXISTS {schema};

-- schema-1: the tables of threads, in an empty schema
-- Tables with many rows store an empty value instead of NULL: a row without NULLs is 8 bytes shorter.
-- `hour` is `updated` in units of 2^22 ms, about an hour: while it stays the same, updating a thread changes no index.
CREATE TABLE tk_threads (
    thread bigint PRIMARY KEY,
    epoch bigint NOT NULL,
    rev bigint NOT NULL,
    created bigint NOT NULL,
    updated bigint NOT NULL,
    hour bigint NOT NULL,
    checkpoints bigint NOT NULL,
    writes bigint NOT NULL,
    bytes bigint NOT NULL,
    step bigint,
    labels integer,
    tenant bytea NOT NULL,
    kind text COLLATE "C" NOT NULL,
    id bytea NOT NULL,
    nexts bytea NOT NULL,
    top bytea,
    run bytea,
    source text,
    status text NOT NULL,
    early bytea,
    early_status text,
    lease bytea
) WITH (fillfactor = 50);
CREATE INDEX tk_threads_hour ON tk_threads (tenant, hour);
CREATE INDEX tk_threads_created ON tk_threads (tenant, created);
CREATE INDEX tk_threads_id ON tk_threads (tenant, id);
CREATE TABLE tk_items (
    thread bigint NOT NULL,
    lane integer NOT NULL,
    n integer NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (thread, lane, n)
) WITH (toast_tuple_target = 8160);
ALTER TABLE tk_items ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE TABLE tk_checkpoints (
    thread bigint NOT NULL,
    time bigint NOT NULL,
    step bigint,
    labels integer NOT NULL,
    hidden smallint NOT NULL,
    ns bytea NOT NULL,
    id bytea NOT NULL,
    parent bytea NOT NULL,
    run bytea NOT NULL,
    source text,
    body bytea NOT NULL,
    refs integer[] NOT NULL,
    PRIMARY KEY (thread, ns, id)
);
ALTER TABLE tk_checkpoints ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE tk_writes (
    thread bigint NOT NULL,
    time bigint NOT NULL,
    ns bytea NOT NULL,
    checkpoint bytea NOT NULL,
    task bytea NOT NULL,
    path bytea NOT NULL,
    run bytea NOT NULL,
    entries text NOT NULL,
    body bytea NOT NULL,
    refs integer[] NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, task)
);
ALTER TABLE tk_writes ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE tk_tags (
    thread bigint NOT NULL,
    labels integer NOT NULL,
    tag bytea NOT NULL,
    PRIMARY KEY (thread, labels, tag)
);
CREATE INDEX tk_tags_tag ON tk_tags (tag);
CREATE TABLE tk_runs (
    thread bigint NOT NULL,
    run bytea NOT NULL,
    PRIMARY KEY (thread, run)
);
CREATE INDEX tk_runs_run ON tk_runs (run);

-- schema-3: replace `hour` by `tick`, which is `updated` in units of 2^8 ms, a quarter of a second
-- A page of the last updated threads sorts the rows of one tick instead of one hour. The commits of one step still
-- change the index only once.
ALTER TABLE tk_threads ADD COLUMN tick bigint NOT NULL DEFAULT 0;
UPDATE tk_threads SET tick = updated >> 8;
ALTER TABLE tk_threads ALTER COLUMN tick DROP DEFAULT;
ALTER TABLE tk_threads DROP COLUMN hour;
CREATE INDEX tk_threads_tick ON tk_threads (tenant, tick);

-- this-thread: a thread by number, and by key in case two keys have the same number
t.thread = :number AND t.tenant = :tenant AND t.kind = :kind AND t.id = :thread_id

-- clock: the server's time in milliseconds
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- lock-thread: a thread's row, locked until the transaction ends
{thread} FOR UPDATE;

-- refs: item ranges are stored as text
:refs

-- refs-array: item ranges as an array; empty if they are damaged, which the client reports
-- A process of an older version that was not stopped before the migration stores them in braces, as arrays become text.
CASE WHEN btrim({it}, '{}') ~ '^[0-9]{1,10}(,[0-9]{1,10})*$'
     THEN CAST(string_to_array(btrim({it}, '{}'), ',') AS bigint[]) ELSE '{}' END

-- join-in-order: the planner chooses the order
JOIN

-- tick-bits: the bits of `updated` that `tick` does not have
8

-- set-updated: set the time of the last change
updated = :updated, tick = :tick

-- insert-thread: add a thread's row; returns no row if it exists
INSERT INTO tk_threads (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes, bytes,
                        top, run, step, source, status, labels, early, early_status, lease, family, top_writes,
                        early_writes, bytes_check, checksum, sealed, description)
VALUES (:number, :tenant, :kind, :thread_id, :epoch, :rev, :nexts, :created, :updated, :tick, :checkpoints, :writes,
        :bytes, :top, :run, :step, :source, :status, :labels, :early, :early_status, :lease, :family, :top_writes,
        :early_writes, :bytes, :checksum, :sealed, :description)
ON CONFLICT DO NOTHING RETURNING thread;

-- items: ranges of items
SELECT i.lane, i.n, i.payload
FROM unnest(:lanes::integer[], :starts::integer[], :ends::integer[]) AS r (lane, lo, hi)
JOIN tk_items i ON i.thread = :thread AND i.lane = r.lane AND i.n >= r.lo AND i.n < r.hi;

-- item-lengths: the stored length and the first bytes of each item in some ranges
SELECT i.lane, i.n, length(i.payload), substr(i.payload, 1, CAST(:beginning AS integer))
FROM unnest(:lanes::integer[], :starts::integer[], :ends::integer[]) AS r (lane, lo, hi)
JOIN tk_items i ON i.thread = :thread AND i.lane = r.lane AND i.n >= r.lo AND i.n < r.hi;

-- item-bytes: the total size of ranges of items
SELECT coalesce(sum(length(i.payload)), 0)
FROM unnest(:lanes::integer[], :starts::integer[], :ends::integer[]) AS r (lane, lo, hi)
JOIN tk_items i ON i.thread = :thread AND i.lane = r.lane AND i.n >= r.lo AND i.n < r.hi;

-- load-scan: the same as scan-checkpoints; labels are looked up only for the checkpoints that are returned
SELECT {scan-columns}
FROM (
    SELECT t.id AS thread_id, c.thread, {checkpoint-columns}
    FROM tk_threads t
    JOIN tk_checkpoints c ON c.thread = t.thread
    WHERE {conditions}
    ORDER BY c.id DESC, t.id, c.ns LIMIT :limit
) c
CROSS JOIN LATERAL (SELECT * FROM tk_threads t WHERE t.thread = c.thread OFFSET 0) t
LEFT JOIN LATERAL (
    SELECT l.payload FROM tk_items l WHERE l.thread = c.thread AND l.lane = 2 AND l.n = c.labels OFFSET 0
) l ON true
ORDER BY c.id DESC, c.thread_id, c.ns;

-- writes: the writes of some checkpoints
SELECT {write-columns} FROM tk_writes w WHERE w.thread = :thread AND w.ns = :ns AND w.checkpoint = ANY (:ids::bytea[]);

-- drop-all: delete everything that a locked thread has
WITH items AS (DELETE FROM tk_items WHERE thread = :thread),
     checkpoints AS (DELETE FROM tk_checkpoints WHERE thread = :thread),
     writes AS (DELETE FROM tk_writes WHERE thread = :thread),
     tags AS (DELETE FROM tk_tags WHERE thread = :thread),
     runs AS (DELETE FROM tk_runs WHERE thread = :thread)
DELETE FROM tk_threads WHERE thread = :thread;

-- commit-drop: delete a thread and everything in it, unless its tenant is sealed
{commit-drop-start} AND {commit-plain-tenant :tenant} {commit-drop-rest}

-- commit-drop-sealed: the same for a caller who knows whether the tenant is sealed
{commit-drop-start} {commit-drop-rest}

-- commit-drop-start: the start of both; they return whether the thread exists and whether it was deleted
-- It is not deleted if a commit changed it since the statement began, whose rows the statement does not see, nor if it
-- has a lease, unless the parameter says that it may.
-- The planner does not know which thread a SELECT returns, so one plan is as good for every thread, and is kept.
WITH seen AS MATERIALIZED (
    SELECT t.thread, t.epoch, t.rev FROM tk_threads t WHERE {this-thread}

-- commit-drop-rest: the rest of both
), gone AS (
    DELETE FROM tk_threads t USING seen WHERE {this-thread} AND t.epoch = seen.epoch AND t.rev = seen.rev
      AND (t.lease IS NULL OR CAST(:leased AS boolean))
    RETURNING :number AS thread
), items AS (DELETE FROM tk_items WHERE thread = (SELECT thread FROM gone)),
     checkpoints AS (DELETE FROM tk_checkpoints WHERE thread = (SELECT thread FROM gone)),
     writes AS (DELETE FROM tk_writes WHERE thread = (SELECT thread FROM gone)),
     tags AS (DELETE FROM tk_tags WHERE thread = (SELECT thread FROM gone)),
     runs AS (DELETE FROM tk_runs WHERE thread = (SELECT thread FROM gone))
SELECT EXISTS (SELECT 1 FROM gone) FROM seen {setting};

-- load-checkpoints: a thread's row (what = 0), checkpoints (1), their writes (2) and items (3), in one snapshot
-- The planner does not know what a SELECT of a parameter returns. So a plan for all values costs as much as one for these
-- values, and the server keeps it: planning took four times as long as executing.
-- OFFSET 0 keeps the planner from reading all rows of a thread to join them with a few.
WITH thread AS MATERIALIZED (
    SELECT * FROM tk_threads t WHERE {this-thread}
), wanted AS MATERIALIZED (
    SELECT w.n, w.ns, w.items, coalesce(w.id, (
        SELECT c.id FROM tk_checkpoints c WHERE c.thread = (SELECT :number) AND c.ns = w.ns AND c.hidden = 0
        ORDER BY c.id DESC LIMIT 1)) AS id
    FROM unnest(
        (SELECT :positions::bigint[]), (SELECT :spaces::bytea[]), (SELECT :ids::bytea[]),
        (SELECT :with_items::boolean[])
    ) AS w (n, ns, id, items)
), found AS MATERIALIZED (
    SELECT f.n, f.items, c.*
    FROM wanted f CROSS JOIN LATERAL (
        SELECT * FROM tk_checkpoints c WHERE c.thread = (SELECT :number) AND c.ns = f.ns AND c.id = f.id OFFSET 0
    ) c
), writes AS MATERIALIZED (
    SELECT f.n, f.items, w.*
    FROM wanted f CROSS JOIN LATERAL (
        SELECT * FROM tk_writes w WHERE w.thread = (SELECT :number) AND w.ns = f.ns AND w.checkpoint = f.id OFFSET 0
    ) w
), cached AS (
    SELECT t.thread, h.lane, h.spans::int8multirange AS spans
    FROM unnest((SELECT :cached_lanes::bigint[]), (SELECT :cached_spans::text[])) AS h (lane, spans)
    JOIN thread t ON t.epoch = :cached_epoch
), {load-missing}
{load-thread}
{load-rows};

-- load-several: the rows of `load-checkpoints` for several threads
WITH thread AS MATERIALIZED (
    SELECT t.*, k.cached_epoch
    FROM unnest(
        (SELECT :numbers::bigint[]), (SELECT :tenants::bytea[]), (SELECT :kinds::text[]),
        (SELECT :thread_ids::bytea[]), (SELECT :cached_epochs::bigint[])
    ) AS k (thread, tenant, kind, id, cached_epoch)
    CROSS JOIN LATERAL (
        SELECT * FROM tk_threads t
        WHERE t.thread = k.thread AND t.tenant = k.tenant AND t.kind = k.kind AND t.id = k.id OFFSET 0
    ) t
), wanted AS MATERIALIZED (
    SELECT w.n, w.thread, w.ns, w.items, coalesce(w.id, (
        SELECT c.id FROM tk_checkpoints c WHERE c.thread = w.thread AND c.ns = w.ns AND c.hidden = 0
        ORDER BY c.id DESC LIMIT 1)) AS id
    FROM unnest(
        (SELECT :positions::bigint[]), (SELECT :owners::bigint[]), (SELECT :spaces::bytea[]), (SELECT :ids::bytea[]),
        (SELECT :with_items::boolean[])
    ) AS w (n, thread, ns, id, items)
), found AS MATERIALIZED (
    SELECT f.n, f.items, c.*
    FROM wanted f CROSS JOIN LATERAL (
        SELECT * FROM tk_checkpoints c WHERE c.thread = f.thread AND c.ns = f.ns AND c.id = f.id OFFSET 0
    ) c
), writes AS MATERIALIZED (
    SELECT f.n, f.items, w.*
    FROM wanted f CROSS JOIN LATERAL (
        SELECT * FROM tk_writes w WHERE w.thread = f.thread AND w.ns = f.ns AND w.checkpoint = f.id OFFSET 0
    ) w
), cached AS (
    SELECT h.thread, h.lane, h.spans::int8multirange AS spans
    FROM unnest(
        (SELECT :cached_numbers::bigint[]), (SELECT :cached_lanes::bigint[]), (SELECT :cached_spans::text[])
    ) AS h (thread, lane, spans)
    JOIN thread t ON t.thread = h.thread AND t.epoch = t.cached_epoch
), {load-missing}
{load-thread}
{load-rows};

-- load-ancestors: a thread's row, checkpoints of a namespace in descending order, starting at an id, and their writes
WITH thread AS MATERIALIZED (
    SELECT * FROM tk_threads t WHERE {this-thread}
), found AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY c.id DESC) - 1 AS n, false AS items, c.*
    FROM tk_checkpoints c
    WHERE c.thread = (SELECT :number) AND c.ns = (SELECT :ns) AND c.id <= (SELECT :id)
    ORDER BY c.id DESC LIMIT (SELECT :limit)
), writes AS MATERIALIZED (
    SELECT f.n, f.items, w.*
    FROM found f CROSS JOIN LATERAL (
        SELECT * FROM tk_writes w WHERE w.thread = (SELECT :number) AND w.ns = f.ns AND w.checkpoint = f.id OFFSET 0
    ) w
), cached AS (
    SELECT 0::bigint AS thread, 0::bigint AS lane, '{}'::int8multirange AS spans WHERE false
), {load-missing}
{load-thread}
{load-rows};

-- load-items: a thread's row and ranges of its items
WITH thread AS MATERIALIZED (
    SELECT * FROM tk_threads t WHERE {this-thread}
), missing AS MATERIALIZED (
    SELECT t.thread, r.lane, int8range(r.low, r.high) AS span
    FROM thread t CROSS JOIN unnest(
        (SELECT :lanes::bigint[]), (SELECT :starts::bigint[]), (SELECT :ends::bigint[])
    ) AS r (lane, low, high)
    WHERE r.low < r.high
)
{load-thread}
UNION ALL
{load-item-rows};

-- load-several-items: ranges of items of several threads, each only if the thread has the expected epoch
SELECT i.thread, i.lane, i.n, i.payload
FROM unnest(
    (SELECT :owners::bigint[]), (SELECT :epochs::bigint[]), (SELECT :lanes::bigint[]), (SELECT :starts::bigint[]),
    (SELECT :ends::bigint[])
) AS r (thread, epoch, lane, low, high)
CROSS JOIN LATERAL (
    SELECT * FROM tk_items i WHERE i.thread = r.thread AND i.lane = r.lane AND i.n >= r.low AND i.n < r.high OFFSET 0
) i
WHERE EXISTS (SELECT 1 FROM tk_threads t WHERE t.thread = r.thread AND t.epoch = r.epoch);

-- load-missing: which items `found` and `writes` refer to and `cached` does not have
-- Not with generate_series: the planner expects a thousand rows of it, and a server with JIT would compile the statement.
needed AS (
    SELECT r.thread, u.lane, int8range(r.refs[k + 1], r.refs[k + 1] + r.refs[k + 2]) AS span
    FROM (SELECT thread, items, {refs-array refs} AS refs FROM found
          UNION ALL SELECT thread, items, {refs-array refs} FROM writes) r
    CROSS JOIN LATERAL unnest(r.refs) WITH ORDINALITY AS u (lane, k)
    WHERE u.k % 3 = 1 AND (r.items OR u.lane IN (1, 2))
    UNION ALL SELECT thread, 2, int8range(labels, labels::bigint + 1) FROM found
    UNION ALL SELECT thread, 0, int8range(0, 2147483648) FROM thread
), missing AS MATERIALIZED (
    SELECT r.thread, r.lane, unnest(r.spans - coalesce(h.spans, '{}')) AS span
    FROM (SELECT thread, lane, range_agg(span) AS spans FROM needed GROUP BY thread, lane) r
    LEFT JOIN cached h ON h.thread = r.thread AND h.lane = r.lane
)

-- load-rows: the rows of `found` and `writes`, and the items that are missing
UNION ALL
SELECT 1, n, NULL, NULL, NULL, NULL, NULL, hidden, time, step, labels,
       ns, id, parent, run, body, NULL, NULL, source, refs, NULL, NULL, NULL, NULL, NULL, NULL
FROM found
UNION ALL
SELECT 2, n, NULL, NULL, NULL, NULL, NULL, NULL, time, NULL, NULL,
       ns, checkpoint, task, path, run, body, NULL, entries, refs, NULL, NULL, NULL, NULL, NULL, NULL
FROM writes
UNION ALL
{load-item-rows}

-- load-item-rows: the items of `missing`
-- Up to 256 items come in one row, with their numbers and lengths: one row per item would cost more than all the rest.
SELECT 3, r.thread, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, i.lane,
       string_agg(i.payload, '' ORDER BY i.n), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       array_agg(i.n ORDER BY i.n) || array_agg(length(i.payload) ORDER BY i.n), NULL, NULL, NULL
FROM missing r CROSS JOIN LATERAL (
    SELECT * FROM tk_items i
    WHERE i.thread = r.thread AND i.lane = r.lane AND i.n >= lower(r.span) AND i.n < upper(r.span) OFFSET 0
) i
GROUP BY r.thread, i.lane, i.n >> 8

-- load-thread-rows: a thread's row (what = 0), all its checkpoints (1) and writes (2), in one snapshot
-- Also the items of the engine's lanes: names, range lists, labels and shapes (3); and the ranges of all its items (4).
WITH thread AS (
    SELECT * FROM tk_threads t WHERE {this-thread}
), stored AS (
    SELECT i.lane, unnest(range_agg(int8range(i.n, i.n::bigint + 1))) AS span
    FROM tk_items i WHERE i.thread = :number GROUP BY i.lane
)
{load-thread}
UNION ALL
SELECT 1, 0, NULL, NULL, NULL, NULL, NULL, hidden, time, step, labels,
       ns, id, parent, run, body, NULL, NULL, source, refs, NULL, NULL, NULL, NULL, NULL, NULL
FROM tk_checkpoints WHERE thread = :number
UNION ALL
SELECT 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, time, NULL, NULL,
       ns, checkpoint, task, path, run, body, NULL, entries, refs, NULL, NULL, NULL, NULL, NULL, NULL
FROM tk_writes WHERE thread = :number
UNION ALL
SELECT 3, n, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, lane,
       payload, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, ARRAY[n, length(payload)], NULL, NULL, NULL
FROM tk_items WHERE thread = :number AND lane <= 2
UNION ALL
SELECT 4, lower(span), NULL, NULL, NULL, NULL, NULL, NULL, NULL, upper(span) - lower(span), lane,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM stored;

-- load-thread: a thread's row, with the columns that rows of all kinds have
SELECT 0 AS what, t.thread AS n, t.epoch, t.rev, t.created, t.updated, t.checkpoints, t.writes, t.bytes, t.step,
       t.labels, t.tenant, t.id, t.nexts, t.top, t.run, t.early, t.lease, t.kind, t.source, t.status, t.early_status,
       NULL::integer[] AS lengths, ARRAY[t.family, t.top_writes, t.early_writes, t.bytes_check, t.checksum] AS facts,
       t.sealed, t.description
FROM thread t

-- commit: apply some batches, each only if its precondition holds; returns the threads whose batch was applied
WITH {threads}, committed AS (
    {committed}
){parts}
SELECT thread FROM committed {setting};

-- commit-setting: how durable the commit is, if the server's setting differs
CROSS JOIN set_config('synchronous_commit', {synchronous}, true)

-- commit-small: apply one batch of few rows if its precondition holds; returns its thread, or no row
WITH committed AS (
    {change}
){parts}
SELECT thread FROM committed {setting};

-- commit-one-existing: an existing thread, which must have the expected version
UPDATE tk_threads AS t
    SET epoch = :epoch, rev = :rev, nexts = :nexts, updated = :updated, tick = :tick, checkpoints = :checkpoints,
        writes = :writes, bytes = t.bytes + :bytes, top = :top, run = :run, step = :step, source = :source,
        status = :status, labels = :labels, early = :early, early_status = :early_status, top_writes = :top_writes,
        early_writes = :early_writes, bytes_check = t.bytes + :bytes, checksum = :checksum, lease = :lease,
        description = :description, sealed = :sealed
    WHERE t.thread = :number AND t.epoch = :expect_epoch AND t.rev = :expect_rev
      AND (CAST(:sealed AS bytea) IS NOT NULL OR {commit-plain-tenant t.tenant})
    RETURNING t.thread

-- commit-one-new: a new thread, which must not exist
INSERT INTO tk_threads (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes,
                            bytes, top, run, step, source, status, labels, early, early_status, family, top_writes,
                            early_writes, bytes_check, checksum, lease, description, sealed)
    VALUES (CASE WHEN CAST(:sealed AS bytea) IS NOT NULL OR {commit-plain-tenant :tenant} THEN CAST(:number AS bigint) END,
            :tenant, :kind, :thread_id, :epoch, :rev, :nexts, :created, :updated, :tick, :checkpoints,
            :writes, :bytes, :top, :run, :step, :source, :status, :labels, :early, :early_status, :family,
            :top_writes, :early_writes, :bytes, :checksum, :lease, :description, :sealed)
    ON CONFLICT DO NOTHING RETURNING thread

-- commit-plain-tenant: true, or the statement fails because of a logarithm of zero: then the tenant is sealed, and what is
-- not encrypted is refused. No other statement fails so; see `translated` in `transports/postgres_errors.py`
ln(CAST(NOT EXISTS (SELECT 1 FROM tk_tenants k WHERE k.tenant = {it} AND k.sealed <> 0) AS integer)) = 0

-- commit-few-items: new items, each with its own parameters
items AS (
    INSERT INTO tk_items (thread, lane, n, payload)
    SELECT committed.thread, b.lane, b.n, b.payload FROM committed, (VALUES {rows}) AS b (lane, n, payload)
)

-- commit-many-items: new items
-- An array inside of a SELECT has no known length when the statement is planned. So a plan for all values costs as much
-- as one for these values, and the server keeps it instead of planning again.
items AS (
    INSERT INTO tk_items (thread, lane, n, payload)
    SELECT committed.thread, b.lane, b.n, b.payload
    FROM committed, unnest(
        (SELECT :item_lanes::bigint[]), (SELECT :item_ns::bigint[]), (SELECT :item_payloads::bytea[])
    ) AS b (lane, n, payload)
)

-- commit-one-checkpoint: a new checkpoint; an existing one makes the statement fail
{commit-insert-checkpoint})

-- commit-changed-checkpoint: a checkpoint that is added or replaced
{commit-insert-checkpoint} {replace-checkpoints})

-- commit-insert-checkpoint: the common start of both
checkpoints AS (
    INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
    SELECT thread, :checkpoint_ns, :checkpoint_id, :checkpoint_parent, :checkpoint_run, :checkpoint_step,
           :checkpoint_source, :checkpoint_labels, :checkpoint_time, :checkpoint_hidden,
           :checkpoint_refs, :checkpoint_body
    FROM committed

-- commit-one-write: the new writes of one task; existing writes of the same task make the statement fail
writes AS (
    INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
    SELECT thread, :write_ns, :write_checkpoint, :write_task, :write_path, :write_run, :write_time, :write_entries,
           :write_refs, :write_body
    FROM committed
)

-- commit-some-tags: index entries of new labels
tags AS (
    INSERT INTO tk_tags (thread, labels, tag)
    SELECT committed.thread, b.labels, b.tag
    FROM committed, unnest((SELECT :tag_labels::bigint[]), (SELECT :tags::bytea[])) AS b (labels, tag)
    ON CONFLICT DO NOTHING
)

-- commit-some-runs: runs for the index of runs
runs AS (
    INSERT INTO tk_runs (thread, run)
    SELECT committed.thread, b.run FROM committed, unnest((SELECT :runs::bytea[])) AS b (run)
    ON CONFLICT DO NOTHING
)

-- commit-existing: existing threads, which must have the expected version
existing_threads AS (
    UPDATE tk_threads AS t
    SET epoch = b.epoch, rev = b.rev, nexts = b.nexts, updated = b.updated, tick = b.tick, checkpoints = b.checkpoints,
        writes = b.writes, bytes = t.bytes + b.bytes, top = b.top, run = b.run, step = b.step, source = b.source,
        status = b.status, labels = b.labels, early = b.early, early_status = b.early_status,
        top_writes = b.top_writes, early_writes = b.early_writes, bytes_check = t.bytes + b.bytes, checksum = b.checksum,
        lease = b.lease, description = b.description, sealed = b.sealed
    FROM unnest(
        :existing_number::bigint[], :existing_expect_epoch::bigint[], :existing_expect_rev::bigint[],
        :existing_epoch::bigint[], :existing_rev::bigint[], :existing_nexts::bytea[], :existing_updated::bigint[],
        :existing_tick::bigint[], :existing_checkpoints::bigint[], :existing_writes::bigint[],
        :existing_bytes::bigint[], :existing_top::bytea[], :existing_run::bytea[], :existing_step::bigint[],
        :existing_source::text[], :existing_status::text[], :existing_labels::bigint[], :existing_early::bytea[],
        :existing_early_status::text[], :existing_top_writes::bigint[], :existing_early_writes::bigint[],
        :existing_checksum::bigint[], :existing_lease::bytea[], :existing_description::text[],
        :existing_sealed::bytea[]
    ) AS b (number, expect_epoch, expect_rev, epoch, rev, nexts, updated, tick, checkpoints, writes, bytes, top, run,
            step, source, status, labels, early, early_status, top_writes, early_writes, checksum, lease, description,
            sealed)
    WHERE t.thread = b.number AND t.epoch = b.expect_epoch AND t.rev = b.expect_rev
      AND (b.sealed IS NOT NULL OR {commit-plain-tenant t.tenant})
    RETURNING t.thread
)

-- commit-new: new threads, which must not exist
new_threads AS (
    INSERT INTO tk_threads (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes,
                            bytes, top, run, step, source, status, labels, early, early_status, family, top_writes,
                            early_writes, bytes_check, checksum, lease, description, sealed)
    SELECT * FROM unnest(
        :new_number::bigint[], :new_tenant::bytea[], :new_kind::text[], :new_thread_id::bytea[], :new_epoch::bigint[],
        :new_rev::bigint[], :new_nexts::bytea[], :new_created::bigint[], :new_updated::bigint[], :new_tick::bigint[],
        :new_checkpoints::bigint[], :new_writes::bigint[], :new_bytes::bigint[], :new_top::bytea[], :new_run::bytea[],
        :new_step::bigint[], :new_source::text[], :new_status::text[], :new_labels::bigint[], :new_early::bytea[],
        :new_early_status::text[], :new_family::bigint[], :new_top_writes::bigint[], :new_early_writes::bigint[],
        :new_bytes::bigint[], :new_checksum::bigint[], :new_lease::bytea[], :new_description::text[],
        :new_sealed::bytea[]
    ) AS b (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes, bytes, top, run,
            step, source, status, labels, early, early_status, family, top_writes, early_writes, bytes_check, checksum,
            lease, description, sealed)
    WHERE b.sealed IS NOT NULL OR {commit-plain-tenant b.tenant}
    ON CONFLICT DO NOTHING RETURNING thread
)

-- commit-shrinking: an existing thread that loses rows; it is locked before any row is deleted
locked AS (
    SELECT t.thread FROM tk_threads t
    WHERE t.thread = :existing_number AND t.epoch = :existing_expect_epoch AND t.rev = :existing_expect_rev
      AND (CAST(:existing_sealed AS bytea) IS NOT NULL OR {commit-plain-tenant t.tenant})
    FOR UPDATE
), removed_items AS (
    DELETE FROM tk_items i
    USING locked, unnest(:removed_lanes::bigint[], :removed_starts::bigint[], :removed_ends::bigint[])
        AS g (lane, lo, hi)
    WHERE i.thread = locked.thread AND i.lane = g.lane AND i.n >= g.lo AND i.n < g.hi
    RETURNING length(i.payload) AS size
), removed_tags AS (
    DELETE FROM tk_tags i
    USING locked, unnest(:removed_lanes::bigint[], :removed_starts::bigint[], :removed_ends::bigint[])
        AS g (lane, lo, hi)
    WHERE i.thread = locked.thread AND g.lane = 2 AND i.labels >= g.lo AND i.labels < g.hi
), removed_checkpoints AS (
    DELETE FROM tk_checkpoints c
    USING locked, unnest(:removed_spaces::bytea[], :removed_ids::bytea[]) AS g (ns, id)
    WHERE c.thread = locked.thread AND c.ns = g.ns AND c.id = g.id
), removed_writes AS (
    DELETE FROM tk_writes w
    USING locked, unnest(:removed_write_spaces::bytea[], :removed_write_ids::bytea[], :removed_tasks::bytea[])
        AS g (ns, checkpoint, task)
    WHERE w.thread = locked.thread AND w.ns = g.ns AND w.checkpoint = g.checkpoint AND w.task = g.task
), removed_runs AS (
    DELETE FROM tk_runs r
    USING locked, unnest(:removed_runs::bytea[]) AS g (run)
    WHERE r.thread = locked.thread AND r.run = g.run
), existing_threads AS (
    UPDATE tk_threads AS t
    SET epoch = :existing_epoch, rev = :existing_rev, nexts = :existing_nexts, updated = :existing_updated,
        tick = :existing_tick, checkpoints = :existing_checkpoints, writes = :existing_writes,
        bytes = t.bytes + :existing_bytes - (SELECT coalesce(sum(size), 0) FROM removed_items),
        top = :existing_top, run = :existing_run, step = :existing_step, source = :existing_source,
        status = :existing_status, labels = :existing_labels,
        early = :existing_early, early_status = :existing_early_status,
        top_writes = :existing_top_writes, early_writes = :existing_early_writes,
        bytes_check = t.bytes + :existing_bytes - (SELECT coalesce(sum(size), 0) FROM removed_items),
        checksum = :existing_checksum, lease = :existing_lease, description = :existing_description,
        sealed = :existing_sealed
    FROM locked WHERE t.thread = locked.thread
    RETURNING t.thread
)

-- commit-dropped: an existing thread that is deleted with everything it has
existing_threads AS (
    DELETE FROM tk_threads t
    WHERE t.thread = :existing_number AND t.epoch = :existing_expect_epoch AND t.rev = :existing_expect_rev
      AND (CAST(:existing_sealed AS bytea) IS NOT NULL OR {commit-plain-tenant t.tenant})
    RETURNING t.thread
), items AS (
    DELETE FROM tk_items i USING existing_threads WHERE i.thread = existing_threads.thread
), checkpoints AS (
    DELETE FROM tk_checkpoints c USING existing_threads WHERE c.thread = existing_threads.thread
), writes AS (
    DELETE FROM tk_writes w USING existing_threads WHERE w.thread = existing_threads.thread
), tags AS (
    DELETE FROM tk_tags g USING existing_threads WHERE g.thread = existing_threads.thread
), runs AS (
    DELETE FROM tk_runs r USING existing_threads WHERE r.thread = existing_threads.thread
)

-- commit-items: new items
items AS (
    INSERT INTO tk_items (thread, lane, n, payload)
    SELECT b.* FROM unnest(
        :items_thread::bigint[], :items_lane::bigint[], :items_n::bigint[], :items_payload::bytea[]
    ) AS b (thread, lane, n, payload)
    JOIN committed ON committed.thread = b.thread
)

-- commit-checkpoints: new checkpoints; an existing one makes the statement fail
{commit-insert-checkpoints})

-- commit-changed-checkpoints: checkpoints that are added or replaced
{commit-insert-checkpoints} {replace-checkpoints})

-- commit-insert-checkpoints: the common start of both
{rows} AS (
    INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
    SELECT b.thread, b.ns, b.id, b.parent, b.run, b.step, b.source, b.labels, b.time, b.hidden, b.refs,
           b.body
    FROM unnest(
        :{rows}_thread::bigint[], :{rows}_ns::bytea[], :{rows}_id::bytea[], :{rows}_parent::bytea[],
        :{rows}_run::bytea[], :{rows}_step::bigint[], :{rows}_source::text[], :{rows}_labels::bigint[],
        :{rows}_time::bigint[], :{rows}_hidden::bigint[], :{rows}_refs::text[], :{rows}_body::bytea[]
    ) AS b (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
    JOIN committed ON committed.thread = b.thread

-- commit-writes: new writes; existing writes of the same task make the statement fail
{commit-insert-writes})

-- commit-changed-writes: writes that are added or replaced
{commit-insert-writes} {replace-writes})

-- commit-insert-writes: the common start of both
{rows} AS (
    INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
    SELECT b.thread, b.ns, b.checkpoint, b.task, b.path, b.run, b.time, b.entries, b.refs, b.body
    FROM unnest(
        :{rows}_thread::bigint[], :{rows}_ns::bytea[], :{rows}_checkpoint::bytea[], :{rows}_task::bytea[],
        :{rows}_path::bytea[], :{rows}_run::bytea[], :{rows}_time::bigint[], :{rows}_entries::text[],
        :{rows}_refs::text[], :{rows}_body::bytea[]
    ) AS b (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
    JOIN committed ON committed.thread = b.thread

-- commit-tags: index entries of new labels
tags AS (
    INSERT INTO tk_tags (thread, labels, tag)
    SELECT b.* FROM unnest(:tags_thread::bigint[], :tags_labels::bigint[], :tags_tag::bytea[])
        AS b (thread, labels, tag)
    JOIN committed ON committed.thread = b.thread
    ON CONFLICT DO NOTHING
)

-- commit-runs: runs for the index of runs
runs AS (
    INSERT INTO tk_runs (thread, run)
    SELECT b.* FROM unnest(:runs_thread::bigint[], :runs_run::bytea[]) AS b (thread, run)
    JOIN committed ON committed.thread = b.thread
    ON CONFLICT DO NOTHING
)
