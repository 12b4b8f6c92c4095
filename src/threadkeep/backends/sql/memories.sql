-- Statements on memories that all SQL databases share. A memory is looked up by its number, a hash of tenant, namespace
-- and key. Its partition goes with the number, so that a database that distributes partitions knows where to look.

-- memory-columns: the columns of a memory, in the order that `checksums.read_memory` takes
-- The value comes as bytes, so that invalid UTF-8 is found where the memory can be named.
m.memory, m.space, m.key, CAST(m.value AS BLOB), {checked-columns}

-- checked-columns: the other columns of a memory
m.created, m.updated, m.expires, m.ttl, m.vectors, m.checksum, m.times

-- sum-of-times: the value of `times`
m.created + m.updated + coalesce(m.expires, 0)

-- kept-created: when a memory was created: a replaced one keeps its time unless it has expired or its times are damaged
CASE WHEN m.expires <= excluded.updated OR m.times <> {sum-of-times} THEN excluded.created ELSE m.created END

-- not-expired: memories that have not expired
(m.expires IS NULL OR m.expires > :now)

-- of-tenant: memories of a tenant
m.tenant = :tenant

-- below-prefix: memories of a tenant whose namespace starts with a prefix
m.tenant = :tenant AND m.space >= :low AND m.space < :high

-- insert-memories: the start of a statement that adds memories; the columns are those of `MEMORY_COLUMNS`, and `sealed`
INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, vectors,
                              checksum, times, words_check, sealed)

-- put-memories: add or replace memories; one with the same number but another key is left alone and not counted
{insert-memories}
VALUES (:memory, :part, :tenant, :space, :key, :created, :updated, :expires, :ttl, :value, :vectors, :checksum, :times,
        :words_check, :sealed)
{replace-memories};

-- replace-memories: replace an existing memory
ON CONFLICT ({memory-key}) DO UPDATE
SET {replaced-columns}
WHERE m.tenant = excluded.tenant AND m.space = excluded.space AND m.key = excluded.key

-- replaced-columns: what replacing a memory changes
created = {kept-created}, updated = excluded.updated, expires = excluded.expires, ttl = excluded.ttl,
    value = excluded.value, vectors = excluded.vectors, checksum = excluded.checksum,
    times = excluded.times - excluded.created + {kept-created}, words_check = excluded.words_check

-- memory: a memory by number
SELECT {memory-columns} FROM tk_memories m WHERE m.memory = :memory AND +m.tenant = :tenant AND {not-expired};

-- memories: memories by number; the `+` keeps SQLite from using an index on tenant, which the number implies
SELECT {memory-columns} FROM tk_memories m
WHERE m.memory IN (SELECT value FROM json_each(:memories)) AND +m.tenant = :tenant AND {not-expired};

-- delete-memories: delete memories
DELETE FROM tk_memories WHERE memory = :memory AND part = :part AND tenant = :tenant;

-- refresh-memories: start the ttl of memories again
UPDATE tk_memories AS m SET expires = :now + CAST(m.ttl * 60000000 AS {bigint}),
    times = m.times - m.expires + :now + CAST(m.ttl * 60000000 AS {bigint})
WHERE m.memory = :memory AND m.part = :part AND m.tenant = :tenant AND m.ttl IS NOT NULL AND m.expires > :now;

-- expired-memories: memories of a tenant that have expired, except those whose times are damaged
SELECT m.memory, m.space, m.key FROM tk_memories m
WHERE {of-tenant} AND m.expires <= :now AND coalesce(m.times = {sum-of-times}, m.checksum IS NULL) LIMIT :limit;

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

-- expired-of-tenant: the same for all memories of a tenant
SELECT m.memory FROM tk_memories m WHERE {of-tenant} AND m.expires <= :now;

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

-- in-namespace: the memories in the namespace that have not expired
FROM tk_memories m WHERE m.tenant = :tenant AND m.space = found.space AND {not-expired}

-- proof-columns: of one of these memories, what shows that it is in the namespace and has not expired
m.memory, m.key, m.created, m.updated, m.expires, m.times

-- list-namespaces: the namespaces that have memories, each with one of them
{walk-namespaces}
SELECT found.space, {proof-columns} FROM found CROSS JOIN tk_memories m ON m.n = (SELECT m.n {in-namespace} LIMIT 1)
WHERE found.space IS NOT NULL ORDER BY found.space LIMIT :limit;

-- partitions: the change counters of all partitions of a tenant
SELECT part, first, seq, drops FROM tk_parts WHERE tenant = :tenant;

-- partition: the change counters of one partition
SELECT part, first, seq, drops FROM tk_parts WHERE part = :part AND tenant = :tenant;

-- count-vector-changes: count changes of a partition's vectors; returns its new sequence number
-- A new partition starts at the time in microseconds: it is not taken for an earlier one that was deleted.
INSERT INTO tk_parts AS p (part, tenant, first, seq, drops)
VALUES (:part, :tenant, :first, :now + :stored, :now + :lost)
ON CONFLICT (part) DO UPDATE SET seq = p.seq + :stored, drops = p.drops + :lost
RETURNING seq;

-- empty-partitions: the partitions that have no vectors, with their change counters
SELECT p.part, p.seq, p.drops FROM tk_parts p WHERE NOT EXISTS (SELECT 1 FROM tk_vectors v WHERE v.part = p.part);

-- delete-partition: delete a partition, unless vectors were stored in it since
DELETE FROM tk_parts WHERE part = :part AND seq = :seq AND drops = :drops;

-- put-vectors: add or replace vectors
INSERT INTO tk_vectors (memory, field, part, seq, vector, checksum)
VALUES (:memory, :field, :part, :seq, :vector, :checksum)
ON CONFLICT ({vector-key}) DO UPDATE SET seq = excluded.seq, vector = excluded.vector, checksum = excluded.checksum;

-- delete-vectors: delete the vectors of a memory, starting at a field
DELETE FROM tk_vectors WHERE memory = :memory AND part = :part AND field >= :count;

-- vectors-since: the vectors of a partition that were stored after a sequence number
SELECT v.memory, v.field, m.space, v.vector, v.seq, v.checksum
FROM tk_vectors v JOIN tk_memories m ON m.memory = v.memory AND m.part = v.part
WHERE v.part = :part AND v.seq > :since;

-- vector-ids: the ids of all vectors of a partition
SELECT memory, field FROM tk_vectors WHERE part = :part;
