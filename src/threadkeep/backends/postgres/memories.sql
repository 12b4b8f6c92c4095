-- The tables of memories in PostgreSQL, and the statements that differ: JSON text, full text, and vectors as arrays.

-- schema-2: the tables of memories
-- A primary key starts with what is looked up, and contains the partition, by which a database may distribute rows.
CREATE TABLE tk_memories (
    memory bigint NOT NULL,
    part bigint NOT NULL,
    created bigint NOT NULL,
    updated bigint NOT NULL,
    expires bigint,
    ttl double precision,
    tenant bytea NOT NULL,
    space bytea NOT NULL,
    key bytea NOT NULL,
    value json NOT NULL,
    words tsvector,
    PRIMARY KEY (memory, part)
);
CREATE INDEX tk_memories_space ON tk_memories (tenant, space, updated);
CREATE INDEX tk_memories_updated ON tk_memories (tenant, updated);
CREATE INDEX tk_memories_expires ON tk_memories (expires) WHERE expires IS NOT NULL;
CREATE INDEX tk_memories_words ON tk_memories USING gin (words);
CREATE TABLE tk_vectors (
    memory bigint NOT NULL,
    part bigint NOT NULL,
    seq bigint NOT NULL,
    field integer NOT NULL,
    dims integer NOT NULL,
    tenant bytea NOT NULL,
    space bytea NOT NULL,
    vector real[] NOT NULL,
    PRIMARY KEY (memory, part, field)
);
ALTER TABLE tk_vectors ALTER COLUMN vector SET STORAGE EXTERNAL;
CREATE INDEX tk_vectors_seq ON tk_vectors (part, seq);
CREATE TABLE tk_parts (
    part bigint PRIMARY KEY,
    seq bigint NOT NULL,
    drops bigint NOT NULL,
    tenant bytea NOT NULL,
    first bytea NOT NULL
);
CREATE INDEX tk_parts_tenant ON tk_parts (tenant);

-- smaller-memory-indexes: the part of schema-8 that is about the indexes of memories
-- Without `updated`, the index by namespace is a tenth as large, because it stores each namespace once; no statement
-- used the order. GIN had an entry for each memory without words. It writes entries into a list first, and its pages
-- stay in the file after the list is merged: with 4 MB, the default limit, they were most of the index.
DROP INDEX tk_memories_space;
CREATE INDEX tk_memories_space ON tk_memories (tenant, space);
DROP INDEX tk_memories_words;
CREATE INDEX tk_memories_words ON tk_memories USING gin (words) WITH (gin_pending_list_limit = 512)
WHERE words IS NOT NULL;

-- memory-columns: the columns of a memory, in the order that `checksums.read_memory` takes; the value stays text
m.memory, m.space, m.key, m.value::text, {checked-columns}

-- memory-key: the unique key of a memory
memory, part

-- bigint: the type of integers
bigint

-- memories-in-order: the planner chooses the index
tk_memories m

-- memories-below: the planner chooses the index
tk_memories m

-- memory: a memory by number
SELECT {memory-columns} FROM tk_memories m
WHERE m.memory = :memory AND m.tenant IS NOT DISTINCT FROM :tenant AND {not-expired};

-- memories: memories by number
-- The number implies the tenant. IS NOT DISTINCT FROM keeps the planner from using an index on tenant.
SELECT {memory-columns} FROM tk_memories m
WHERE m.memory = ANY (:memories::bigint[]) AND m.tenant IS NOT DISTINCT FROM :tenant AND {not-expired};

-- lock-memories: lock memories, in the order in which `write-memories` changes them
SELECT m.memory FROM tk_memories m
WHERE m.memory = ANY (:memories::bigint[]) AND m.tenant IS NOT DISTINCT FROM :tenant ORDER BY m.memory FOR UPDATE;

-- write-memories: add, replace and delete memories, with their words; returns the number deleted
-- It fails with a division by zero if a stored memory with the same number has another key.
WITH put AS (
    INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, words,
                                  vectors, checksum, times, words_check)
    SELECT g.memory, g.part, :tenant, g.space, g.key, g.created, g.updated, g.expires, g.ttl::double precision,
           g.value::json, CAST(g.words AS tsvector), g.vectors, g.checksum, g.times, g.words_check
    FROM unnest(:memories::bigint[], :parts::bigint[], :spaces::bytea[], :keys::bytea[], :created::bigint[],
                :updated::bigint[], :expires::bigint[], :ttls::text[], :values::text[], :words::text[],
                :counts::bigint[], :checksums::bigint[], :times::bigint[], :words_checks::bigint[])
         AS g (memory, part, space, key, created, updated, expires, ttl, value, words, vectors, checksum, times,
               words_check)
    WHERE :sealed OR {commit-plain-tenant :tenant}
    {replace-memories}
    RETURNING 1
), gone AS (
    DELETE FROM tk_memories m USING unnest(:gone_memories::bigint[], :gone_parts::bigint[]) AS g (memory, part)
    WHERE m.memory = g.memory AND m.part = g.part AND m.tenant IS NOT DISTINCT FROM :tenant
      AND (NOT :expired OR m.expires <= :now)
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), 1 / CAST((SELECT count(*) FROM put) = cardinality(:memories::bigint[]) AS integer)
{setting};

-- write-vectors: store the vectors of the memories that were just written or deleted
-- It runs after `write-memories`, in the same transaction: a transaction that changed the same memories before has
-- committed, and its changes are visible. Surplus vectors of a memory are deleted, the others are replaced. The
-- partition counts the changes; a new one starts at the time, as in `count-vector-changes`.
WITH deleted AS (
    DELETE FROM tk_vectors v
    USING unnest(:memories::bigint[] || :gone_memories::bigint[], :parts::bigint[] || :gone_parts::bigint[],
                 :counts::bigint[]) AS g (memory, part, vectors)
    WHERE v.memory = g.memory AND v.part = g.part AND v.field >= coalesce(g.vectors, 0)
      AND (g.vectors IS NOT NULL
           OR NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.memory = g.memory AND m.part = g.part))
    RETURNING v.part
), changed_parts AS (
    INSERT INTO tk_parts AS p (part, tenant, first, seq, drops)
    SELECT g.part, :tenant, g.first, :now + g.stored,
           :now + (SELECT count(*) FROM deleted d WHERE d.part = g.part)
    FROM unnest(:changed_parts::bigint[], :changed_firsts::bytea[], :changed_stored::bigint[])
         AS g (part, first, stored)
    WHERE g.stored > 0 OR EXISTS (SELECT 1 FROM deleted d WHERE d.part = g.part)
    ON CONFLICT (part) DO UPDATE
    SET seq = p.seq + excluded.seq - :now, drops = p.drops + excluded.drops - :now
    RETURNING p.part, p.seq
)
INSERT INTO tk_vectors (memory, part, seq, field, dims, tenant, space, vector, checksum)
SELECT g.memory, g.part, t.seq, g.field, g.dims, :tenant, g.space, (:numbers::real[])[g.start + 1 : g.start + g.dims],
       g.checksum + t.seq
FROM unnest(:vector_memories::bigint[], :vector_parts::bigint[], :vector_fields::bigint[], :vector_spaces::bytea[],
            :vector_starts::bigint[], :vector_dims::bigint[], :vector_checksums::bigint[])
     AS g (memory, part, field, space, start, dims, checksum)
JOIN changed_parts t ON t.part = g.part
ON CONFLICT (memory, part, field) DO UPDATE
SET seq = excluded.seq, dims = excluded.dims, tenant = excluded.tenant, space = excluded.space,
    vector = excluded.vector, checksum = excluded.checksum;

-- put-memory: add or replace a memory without vectors in a statement of its own; returns 1, or 0 if there is more to do
-- It changes nothing if a stored memory with the same number has another key, or vectors.
WITH put AS (
    INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, words,
                                  vectors, checksum, times, words_check)
    VALUES (CASE WHEN :sealed OR {commit-plain-tenant :tenant} THEN CAST(:memory AS bigint) END, :part, :tenant, :space,
            :key, :created, :updated, :expires, :ttl, CAST(:value AS json),
            CAST(:words AS tsvector), :vectors, :checksum, :times, :words_check)
    {replace-memories} AND m.vectors = 0
    RETURNING 1
)
SELECT (SELECT count(*) FROM put) {setting};

-- add-memory: add a memory, without its vectors; returns a row if there was none with its number
INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, words,
                              vectors, checksum, times, words_check)
VALUES (CASE WHEN :sealed OR {commit-plain-tenant :tenant} THEN CAST(:memory AS bigint) END, :part, :tenant, :space,
        :key, :created, :updated, :expires, :ttl, CAST(:value AS json),
        CAST(:words AS tsvector), :vectors, :checksum, :times, :words_check)
ON CONFLICT DO NOTHING RETURNING 1;

-- put-many: the same for several memories; it fails with a division by zero if there is more to do
-- The planner cannot see the arrays inside a SELECT, so a plan for any number of memories is as good as one for these.
WITH put AS (
    INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, words,
                                  vectors, checksum, times, words_check)
    SELECT g.memory, g.part, :tenant, g.space, g.key, g.created, g.updated, g.expires, g.ttl::double precision,
           g.value::json, CAST(g.words AS tsvector), 0, g.checksum, g.times, g.words_check
    FROM unnest((SELECT :memories::bigint[]), (SELECT :parts::bigint[]), (SELECT :spaces::bytea[]),
                (SELECT :keys::bytea[]), (SELECT :created::bigint[]), (SELECT :updated::bigint[]),
                (SELECT :expires::bigint[]), (SELECT :ttls::text[]), (SELECT :values::text[]), (SELECT :words::text[]),
                (SELECT :checksums::bigint[]), (SELECT :times::bigint[]), (SELECT :words_checks::bigint[]))
         AS g (memory, part, space, key, created, updated, expires, ttl, value, words, checksum, times, words_check)
    WHERE :sealed OR {commit-plain-tenant :tenant}
    {replace-memories} AND m.vectors = 0
    RETURNING 1
)
SELECT 1 / CAST((SELECT count(*) FROM put) = cardinality(:memories::bigint[]) AS integer) {setting};

-- delete-memory: delete a memory without vectors in a statement of its own; returns 1, or 0 if there is more to do
WITH gone AS (
    DELETE FROM tk_memories m
    WHERE m.memory = :memory AND m.part = :part AND m.tenant IS NOT DISTINCT FROM :tenant AND m.vectors = 0
      AND (:sealed OR {commit-plain-tenant :tenant})
)
SELECT CAST(NOT EXISTS (SELECT 1 FROM tk_vectors v WHERE v.memory = :memory AND v.part = :part)
            AND NOT EXISTS (SELECT 1 FROM tk_memories m
                            WHERE m.memory = :memory AND m.part = :part AND m.vectors IS NULL) AS integer) {setting};

-- delete-memory-and-vectors: the same for a memory with or without vectors, which takes a third longer without
-- Its vectors are deleted after it, as `write-memories` and `write-vectors` do: then two transactions do not deadlock.
-- It fails with a division by zero if a transaction that stored other vectors was not visible when it started.
WITH gone AS (
    DELETE FROM tk_memories m
    WHERE m.memory = :memory AND m.part = :part AND m.tenant IS NOT DISTINCT FROM :tenant AND m.vectors IS NOT NULL
      AND (:sealed OR {commit-plain-tenant :tenant})
    RETURNING m.memory, m.part, m.vectors
), lost AS (
    DELETE FROM tk_vectors v USING gone g WHERE v.memory = g.memory AND v.part = g.part RETURNING v.part
), changed_part AS (
    UPDATE tk_parts p SET drops = p.drops + l.vectors
    FROM (SELECT part, count(*) AS vectors FROM lost GROUP BY part) AS l WHERE p.part = l.part
    RETURNING 1
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM gone)
            THEN 1 / CAST((SELECT count(*) FROM lost) = (SELECT g.vectors FROM gone g)
                          AND EXISTS (SELECT 1 FROM changed_part) = EXISTS (SELECT 1 FROM lost) AS integer)
            ELSE CAST(NOT EXISTS (SELECT 1 FROM tk_vectors v WHERE v.memory = :memory AND v.part = :part)
                      AND NOT EXISTS (SELECT 1 FROM tk_memories m
                                      WHERE m.memory = :memory AND m.part = :part AND m.vectors IS NULL) AS integer)
       END {setting};

-- replace-memories: replace an existing memory
ON CONFLICT ({memory-key}) DO UPDATE
SET {replaced-columns}, words = excluded.words
WHERE m.tenant = excluded.tenant AND m.space = excluded.space AND m.key = excluded.key

-- write-memories-setting: how durable the commit is, if the server's setting differs
FROM set_config('synchronous_commit', :synchronous, true)

-- refresh-memories: start the ttl of memories again
UPDATE tk_memories AS m SET expires = :now + CAST(trunc(m.ttl * 60000000) AS bigint),
    times = m.times - m.expires + :now + CAST(trunc(m.ttl * 60000000) AS bigint)
FROM unnest(:memories::bigint[], :parts::bigint[]) AS g (memory, part)
WHERE m.memory = g.memory AND m.part = g.part AND m.tenant IS NOT DISTINCT FROM :tenant
  AND m.ttl IS NOT NULL AND m.expires > :now;

-- list-namespaces: the namespaces that have memories
-- The lateral join is one lookup per namespace. A plain join would read all memories.
{walk-namespaces}
SELECT found.space, alive.* FROM found CROSS JOIN LATERAL (SELECT {proof-columns} {in-namespace} LIMIT 1) AS alive
WHERE found.space IS NOT NULL ORDER BY found.space LIMIT :limit;

-- search-words: memories that contain one of some words, best match first
-- Each occurrence of a word has its own position, so its "cover density" with equal weights is the number of positions.
-- That is slow for many words, so it is only computed for memories that have as many words as the last one returned.
SELECT m.memory, {words-found} AS words, CAST(ts_rank_cd(CAST('{1,1,1,1}' AS real[]), m.words, q.words) AS bigint) AS times,
       m.updated, m.words_check IS NOT NULL
FROM (SELECT CAST(:query AS tsquery) AS words) AS q, tk_memories m
WHERE m.words @@ q.words AND {conditions}
  AND (:is_one_word OR {words-found} >= coalesce(
      (SELECT {words-found} AS words FROM tk_memories m WHERE m.words @@ CAST(:query AS tsquery) AND {conditions}
       ORDER BY words DESC LIMIT 1 OFFSET :limit - 1), 0))
ORDER BY words DESC, times DESC, m.updated DESC, m.space, m.key LIMIT :limit;

-- words-found: how many of some words a memory has that has at least one
CASE WHEN :is_one_word THEN 1 ELSE length(m.words) - length(ts_delete(m.words, :words::text[])) END

-- vectors-since: the vectors of a partition that were stored after a sequence number
SELECT v.memory, v.field, v.space, array_send(v.vector), v.seq, v.checksum FROM tk_vectors v
WHERE v.part = :part AND v.seq > :since;

-- vector-schema: the schema of pgvector, if it is installed, supports iterative scans (0.8), and we may use it
SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'vector' AND string_to_array(e.extversion, '.')::integer[] >= ARRAY[0, 8]
  AND has_schema_privilege(n.oid, 'USAGE')

-- create-extension: install pgvector, if we are allowed to
CREATE EXTENSION IF NOT EXISTS vector;

-- lock-index: lock the creation of an index on this table with this many dimensions; false if another session has it
SELECT pg_try_advisory_lock(CAST(CAST(to_regclass(:table) AS oid) AS bigint) * 100000 + :dims);

-- unlock-index: release that lock
SELECT pg_advisory_unlock(CAST(CAST(to_regclass(:table) AS oid) AS bigint) * 100000 + :dims);

-- index-is-valid: whether an index exists and is complete
SELECT i.indisvalid FROM pg_catalog.pg_index i WHERE i.indexrelid = to_regclass(:name);

-- drop-index: drop an index that was left unfinished
DROP INDEX CONCURRENTLY IF EXISTS {index};

-- index-vectors: an index for similarity search on the vectors with this many dimensions; nobody waits for it
CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON tk_vectors USING hnsw (({vector}) {pgvector}.{operators})
WHERE dims = {dims};

-- vectors-below: the vectors of a tenant below a prefix, with this many dimensions
v.dims = {dims} AND v.tenant = :tenant AND v.space >= :low AND v.space < :high

-- count-vectors: the number of vectors, counted up to a limit
SELECT count(*) FROM (SELECT 1 FROM tk_vectors v WHERE {conditions} LIMIT :up_to) AS counted;

-- matching-limited: the numbers of memories that match, up to a limit
SELECT m.memory FROM tk_memories m WHERE {conditions} LIMIT :up_to;

-- index-settings: settings for a search by index, until the transaction ends
-- The planner cannot estimate what the index saves, so it gets no choice.
SELECT set_config('enable_sort', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('hnsw.ef_search', :ef, true), set_config('hnsw.iterative_scan', 'relaxed_order', true);

-- exact-settings: settings for comparing all vectors, until the transaction ends
-- Without statistics the planner would choose nested loops.
SELECT set_config('enable_sort', 'on', true), set_config('enable_nestloop', 'off', true);

-- nearest: the nearest vectors by index; a memory with several vectors may come several times
SELECT v.memory, {distance} AS distance FROM tk_vectors v WHERE {vectors-below} ORDER BY {nearness} LIMIT :candidates;

-- nearest-among: the nearest of some memories, by comparing each vector
SELECT v.memory, min({distance}) AS distance FROM tk_vectors v
WHERE {vectors-below} AND v.memory = ANY (:numbers::bigint[])
GROUP BY v.memory ORDER BY distance, v.memory LIMIT :limit;

-- nearest-exact: the nearest of all memories that match, by comparing each vector
SELECT v.memory, min({distance}) AS distance
FROM tk_vectors v JOIN tk_memories m ON m.memory = v.memory AND m.part = v.part
WHERE {vectors-below} AND {conditions}
GROUP BY v.memory ORDER BY distance, v.memory LIMIT :limit;

-- matching-among: which of some memories match
SELECT m.memory FROM tk_memories m WHERE m.memory = ANY (:numbers::bigint[]) AND {row-conditions};
