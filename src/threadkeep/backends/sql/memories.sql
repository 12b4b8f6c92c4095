-- Statements on memories that all SQL databases share. A memory is looked up by its number, a hash of tenant, namespace
-- and key. Its partition goes with the number, so that a database that distributes partitions knows where to look.

-- memory-columns: the columns of a memory, in the order that `memories.memory_row` reads
m.memory, m.space, m.key, m.value, m.created, m.updated, m.expires, m.ttl

-- not-expired: memories that have not expired
(m.expires IS NULL OR m.expires > :now)

-- of-tenant: memories of a tenant
m.tenant = :tenant

-- below-prefix: memories of a tenant whose namespace starts with a prefix
m.tenant = :tenant AND m.space >= :low AND m.space < :high

-- put-memories: add or replace memories; one with the same number but another key is left alone and not counted
INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, words_check)
VALUES (:memory, :part, :tenant, :space, :key, :created, :updated, :expires, :ttl, :value, :words_check)
{replace-memories};

-- replace-memories: replace an existing memory; it keeps `created` unless it has expired
ON CONFLICT ({memory-key}) DO UPDATE
SET created = CASE WHEN m.expires <= excluded.updated THEN excluded.created ELSE m.created END,
    updated = excluded.updated, expires = excluded.expires, ttl = excluded.ttl, value = excluded.value,
    words_check = excluded.words_check
WHERE m.tenant = excluded.tenant AND m.space = excluded.space AND m.key = excluded.key

-- memory: a memory by number
SELECT {memory-columns} FROM tk_memories m WHERE m.memory = :memory AND +m.tenant = :tenant AND {not-expired};

-- memories: memories by number; the `+` keeps SQLite from using an index on tenant, which the number implies
SELECT {memory-columns} FROM tk_memories m
WHERE m.memory IN (SELECT value FROM json_each(:memories)) AND +m.tenant = :tenant AND {not-expired};

-- delete-memories: delete memories
DELETE FROM tk_memories WHERE memory = :memory AND part = :part AND tenant = :tenant;

-- refresh-memories: start the ttl of memories again
UPDATE tk_memories AS m SET expires = :now + CAST(m.ttl * 60000000 AS {bigint})
WHERE m.memory = :memory AND m.part = :part AND m.tenant = :tenant AND m.ttl IS NOT NULL AND m.expires > :now;

-- expired-memories: memories that have expired, of all tenants
SELECT tenant, space, key FROM tk_memories WHERE expires <= :now LIMIT :limit;

-- list-memories: memories, last updated first
SELECT {memory-columns} FROM {memories-in-order} WHERE {conditions}
ORDER BY m.updated DESC, m.space, m.key LIMIT :limit OFFSET :offset;

-- list-memories-below: the same, for memories below a prefix
SELECT {memory-columns} FROM {memories-below} WHERE {conditions}
ORDER BY m.updated DESC, m.space, m.key LIMIT :limit OFFSET :offset;

-- after-memory: memories after the last one of the previous page
m.updated <= :after_updated
AND (m.updated < :after_updated OR (m.space, m.key) > (:after_space, :after_key))

-- count-memories: the number of memories of a tenant
SELECT count(*) FROM tk_memories m WHERE {of-tenant} AND {not-expired};

-- expired-below: the numbers of memories that have expired but are still stored
SELECT m.memory FROM tk_memories m WHERE {below-prefix} AND m.expires <= :now;

-- matching-memories: the numbers of memories that match
SELECT m.memory FROM tk_memories m WHERE {conditions};

-- walk-namespaces: the namespaces below a prefix: one index lookup per namespace, each with one lower bound
WITH RECURSIVE found (space) AS (
    SELECT (SELECT m.space FROM tk_memories m
            WHERE m.tenant = :tenant AND m.space >= :start AND m.space < :high ORDER BY m.space LIMIT 1)
    UNION ALL
    SELECT (SELECT m.space FROM tk_memories m
            WHERE m.tenant = :tenant AND m.space > found.space AND m.space < :high ORDER BY m.space LIMIT 1)
    FROM found WHERE found.space IS NOT NULL
)

-- unexpired-in-namespace: a memory in the namespace that has not expired
SELECT 1 FROM tk_memories m WHERE m.tenant = :tenant AND m.space = found.space AND {not-expired}

-- list-namespaces: the namespaces that have memories
{walk-namespaces}
SELECT found.space FROM found WHERE found.space IS NOT NULL AND EXISTS ({unexpired-in-namespace})
ORDER BY found.space LIMIT :limit;

-- partitions: the change counters of all partitions of a tenant
SELECT part, first, seq, drops FROM tk_parts WHERE tenant = :tenant;

-- partition: the change counters of one partition
SELECT part, first, seq, drops FROM tk_parts WHERE part = :part AND tenant = :tenant;

-- count-vector-changes: count changes of a partition's vectors; returns its new sequence number
INSERT INTO tk_parts AS p (part, tenant, first, seq, drops) VALUES (:part, :tenant, :first, :stored, :lost)
ON CONFLICT (part) DO UPDATE SET seq = p.seq + excluded.seq, drops = p.drops + excluded.drops
RETURNING seq;

-- put-vectors: add or replace vectors
INSERT INTO tk_vectors (memory, field, part, seq, vector) VALUES (:memory, :field, :part, :seq, :vector)
ON CONFLICT ({vector-key}) DO UPDATE SET seq = excluded.seq, vector = excluded.vector;

-- delete-vectors: delete the vectors of a memory, starting at a field
DELETE FROM tk_vectors WHERE memory = :memory AND part = :part AND field >= :count;

-- vectors-since: the vectors of a partition that were stored after a sequence number
SELECT v.memory, v.field, m.space, v.vector
FROM tk_vectors v JOIN tk_memories m ON m.memory = v.memory AND m.part = v.part
WHERE v.part = :part AND v.seq > :since;

-- vector-ids: the ids of all vectors of a partition
SELECT memory, field FROM tk_vectors WHERE part = :part;
