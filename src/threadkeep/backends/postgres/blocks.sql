-- The PostgreSQL schema, and the statements that differ from the shared ones. A thread's number is a hash of its key,
-- so the two most frequent requests are one statement each: `load-checkpoints`, and `commit`, which is assembled from
-- the parts that a batch needs.
-- Ids are UTF-8 in bytea: their byte order is Python's order of strings, and NUL is allowed. Times are milliseconds
-- since 1970. There are no foreign keys, sequences, triggers or functions: each is missing in some database that
-- distributes tables.

-- schema-0: the table that records migrations; inserting a version's row is the lock for its migration
CREATE TABLE IF NOT EXISTS tk_schema (
    version integer PRIMARY KEY,
    made timestamptz NOT NULL DEFAULT now()
);

-- versions: the last migration: its version, its time; from 5 on the oldest versions whose code can read and write
SELECT * FROM tk_schema ORDER BY version DESC LIMIT 1;

-- set-version: record a migration; another client that runs the same one waits here
INSERT INTO tk_schema (version) VALUES (:version);

-- synchronous-commit: whether commits wait for the disk
SHOW synchronous_commit;

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

-- schema-5: checksums, NULL in rows that were written before; the oldest versions whose code can use these tables
ALTER TABLE tk_schema ADD COLUMN readable integer;
ALTER TABLE tk_schema ADD COLUMN writable integer;
UPDATE tk_schema SET readable = 5, writable = 5 WHERE version = 5;
ALTER TABLE tk_memories ADD COLUMN vectors integer;
ALTER TABLE tk_memories ADD COLUMN checksum bigint;
ALTER TABLE tk_memories ADD COLUMN times bigint;
ALTER TABLE tk_vectors ADD COLUMN checksum bigint;
ALTER TABLE tk_memories ADD COLUMN words_check integer;
ALTER TABLE tk_threads ADD COLUMN family bigint NOT NULL DEFAULT 0;
ALTER TABLE tk_threads ADD COLUMN top_writes bigint;
ALTER TABLE tk_threads ADD COLUMN early_writes bigint;
ALTER TABLE tk_threads ADD COLUMN bytes_check bigint;
ALTER TABLE tk_threads ADD COLUMN checksum bigint;

-- this-thread: a thread by number, and by key in case two keys have the same number
t.thread = :number AND t.tenant = :tenant AND t.kind = :kind AND t.id = :thread_id

-- lock-thread: a thread's row, locked until the transaction ends
{thread} FOR UPDATE;

-- refs: item ranges are stored as text
:refs

-- refs-array: item ranges as an array; empty if they are damaged, which the client reports
-- A process of version 5 that was not stopped before the migration stores them in braces: an array becomes such text.
CASE WHEN btrim({it}, '{}') ~ '^[0-9]{1,10}(,[0-9]{1,10})*$'
     THEN CAST(string_to_array(btrim({it}, '{}'), ',') AS bigint[]) ELSE '{}' END

-- join-in-order: the planner chooses the order
JOIN

-- set-updated: set the time of the last change
updated = :updated, tick = :tick

-- insert-thread: add a thread's row; returns no row if it exists
INSERT INTO tk_threads (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes, bytes,
                        top, run, step, source, status, labels, early, early_status, lease, family, top_writes,
                        early_writes, bytes_check, checksum)
VALUES (:number, :tenant, :kind, :thread_id, :epoch, :rev, :nexts, :created, :updated, :tick, :checkpoints, :writes,
        :bytes, :top, :run, :step, :source, :status, :labels, :early, :early_status, :lease, :family, :top_writes,
        :early_writes, :bytes, :checksum)
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

-- writes: the writes of some checkpoints
SELECT {write-columns} FROM tk_writes w WHERE w.thread = :thread AND w.ns = :ns AND w.checkpoint = ANY (:ids::bytea[]);

-- drop-all: delete everything that a locked thread has
WITH items AS (DELETE FROM tk_items WHERE thread = :thread),
     checkpoints AS (DELETE FROM tk_checkpoints WHERE thread = :thread),
     writes AS (DELETE FROM tk_writes WHERE thread = :thread),
     tags AS (DELETE FROM tk_tags WHERE thread = :thread),
     runs AS (DELETE FROM tk_runs WHERE thread = :thread)
DELETE FROM tk_threads WHERE thread = :thread;

-- load-checkpoints: a thread's row (what = 0), checkpoints (1), their writes (2) and items (3), in one snapshot
-- Up to 256 items come in one row, with their numbers and lengths: one row per item would cost more than all the rest.
WITH thread AS (
    SELECT * FROM tk_threads t WHERE {this-thread}
), wanted AS (
    SELECT w.n, w.ns, w.items, coalesce(w.id, (
        SELECT c.id FROM tk_checkpoints c WHERE c.thread = :number AND c.ns = w.ns AND c.hidden = 0
        ORDER BY c.id DESC LIMIT 1)) AS id
    FROM unnest(:positions::bigint[], :spaces::bytea[], :ids::bytea[], :with_items::boolean[]) AS w (n, ns, id, items)
), found AS (
    SELECT f.n, f.items, c.*
    FROM wanted f JOIN tk_checkpoints c ON c.thread = :number AND c.ns = f.ns AND c.id = f.id
), writes AS (
    SELECT f.n, f.items, w.*
    FROM wanted f JOIN tk_writes w ON w.thread = :number AND w.ns = f.ns AND w.checkpoint = f.id
), cached AS (
    SELECT h.lane, h.spans::int8multirange AS spans
    FROM unnest(:cached_lanes::bigint[], :cached_spans::text[]) AS h (lane, spans)
    JOIN thread t ON t.epoch = :cached_epoch
), needed AS (
    SELECT r.refs[k] AS lane, int8range(r.refs[k + 1], r.refs[k + 1] + r.refs[k + 2]) AS span
    FROM (SELECT items, {refs-array refs} AS refs FROM found
          UNION ALL SELECT items, {refs-array refs} FROM writes) r
    CROSS JOIN generate_series(1, cardinality(r.refs), 3) AS k
    WHERE r.items OR r.refs[k] IN (1, 2)
    UNION ALL SELECT 2, int8range(labels, labels::bigint + 1) FROM found
    UNION ALL SELECT 0, int8range(0, 2147483648)
), missing AS (
    SELECT r.lane, unnest(r.spans - coalesce(h.spans, '{}')) AS span
    FROM (SELECT lane, range_agg(span) AS spans FROM needed GROUP BY lane) r LEFT JOIN cached h ON h.lane = r.lane
)
{load-thread}
UNION ALL
SELECT 1, n, NULL, NULL, NULL, NULL, NULL, hidden, time, step, labels,
       ns, id, parent, run, body, NULL, NULL, source, refs, NULL, NULL, NULL, NULL
FROM found
UNION ALL
SELECT 2, n, NULL, NULL, NULL, NULL, NULL, NULL, time, NULL, NULL,
       ns, checkpoint, task, path, run, body, NULL, entries, refs, NULL, NULL, NULL, NULL
FROM writes
UNION ALL
SELECT 3, min(i.n), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, i.lane,
       string_agg(i.payload, '' ORDER BY i.n), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       array_agg(i.n ORDER BY i.n) || array_agg(length(i.payload) ORDER BY i.n), NULL
FROM missing r
JOIN tk_items i ON i.thread = :number AND i.lane = r.lane
    AND i.n >= lower(r.span) AND i.n < upper(r.span)
GROUP BY i.lane, i.n >> 8;

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
       ns, id, parent, run, body, NULL, NULL, source, refs, NULL, NULL, NULL, NULL
FROM tk_checkpoints WHERE thread = :number
UNION ALL
SELECT 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, time, NULL, NULL,
       ns, checkpoint, task, path, run, body, NULL, entries, refs, NULL, NULL, NULL, NULL
FROM tk_writes WHERE thread = :number
UNION ALL
SELECT 3, n, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, lane,
       payload, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, ARRAY[n, length(payload)], NULL
FROM tk_items WHERE thread = :number AND lane <= 2
UNION ALL
SELECT 4, lower(span), NULL, NULL, NULL, NULL, NULL, NULL, NULL, upper(span) - lower(span), lane,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM stored;

-- load-thread: a thread's row, with the columns that rows of all kinds have
SELECT 0 AS what, t.thread AS n, t.epoch, t.rev, t.created, t.updated, t.checkpoints, t.writes, t.bytes, t.step,
       t.labels, t.tenant, t.id, t.nexts, t.top, t.run, t.early, t.lease, t.kind, t.source, t.status, t.early_status,
       NULL::integer[] AS lengths, ARRAY[t.family, t.top_writes, t.early_writes, t.bytes_check, t.checksum] AS facts
FROM thread t

-- commit: apply some batches, each only if its precondition holds; returns the threads whose batch was applied
WITH {threads}, committed AS (
    {committed}
){parts}
SELECT thread FROM committed {setting};

-- commit-setting: how durable the commit is, if the server's setting differs
CROSS JOIN set_config('synchronous_commit', :synchronous, true)

-- commit-existing: existing threads, which must have the expected version
existing_threads AS (
    UPDATE tk_threads AS t
    SET epoch = b.epoch, rev = b.rev, nexts = b.nexts, updated = b.updated, tick = b.tick, checkpoints = b.checkpoints,
        writes = b.writes, bytes = t.bytes + b.bytes, top = b.top, run = b.run, step = b.step, source = b.source,
        status = b.status, labels = b.labels, early = b.early, early_status = b.early_status,
        top_writes = b.top_writes, early_writes = b.early_writes, bytes_check = t.bytes + b.bytes, checksum = b.checksum
    FROM unnest(
        :existing_number::bigint[], :existing_expect_epoch::bigint[], :existing_expect_rev::bigint[],
        :existing_epoch::bigint[], :existing_rev::bigint[], :existing_nexts::bytea[], :existing_updated::bigint[],
        :existing_tick::bigint[], :existing_checkpoints::bigint[], :existing_writes::bigint[],
        :existing_bytes::bigint[], :existing_top::bytea[], :existing_run::bytea[], :existing_step::bigint[],
        :existing_source::text[], :existing_status::text[], :existing_labels::bigint[], :existing_early::bytea[],
        :existing_early_status::text[], :existing_top_writes::bigint[], :existing_early_writes::bigint[],
        :existing_checksum::bigint[]
    ) AS b (number, expect_epoch, expect_rev, epoch, rev, nexts, updated, tick, checkpoints, writes, bytes, top, run,
            step, source, status, labels, early, early_status, top_writes, early_writes, checksum)
    WHERE t.thread = b.number AND t.epoch = b.expect_epoch AND t.rev = b.expect_rev
    RETURNING t.thread
)

-- commit-new: new threads, which must not exist
new_threads AS (
    INSERT INTO tk_threads (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes,
                            bytes, top, run, step, source, status, labels, early, early_status, family, top_writes,
                            early_writes, bytes_check, checksum)
    SELECT * FROM unnest(
        :new_number::bigint[], :new_tenant::bytea[], :new_kind::text[], :new_thread_id::bytea[], :new_epoch::bigint[],
        :new_rev::bigint[], :new_nexts::bytea[], :new_created::bigint[], :new_updated::bigint[], :new_tick::bigint[],
        :new_checkpoints::bigint[], :new_writes::bigint[], :new_bytes::bigint[], :new_top::bytea[], :new_run::bytea[],
        :new_step::bigint[], :new_source::text[], :new_status::text[], :new_labels::bigint[], :new_early::bytea[],
        :new_early_status::text[], :new_family::bigint[], :new_top_writes::bigint[], :new_early_writes::bigint[],
        :new_bytes::bigint[], :new_checksum::bigint[])
    ON CONFLICT DO NOTHING RETURNING thread
)

-- commit-shrinking: an existing thread that loses rows; it is locked before any row is deleted
locked AS (
    SELECT t.thread FROM tk_threads t
    WHERE t.thread = :existing_number AND t.epoch = :existing_expect_epoch AND t.rev = :existing_expect_rev
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
        checksum = :existing_checksum
    FROM locked WHERE t.thread = locked.thread
    RETURNING t.thread
)

-- commit-dropped: an existing thread that is deleted with everything it has
existing_threads AS (
    DELETE FROM tk_threads t
    WHERE t.thread = :existing_number AND t.epoch = :existing_expect_epoch AND t.rev = :existing_expect_rev
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
