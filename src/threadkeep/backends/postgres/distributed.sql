-- The statements on memories and tenants that differ with group="thread", for databases that distribute tables over
-- machines. Each is plain, and one that concerns a thread, a partition or a tenant compares the column by which its
-- table is distributed with a value, and not only with a column of another row. None is recursive, none locks or changes
-- rows of several partitions at once.

-- memories-of-parts: memories by number, in some partitions
SELECT {memory-columns} FROM tk_memories m
WHERE m.part = ANY (:parts::bigint[]) AND m.memory = ANY (:memories::bigint[])
  AND m.tenant IS NOT DISTINCT FROM :tenant AND {not-expired};

-- below-prefix: memories of a tenant whose namespace starts with a prefix, which is not empty
m.part = :part AND m.tenant = :tenant AND m.space >= :low AND m.space < :high

-- lock-memories: lock a memory
SELECT m.memory FROM tk_memories m
WHERE m.part = :part AND m.memory = :memory AND m.tenant IS NOT DISTINCT FROM :tenant FOR UPDATE;

-- values-of-memory: the values of a memory
INSERT INTO tk_memories AS m (memory, part, tenant, space, key, created, updated, expires, ttl, value, words,
                              vectors, checksum, times, words_check)
VALUES (:memory, :part, :tenant, :space, :key, :created, :updated, :expires, :ttl, CAST(:value AS json),
        CAST(:words AS tsvector), :vectors, :checksum, :times, :words_check)

-- add-memory: add a memory, without its vectors; returns a row if there was none with its number
{values-of-memory} ON CONFLICT DO NOTHING RETURNING 1;

-- put-memories: add or replace a memory; one with the same number but another key is left alone and not counted
{values-of-memory} {replace-memories};

-- delete-memories: delete a memory, or only if it has expired; returns a row if there was one
DELETE FROM tk_memories m
WHERE m.part = :part AND m.memory = :memory AND m.tenant IS NOT DISTINCT FROM :tenant
  AND (NOT :expired OR m.expires <= :now)
RETURNING m.memory;

-- put-vectors: add or replace a vector
INSERT INTO tk_vectors (memory, part, seq, field, dims, tenant, space, vector, checksum)
VALUES (:memory, :part, :seq, :field, :dims, :tenant, :space, :vector::real[], :checksum)
ON CONFLICT (memory, part, field) DO UPDATE
SET seq = excluded.seq, dims = excluded.dims, tenant = excluded.tenant, space = excluded.space,
    vector = excluded.vector, checksum = excluded.checksum;

-- refresh-memories: start the ttl of a memory again
UPDATE tk_memories AS m SET expires = :now + CAST(trunc(m.ttl * 60000000) AS bigint),
    times = m.times - m.expires + :now + CAST(trunc(m.ttl * 60000000) AS bigint)
WHERE m.part = :part AND m.memory = :memory AND m.tenant IS NOT DISTINCT FROM :tenant
  AND m.ttl IS NOT NULL AND m.expires > :now;

-- list-namespaces: the namespaces that have memories, each with one of them; reads these memories from the index
SELECT DISTINCT ON (m.space) m.space, {proof-columns} FROM tk_memories m
WHERE m.tenant = :tenant AND m.space >= :start AND m.space < :high AND {not-expired}
ORDER BY m.space LIMIT :limit;

-- inspect-vectors: the vectors of some memories, and whether the other columns of a vector are right
-- One that is in another partition is found as a vector without a memory.
SELECT v.memory, v.field, v.part, CAST(cardinality(v.vector) = v.dims AND v.tenant = m.tenant AS integer), v.space,
       array_send(v.vector), v.seq, v.checksum
FROM tk_memories m JOIN tk_vectors v ON v.part = m.part AND v.memory = m.memory
WHERE m.tenant IS NOT DISTINCT FROM :tenant AND m.memory > :after AND m.memory <= :last;

-- tenants-of: the first tenants in a table at or after a name
SELECT DISTINCT n.tenant FROM {it} n WHERE n.tenant >= :start ORDER BY n.tenant LIMIT :limit;

-- tenants-with-rows: tenants that have a row
{tenants-of tk_tenants}

-- tenants-with-threads: tenants that have a thread
{tenants-of tk_threads}

-- tenants-with-memories: tenants that have a memory
{tenants-of tk_memories}

-- has-citus: returns a row if the database is one of Citus; only then the statements below can be parsed
SELECT 1 WHERE to_regclass('pg_dist_local_group') IS NOT NULL;

-- node-group: the number of this node's group; 0 is the coordinator
SELECT groupid FROM pg_dist_local_group;

-- distribution: how our tables are distributed: the column, or NULL for a reference table, of which each node has a copy
SELECT CAST(c.relname AS text), CAST(column_to_column_name(p.logicalrelid, CAST(p.partkey AS text)) AS text)
FROM pg_dist_partition p JOIN pg_catalog.pg_class c ON c.oid = p.logicalrelid
WHERE c.relname LIKE 'tk\_%' AND (p.partkey IS NOT NULL OR p.repmodel = 't')
  AND c.relnamespace = (SELECT o.relnamespace FROM pg_catalog.pg_class o WHERE o.oid = to_regclass(:table));

-- distribute-table: distribute a table by a column, beside the rows of another table with the same value
SELECT create_distributed_table(CAST(:table AS regclass), CAST(:column AS text), colocate_with => CAST(:beside AS text));

-- copy-table: keep a copy of a table on each node
SELECT create_reference_table(CAST(:table AS regclass));

-- size-of-table: the size of a table on all nodes
SELECT citus_total_relation_size(CAST(:table AS regclass), fail_on_error => true);
