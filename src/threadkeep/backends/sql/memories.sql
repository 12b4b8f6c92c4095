-- Memories, for all SQL databases. A memory is found by its number, which is a hash of where it is; its partition goes with
-- it, so that databases which spread partitions over machines know where to look.

-- memory-columns: a memory, in the order in which it is read
m.memory, m.space, m.key, m.value, m.created, m.updated, m.expires, m.ttl

-- is-alive: has not expired
(m.expires IS NULL OR m.expires > :now)

-- is-of: of a tenant
m.tenant = :tenant

-- is-below: of a tenant, below a prefix
m.tenant = :tenant AND m.space >= :low AND m.space < :high

-- put-memories: store memories; one that is there and alive keeps its time of birth, and two with one number cannot be
INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value)
VALUES (:memory, :part, :tenant, :space, :key, :created, :updated, :expires, :ttl, :value)
{replace-memories};

-- replace-memories: what becomes of a memory that is there
ON CONFLICT ({memory-key}) DO UPDATE
SET created = CASE WHEN m.expires <= excluded.updated THEN excluded.created ELSE m.created END,
    updated = excluded.updated, expires = excluded.expires, ttl = excluded.ttl, value = excluded.value
WHERE m.tenant = excluded.tenant AND m.space = excluded.space AND m.key = excluded.key

-- memory: a memory by its number
SELECT {memory-columns} FROM tk_memories m WHERE m.memory = :memory AND +m.tenant = :tenant AND {is-alive};

-- memories: some memories by their numbers; the tenant is in the number, and compared so that no index of it is read
SELECT {memory-columns} FROM tk_memories m
WHERE m.memory IN (SELECT value FROM json_each(:memories)) AND +m.tenant = :tenant AND {is-alive};

-- gone-memories: remove memories
DELETE FROM tk_memories WHERE memory = :memory AND part = :part AND tenant = :tenant;

-- refresh-memories: let memories live on
UPDATE tk_memories AS m SET expires = :now + CAST(m.ttl * 60000000 AS {bigint})
WHERE m.memory = :memory AND m.part = :part AND m.tenant = :tenant AND m.ttl IS NOT NULL AND m.expires > :now;

-- expired: memories that nobody will see again
SELECT tenant, space, key FROM tk_memories WHERE expires <= :now LIMIT :limit;

-- browse: memories, the last updated first
SELECT {memory-columns} FROM {memories-in-order} WHERE {conditions}
ORDER BY m.updated DESC, m.space, m.key LIMIT :limit OFFSET :offset;

-- browse-below: the same below a prefix
SELECT {memory-columns} FROM {memories-below} WHERE {conditions}
ORDER BY m.updated DESC, m.space, m.key LIMIT :limit OFFSET :offset;

-- after-memory: after the last one of the slice before
m.updated <= :after_updated
AND (m.updated < :after_updated OR (m.space, m.key) > (:after_space, :after_key))

-- count-memories: how many memories a tenant has
SELECT count(*) FROM tk_memories m WHERE {is-of} AND {is-alive};

-- expired-below: the numbers of memories that have expired and are still there
SELECT m.memory FROM tk_memories m WHERE {is-below} AND m.expires <= :now;

-- matching: the numbers of memories
SELECT m.memory FROM tk_memories m WHERE {conditions};

-- found-spaces: the namespaces below a prefix, from one to the next through the index; each step has one lower bound
WITH RECURSIVE found (space) AS (
    SELECT (SELECT m.space FROM tk_memories m
            WHERE m.tenant = :tenant AND m.space >= :start AND m.space < :high ORDER BY m.space LIMIT 1)
    UNION ALL
    SELECT (SELECT m.space FROM tk_memories m
            WHERE m.tenant = :tenant AND m.space > found.space AND m.space < :high ORDER BY m.space LIMIT 1)
    FROM found WHERE found.space IS NOT NULL
)

-- alive-in-space: a memory of a namespace that has not expired
SELECT 1 FROM tk_memories m WHERE m.tenant = :tenant AND m.space = found.space AND {is-alive}

-- spaces: the namespaces that have memories
{found-spaces}
SELECT found.space FROM found WHERE found.space IS NOT NULL AND EXISTS ({alive-in-space})
ORDER BY found.space LIMIT :limit;

-- all-parts: how often the vectors of a tenant's partitions changed
SELECT part, first, seq, drops FROM tk_parts WHERE tenant = :tenant;

-- one-part: how often the vectors of one partition changed
SELECT part, first, seq, drops FROM tk_parts WHERE part = :part AND tenant = :tenant;

-- tell-part: vectors of a partition change
INSERT INTO tk_parts AS p (part, tenant, first, seq, drops) VALUES (:part, :tenant, :first, :stored, :lost)
ON CONFLICT (part) DO UPDATE SET seq = p.seq + excluded.seq, drops = p.drops + excluded.drops
RETURNING seq;

-- put-vectors: store vectors
INSERT INTO tk_vectors (memory, field, part, seq, vector) VALUES (:memory, :field, :part, :seq, :vector)
ON CONFLICT ({vector-key}) DO UPDATE SET seq = excluded.seq, vector = excluded.vector;

-- less-vectors: remove the vectors of a memory from one on
DELETE FROM tk_vectors WHERE memory = :memory AND part = :part AND field >= :count;

-- vectors-since: vectors of a partition that were stored after a change
SELECT v.memory, v.field, m.space, v.vector
FROM tk_vectors v JOIN tk_memories m ON m.memory = v.memory AND m.part = v.part
WHERE v.part = :part AND v.seq > :since;

-- vector-ids: which vectors a partition has
SELECT memory, field FROM tk_vectors WHERE part = :part;
