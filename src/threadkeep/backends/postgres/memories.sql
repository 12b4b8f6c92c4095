-- Memories in PostgreSQL. Besides what threads need: JSON text, full text with its index, and arrays of numbers.

-- schema-2: memories; the primary keys begin with what is looked up and contain what spreads them over machines
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

-- memory-columns: a memory, in the order in which it is read; its value stays text
m.memory, m.space, m.key, m.value::text, m.created, m.updated, m.expires, m.ttl

-- memory-key: what makes a memory that one
memory, part

-- bigint: whole numbers
bigint

-- memories-in-order: the planner finds the way
tk_memories m

-- memories-below: the planner finds the way
tk_memories m

-- memories: some memories by their numbers; the tenant is in the number, and compared so that no index of it is read
SELECT {memory-columns} FROM tk_memories m
WHERE m.memory = ANY (:memories::bigint[]) AND m.tenant IS NOT DISTINCT FROM :tenant AND {is-alive};

-- remember: store and remove memories, with their words; how many were removed. Two memories with one number are an error.
WITH put AS (
    INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, words)
    SELECT g.memory, g.part, :tenant, g.space, g.key, g.created, g.updated, g.expires, g.ttl::double precision,
           g.value::json, CAST(g.words AS tsvector)
    FROM unnest(:memories::bigint[], :parts::bigint[], :spaces::bytea[], :keys::bytea[], :created::bigint[],
                :updated::bigint[], :expires::bigint[], :ttls::text[], :values::text[], :words::text[])
         AS g (memory, part, space, key, created, updated, expires, ttl, value, words)
    {replace-memories}
    RETURNING 1
), gone AS (
    DELETE FROM tk_memories m USING unnest(:gone_memories::bigint[], :gone_parts::bigint[]) AS g (memory, part)
    WHERE m.memory = g.memory AND m.part = g.part AND m.tenant IS NOT DISTINCT FROM :tenant AND (NOT :expired OR m.expires <= :now)
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), 1 / CAST((SELECT count(*) FROM put) = cardinality(:memories::bigint[]) AS integer)
{setting};

-- remember-vectors: the vectors of memories that were just stored or removed
-- It comes after `remember`, in its transaction: whoever changed the same memories before is done, and is seen. Vectors beyond
-- those that a memory has now are removed, the others replaced. The partition counts what changed.
WITH less AS (
    DELETE FROM tk_vectors v
    USING unnest(:memories::bigint[] || :gone_memories::bigint[], :parts::bigint[] || :gone_parts::bigint[],
                 :counts::bigint[]) AS g (memory, part, vectors)
    WHERE v.memory = g.memory AND v.part = g.part AND v.field >= coalesce(g.vectors, 0)
      AND (g.vectors IS NOT NULL
           OR NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.memory = g.memory AND m.part = g.part))
    RETURNING v.part
), told AS (
    INSERT INTO tk_parts AS p (part, tenant, first, seq, drops)
    SELECT g.part, :tenant, g.first, g.stored, (SELECT count(*) FROM less l WHERE l.part = g.part)
    FROM unnest(:told_parts::bigint[], :told_firsts::bytea[], :told_stored::bigint[]) AS g (part, first, stored)
    WHERE g.stored > 0 OR EXISTS (SELECT 1 FROM less l WHERE l.part = g.part)
    ON CONFLICT (part) DO UPDATE SET seq = p.seq + excluded.seq, drops = p.drops + excluded.drops
    RETURNING p.part, p.seq
)
INSERT INTO tk_vectors (memory, part, seq, field, dims, tenant, space, vector)
SELECT g.memory, g.part, t.seq, g.field, g.dims, :tenant, g.space, (:numbers::real[])[g.start + 1 : g.start + g.dims]
FROM unnest(:vector_memories::bigint[], :vector_parts::bigint[], :vector_fields::bigint[], :vector_spaces::bytea[],
            :vector_starts::bigint[], :vector_dims::bigint[]) AS g (memory, part, field, space, start, dims)
JOIN told t ON t.part = g.part
ON CONFLICT (memory, part, field) DO UPDATE SET seq = excluded.seq, dims = excluded.dims, vector = excluded.vector;

-- replace-memories: what becomes of a memory that is there
ON CONFLICT ({memory-key}) DO UPDATE
SET created = CASE WHEN m.expires <= excluded.updated THEN excluded.created ELSE m.created END,
    updated = excluded.updated, expires = excluded.expires, ttl = excluded.ttl, value = excluded.value,
    words = excluded.words
WHERE m.tenant = excluded.tenant AND m.space = excluded.space AND m.key = excluded.key

-- remember-setting: how durable it is, if the server would have it otherwise
FROM set_config('synchronous_commit', :synchronous, true)

-- refresh-memories: let memories live on
UPDATE tk_memories AS m SET expires = :now + CAST(trunc(m.ttl * 60000000) AS bigint)
FROM unnest(:memories::bigint[], :parts::bigint[]) AS g (memory, part)
WHERE m.memory = g.memory AND m.part = g.part AND m.tenant IS NOT DISTINCT FROM :tenant AND m.ttl IS NOT NULL AND m.expires > :now;

-- spaces: the namespaces that have memories; whether one has is looked up for each, as a join it would read all memories
{found-spaces}
SELECT found.space FROM found CROSS JOIN LATERAL ({alive-in-space} LIMIT 1) AS alive
WHERE found.space IS NOT NULL ORDER BY found.space LIMIT :limit;

-- worded: memories that have one of some words, best first
SELECT m.memory, ts_rank(m.words, q.words, 1)::double precision AS score
FROM (SELECT CAST(:words AS tsquery) AS words) AS q, tk_memories m
WHERE m.words @@ q.words AND {is-below} AND {is-alive}
ORDER BY score DESC, m.memory LIMIT :limit;

-- vectors-since: vectors of a partition that were stored after a change
SELECT v.memory, v.field, v.space, array_send(v.vector) FROM tk_vectors v
WHERE v.part = :part AND v.seq > :since;

-- vector-schema: where pgvector is installed, if it is, is new enough to go on searching, and we may use it
SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'vector' AND string_to_array(e.extversion, '.')::integer[] >= ARRAY[0, 8]
  AND has_schema_privilege(n.oid, 'USAGE');

-- new-extension: have pgvector, if we are allowed to
CREATE EXTENSION IF NOT EXISTS vector;

-- lock-index: nobody else makes an index of this table and these dimensions now
SELECT pg_try_advisory_lock(CAST(CAST(to_regclass(:table) AS oid) AS bigint) * 100000 + :dims);

-- unlock-index: others may
SELECT pg_advisory_unlock(CAST(CAST(to_regclass(:table) AS oid) AS bigint) * 100000 + :dims);

-- index-is-valid: whether an index is there, and whole
SELECT i.indisvalid FROM pg_catalog.pg_index i WHERE i.indexrelid = to_regclass(:name);

-- drop-index: away with one that somebody did not finish
DROP INDEX CONCURRENTLY IF EXISTS {index};

-- index-vectors: an index for nearness, of the vectors that have so many dimensions; nobody waits for it
CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON tk_vectors USING hnsw (({vector}) {pgvector}.{operators})
WHERE dims = {dims};

-- is-near-below: vectors of a tenant, of so many dimensions, below a prefix
v.dims = {dims} AND v.tenant = :tenant AND v.space >= :low AND v.space < :high

-- has-many-vectors: whether a partition, or all, have more vectors than that
SELECT count(*) FROM (SELECT 1 FROM tk_vectors v WHERE {conditions} LIMIT :most) AS counted;

-- some-matching: the numbers of memories, up to a number of them
SELECT m.memory FROM tk_memories m WHERE {conditions} LIMIT :most;

-- index-settings: how an index for nearness is searched, until the transaction ends
-- The planner does not know what the index is worth: that is not for it to choose.
SELECT set_config('enable_sort', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('hnsw.ef_search', :ef, true), set_config('hnsw.iterative_scan', 'relaxed_order', true);

-- exact-settings: how all vectors are compared, until the transaction ends; without statistics the planner would loop
SELECT set_config('enable_sort', 'on', true), set_config('enable_nestloop', 'off', true);

-- nearest: the nearest vectors by the index; of a memory with several vectors there may be several
SELECT v.memory, {distance} AS distance FROM tk_vectors v WHERE {is-near-below} ORDER BY {nearness} LIMIT :wide;

-- nearest-of: the nearest of some memories, compared one by one
SELECT v.memory, min({distance}) AS distance FROM tk_vectors v
WHERE {is-near-below} AND v.memory = ANY (:numbers::bigint[])
GROUP BY v.memory ORDER BY distance, v.memory LIMIT :limit;

-- nearest-of-all: the nearest of all that match, compared one by one
SELECT v.memory, min({distance}) AS distance
FROM tk_vectors v JOIN tk_memories m ON m.memory = v.memory AND m.part = v.part
WHERE {is-near-below} AND {conditions}
GROUP BY v.memory ORDER BY distance, v.memory LIMIT :limit;

-- matching-of: which of some memories match
SELECT m.memory FROM tk_memories m WHERE m.memory = ANY (:numbers::bigint[]) AND {of-itself};
