-- What PostgreSQL says in its own way: the schema, threads that are numbered by their key, and the two requests that
-- matter most, each in one statement: `load`, and `commit`, which is put together from the parts that a batch needs.
-- Ids are UTF-8 in bytea: their byte order is Python's order of strings, and NUL is a byte like any other. Times are
-- milliseconds since 1970. No foreign keys, sequences, triggers or functions: databases that spread tables over machines
-- lack one or the other.

-- schema-0: which migrations were made; the row of one is its lock
CREATE TABLE IF NOT EXISTS tk_schema (
    version integer PRIMARY KEY,
    made timestamptz NOT NULL DEFAULT now()
);

-- version: the last migration
SELECT coalesce(max(version), 0) FROM tk_schema;

-- migrated: a migration is being made, by us alone
INSERT INTO tk_schema (version) VALUES (:version);

-- synchronous-commit: whether commits wait for the disk
SHOW synchronous_commit;

-- schema-exists: whether the schema is there
SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = :schema;

-- new-schema: make the schema
CREATE SCHEMA IF NOT EXISTS {schema};

-- schema-1: everything, in an empty schema
-- What a row has not is empty rather than NULL where rows are many: a row without NULLs is 8 bytes shorter.
-- `hour` is `updated` by the hour or so (2^22 ms): as long as it stays the same, changing a thread changes no index.
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

-- schema-3: `tick` is `updated` in quarters of a second: a page of the last changed threads sorts those of one tick, not of
-- one `hour`, and the changes of one step still change no index but once
ALTER TABLE tk_threads ADD COLUMN tick bigint NOT NULL DEFAULT 0;
UPDATE tk_threads SET tick = updated >> 8;
ALTER TABLE tk_threads ALTER COLUMN tick DROP DEFAULT;
ALTER TABLE tk_threads DROP COLUMN hour;
CREATE INDEX tk_threads_tick ON tk_threads (tenant, tick);

-- this-thread: which thread, by its number; and by its key, should two keys ever have one number
t.thread = :number AND t.tenant = :tenant AND t.kind = :kind AND t.id = :thread_id

-- lock-thread: a thread's row, which nobody else changes until this transaction ends
{thread} FOR UPDATE;

-- refs: references come as text
CAST(:refs AS integer[])

-- join-in-order: the planner finds the order
JOIN

-- updated: when a thread was changed
updated = :updated, tick = :tick

-- order-updated: the last changed first
t.tick DESC, t.updated DESC, t.kind, t.id

-- after-updated: those after the last one of the page before
t.tick <= :value >> 8 AND t.updated <= :value AND (t.updated < :value OR (t.kind, t.id) > (:after_kind, :after_id))

-- new-thread: make a thread's row; no row comes back if it is there
INSERT INTO tk_threads (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes, bytes, top,
                        run, step, source, status, labels, early, early_status, lease)
VALUES (:number, :tenant, :kind, :thread_id, :epoch, :rev, :nexts, :created, :updated, :tick, :checkpoints, :writes, :bytes,
        :top, :run, :step, :source, :status, :labels, :early, :early_status, :lease)
ON CONFLICT DO NOTHING RETURNING thread;

-- items: runs of items
SELECT i.lane, i.n, i.payload
FROM unnest(:lanes::integer[], :starts::integer[], :ends::integer[]) AS r (lane, lo, hi)
JOIN tk_items i ON i.thread = :thread AND i.lane = r.lane AND i.n >= r.lo AND i.n < r.hi;

-- lengths: how long the items of some runs are, and how they begin
SELECT i.lane, i.n, length(i.payload), substr(i.payload, 1, CAST(:beginning AS integer))
FROM unnest(:lanes::integer[], :starts::integer[], :ends::integer[]) AS r (lane, lo, hi)
JOIN tk_items i ON i.thread = :thread AND i.lane = r.lane AND i.n >= r.lo AND i.n < r.hi;

-- held-all: bytes of runs of items
SELECT coalesce(sum(length(i.payload)), 0)
FROM unnest(:lanes::integer[], :starts::integer[], :ends::integer[]) AS r (lane, lo, hi)
JOIN tk_items i ON i.thread = :thread AND i.lane = r.lane AND i.n >= r.lo AND i.n < r.hi;

-- writes: the writes on some checkpoints
SELECT {write-columns} FROM tk_writes w WHERE w.thread = :thread AND w.ns = :ns AND w.checkpoint = ANY (:ids::bytea[]);

-- drop-all: a thread that is locked, whole
WITH items AS (DELETE FROM tk_items WHERE thread = :thread),
     checkpoints AS (DELETE FROM tk_checkpoints WHERE thread = :thread),
     writes AS (DELETE FROM tk_writes WHERE thread = :thread),
     tags AS (DELETE FROM tk_tags WHERE thread = :thread),
     runs AS (DELETE FROM tk_runs WHERE thread = :thread)
DELETE FROM tk_threads WHERE thread = :thread;

-- load: a thread's row (what = 0), wanted checkpoints (1), writes on them (2) and the items of both (3), of one moment
-- Items come some hundred in a row, their numbers and lengths beside them: a row of its own for each costs more than the rest.
WITH thread AS (
    SELECT * FROM tk_threads t WHERE {this-thread}
), wanted AS (
    SELECT w.at, w.ns, w.items, coalesce(w.id, (
        SELECT c.id FROM tk_checkpoints c WHERE c.thread = :number AND c.ns = w.ns AND c.hidden = 0
        ORDER BY c.id DESC LIMIT 1)) AS id
    FROM unnest(:ats::bigint[], :spaces::bytea[], :ids::bytea[], :whole::boolean[]) AS w (at, ns, id, items)
), found AS (
    SELECT f.at, f.items, c.*
    FROM wanted f JOIN tk_checkpoints c ON c.thread = :number AND c.ns = f.ns AND c.id = f.id
), wrote AS (
    SELECT f.at, f.items, w.*
    FROM wanted f JOIN tk_writes w ON w.thread = :number AND w.ns = f.ns AND w.checkpoint = f.id
), have AS (
    SELECT h.lane, h.spans::int4multirange AS spans
    FROM unnest(:have_lanes::bigint[], :have_spans::text[]) AS h (lane, spans)
    JOIN thread t ON t.epoch = :have_epoch
), runs AS (
    SELECT r.refs[k] AS lane, int4range(r.refs[k + 1], r.refs[k + 1] + r.refs[k + 2]) AS span
    FROM (SELECT items, refs FROM found UNION ALL SELECT items, refs FROM wrote) r
    CROSS JOIN generate_series(1, cardinality(r.refs), 3) AS k
    WHERE r.items OR r.refs[k] IN (1, 2)
    UNION ALL SELECT 2, int4range(labels, labels + 1) FROM found
    UNION ALL SELECT 0, int4range(0, 2147483647)
), lacking AS (
    SELECT r.lane, unnest(r.spans - coalesce(h.spans, '{}')) AS span
    FROM (SELECT lane, range_agg(span) AS spans FROM runs GROUP BY lane) r LEFT JOIN have h ON h.lane = r.lane
)
{thread-told}
UNION ALL
SELECT 1, at, NULL, NULL, NULL, NULL, NULL, hidden, time, step, labels,
       ns, id, parent, run, body, NULL, NULL, source, NULL, NULL, NULL, refs
FROM found
UNION ALL
SELECT 2, at, NULL, NULL, NULL, NULL, NULL, NULL, time, NULL, NULL,
       ns, checkpoint, task, path, run, body, NULL, entries, NULL, NULL, NULL, refs
FROM wrote
UNION ALL
SELECT 3, min(i.n), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, i.lane,
       string_agg(i.payload, '' ORDER BY i.n), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       array_agg(i.n ORDER BY i.n) || array_agg(length(i.payload) ORDER BY i.n)
FROM lacking r
JOIN tk_items i ON i.thread = :number AND i.lane = r.lane
    AND i.n >= lower(r.span) AND i.n < upper(r.span)
GROUP BY i.lane, i.n >> 8;

-- survey: a thread's row (0), all its checkpoints (1) and writes (2), its names, run lists, labels and shapes (3), and runs
-- of all its items (4), of one moment
WITH thread AS (
    SELECT * FROM tk_threads t WHERE {this-thread}
), stored AS (
    SELECT i.lane, unnest(range_agg(int4range(i.n, i.n + 1))) AS span FROM tk_items i WHERE i.thread = :number GROUP BY i.lane
)
{thread-told}
UNION ALL
SELECT 1, 0, NULL, NULL, NULL, NULL, NULL, hidden, time, step, labels,
       ns, id, parent, run, body, NULL, NULL, source, NULL, NULL, NULL, refs
FROM tk_checkpoints WHERE thread = :number
UNION ALL
SELECT 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, time, NULL, NULL,
       ns, checkpoint, task, path, run, body, NULL, entries, NULL, NULL, NULL, refs
FROM tk_writes WHERE thread = :number
UNION ALL
SELECT 3, n, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, lane,
       payload, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, ARRAY[n, length(payload)]
FROM tk_items WHERE thread = :number AND lane <= 2
UNION ALL
SELECT 4, lower(span), NULL, NULL, NULL, NULL, NULL, NULL, NULL, upper(span) - lower(span), lane,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM stored;

-- thread-told: the thread's row among rows of other kinds
SELECT 0 AS what, t.thread AS at, t.epoch, t.rev, t.created, t.updated, t.checkpoints, t.writes, t.bytes, t.step, t.labels,
       t.tenant, t.id, t.nexts, t.top, t.run, t.early, t.lease, t.kind, t.source, t.status, t.early_status,
       NULL::integer[] AS refs
FROM thread t

-- commit: some batches, each joined to its own precondition; the threads whose batch was made come back
WITH {threads}, done AS (
    {done}
){parts}
SELECT thread FROM done {setting};

-- commit-setting: how durable the commit is, if the server would have it otherwise
CROSS JOIN set_config('synchronous_commit', :synchronous, true)

-- commit-known: threads that must be as expected
known AS (
    UPDATE tk_threads AS t
    SET epoch = b.epoch, rev = b.rev, nexts = b.nexts, updated = b.updated, tick = b.tick, checkpoints = b.checkpoints,
        writes = b.writes, bytes = t.bytes + b.bytes, top = b.top, run = b.run, step = b.step, source = b.source,
        status = b.status, labels = b.labels, early = b.early, early_status = b.early_status
    FROM unnest(
        :known_number::bigint[], :known_expect_epoch::bigint[], :known_expect_rev::bigint[], :known_epoch::bigint[],
        :known_rev::bigint[], :known_nexts::bytea[], :known_updated::bigint[], :known_tick::bigint[],
        :known_checkpoints::bigint[], :known_writes::bigint[], :known_bytes::bigint[], :known_top::bytea[],
        :known_run::bytea[], :known_step::bigint[], :known_source::text[], :known_status::text[], :known_labels::bigint[],
        :known_early::bytea[], :known_early_status::text[]
    ) AS b (number, expect_epoch, expect_rev, epoch, rev, nexts, updated, tick, checkpoints, writes, bytes, top, run, step,
            source, status, labels, early, early_status)
    WHERE t.thread = b.number AND t.epoch = b.expect_epoch AND t.rev = b.expect_rev
    RETURNING t.thread
)

-- commit-made: threads that must not be there
made AS (
    INSERT INTO tk_threads (thread, tenant, kind, id, epoch, rev, nexts, created, updated, tick, checkpoints, writes, bytes,
                            top, run, step, source, status, labels, early, early_status)
    SELECT * FROM unnest(
        :made_number::bigint[], :made_tenant::bytea[], :made_kind::text[], :made_thread_id::bytea[], :made_epoch::bigint[],
        :made_rev::bigint[], :made_nexts::bytea[], :made_created::bigint[], :made_updated::bigint[], :made_tick::bigint[],
        :made_checkpoints::bigint[], :made_writes::bigint[], :made_bytes::bigint[], :made_top::bytea[], :made_run::bytea[],
        :made_step::bigint[], :made_source::text[], :made_status::text[], :made_labels::bigint[], :made_early::bytea[],
        :made_early_status::text[])
    ON CONFLICT DO NOTHING RETURNING thread
)

-- commit-shrunk: a thread that must be as expected, of which something is removed; it is locked before anything is
shrunk AS (
    SELECT t.thread FROM tk_threads t
    WHERE t.thread = :known_number AND t.epoch = :known_expect_epoch AND t.rev = :known_expect_rev
    FOR UPDATE
), gone_items AS (
    DELETE FROM tk_items i
    USING shrunk, unnest(:gone_lanes::bigint[], :gone_starts::bigint[], :gone_ends::bigint[]) AS g (lane, lo, hi)
    WHERE i.thread = shrunk.thread AND i.lane = g.lane AND i.n >= g.lo AND i.n < g.hi
    RETURNING length(i.payload) AS size
), gone_tags AS (
    DELETE FROM tk_tags i
    USING shrunk, unnest(:gone_lanes::bigint[], :gone_starts::bigint[], :gone_ends::bigint[]) AS g (lane, lo, hi)
    WHERE i.thread = shrunk.thread AND g.lane = 2 AND i.labels >= g.lo AND i.labels < g.hi
), gone_checkpoints AS (
    DELETE FROM tk_checkpoints c
    USING shrunk, unnest(:gone_spaces::bytea[], :gone_ids::bytea[]) AS g (ns, id)
    WHERE c.thread = shrunk.thread AND c.ns = g.ns AND c.id = g.id
), gone_writes AS (
    DELETE FROM tk_writes w
    USING shrunk, unnest(:gone_from::bytea[], :gone_on::bytea[], :gone_tasks::bytea[]) AS g (ns, checkpoint, task)
    WHERE w.thread = shrunk.thread AND w.ns = g.ns AND w.checkpoint = g.checkpoint AND w.task = g.task
), gone_runs AS (
    DELETE FROM tk_runs r
    USING shrunk, unnest(:gone_runs::bytea[]) AS g (run)
    WHERE r.thread = shrunk.thread AND r.run = g.run
), known AS (
    UPDATE tk_threads AS t
    SET epoch = :known_epoch, rev = :known_rev, nexts = :known_nexts, updated = :known_updated, tick = :known_tick,
        checkpoints = :known_checkpoints, writes = :known_writes,
        bytes = t.bytes + :known_bytes - (SELECT coalesce(sum(size), 0) FROM gone_items),
        top = :known_top, run = :known_run, step = :known_step, source = :known_source, status = :known_status,
        labels = :known_labels, early = :known_early, early_status = :known_early_status
    FROM shrunk WHERE t.thread = shrunk.thread
    RETURNING t.thread
)

-- commit-ended: a thread that must be as expected, and goes with all that it holds
known AS (
    DELETE FROM tk_threads t
    WHERE t.thread = :known_number AND t.epoch = :known_expect_epoch AND t.rev = :known_expect_rev
    RETURNING t.thread
), items AS (
    DELETE FROM tk_items i USING known WHERE i.thread = known.thread
), checkpoints AS (
    DELETE FROM tk_checkpoints c USING known WHERE c.thread = known.thread
), writes AS (
    DELETE FROM tk_writes w USING known WHERE w.thread = known.thread
), tags AS (
    DELETE FROM tk_tags g USING known WHERE g.thread = known.thread
), runs AS (
    DELETE FROM tk_runs r USING known WHERE r.thread = known.thread
)

-- commit-items: new items
items AS (
    INSERT INTO tk_items (thread, lane, n, payload)
    SELECT b.* FROM unnest(
        :items_thread::bigint[], :items_lane::bigint[], :items_n::bigint[], :items_payload::bytea[]
    ) AS b (thread, lane, n, payload)
    JOIN done ON done.thread = b.thread
)

-- commit-checkpoints: new checkpoints; one that is there makes the statement fail
{insert-given-checkpoints})

-- commit-changed-checkpoints: checkpoints that may be there
{insert-given-checkpoints} {replace-checkpoints})

-- insert-given-checkpoints: the start of both
{given} AS (
    INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
    SELECT b.thread, b.ns, b.id, b.parent, b.run, b.step, b.source, b.labels, b.time, b.hidden, b.refs::integer[], b.body
    FROM unnest(
        :{given}_thread::bigint[], :{given}_ns::bytea[], :{given}_id::bytea[], :{given}_parent::bytea[],
        :{given}_run::bytea[], :{given}_step::bigint[], :{given}_source::text[], :{given}_labels::bigint[],
        :{given}_time::bigint[], :{given}_hidden::bigint[], :{given}_refs::text[], :{given}_body::bytea[]
    ) AS b (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
    JOIN done ON done.thread = b.thread

-- commit-writes: new writes; a task's that are there make the statement fail
{insert-given-writes})

-- commit-changed-writes: writes that may be there
{insert-given-writes} {replace-writes})

-- insert-given-writes: the start of both
{given} AS (
    INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
    SELECT b.thread, b.ns, b.checkpoint, b.task, b.path, b.run, b.time, b.entries, b.refs::integer[], b.body
    FROM unnest(
        :{given}_thread::bigint[], :{given}_ns::bytea[], :{given}_checkpoint::bytea[], :{given}_task::bytea[],
        :{given}_path::bytea[], :{given}_run::bytea[], :{given}_time::bigint[], :{given}_entries::text[],
        :{given}_refs::text[], :{given}_body::bytea[]
    ) AS b (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
    JOIN done ON done.thread = b.thread

-- commit-tags: index entries of new labels
tags AS (
    INSERT INTO tk_tags (thread, labels, tag)
    SELECT b.* FROM unnest(:tags_thread::bigint[], :tags_labels::bigint[], :tags_tag::bytea[]) AS b (thread, labels, tag)
    JOIN done ON done.thread = b.thread
    ON CONFLICT DO NOTHING
)

-- commit-runs: which runs were here
runs AS (
    INSERT INTO tk_runs (thread, run)
    SELECT b.* FROM unnest(:runs_thread::bigint[], :runs_run::bytea[]) AS b (thread, run)
    JOIN done ON done.thread = b.thread
    ON CONFLICT DO NOTHING
)
