-- Statements for `verify` that differ in PostgreSQL, and the size of our tables.

-- inspect-memories: memories as they are stored; the column type json guarantees valid JSON text
SELECT m.memory, m.part, m.space, m.key, m.value::text, {checked-columns}, m.words_check, m.words::text FROM tk_memories m
WHERE m.tenant IS NOT DISTINCT FROM :tenant AND m.memory > :after ORDER BY m.memory, m.part LIMIT :limit;

-- inspect-vectors: the vectors of some memories, and whether the other columns of a vector are right
SELECT v.memory, v.field, v.part, CAST(cardinality(v.vector) = v.dims AND v.tenant = m.tenant AS integer), v.space,
       array_send(v.vector), v.seq, v.checksum
FROM tk_memories m JOIN tk_vectors v ON v.memory = m.memory
WHERE m.tenant IS NOT DISTINCT FROM :tenant AND m.memory > :after AND m.memory <= :last;

-- partitions-of-memories: the partitions of all memories, each with its first and last namespace
SELECT m.part, m.tenant, decode(min(encode(m.space, 'hex')), 'hex'), decode(max(encode(m.space, 'hex')), 'hex')
FROM tk_memories m GROUP BY m.part, m.tenant;

-- all-partitions: all partitions that have, or had, vectors
SELECT part, tenant, first FROM tk_parts;

-- orphan-words: none: full text is a column of the memory
SELECT NULL WHERE 1 = 0;

-- invalid-indexes: our indexes that are unfinished or broken
SELECT c.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid IN (SELECT t.oid FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
                     WHERE t.relname LIKE 'tk\_%' AND n.nspname = coalesce(CAST(:schema AS text), current_schema()))
  AND NOT (i.indisvalid AND i.indisready);

-- storage-size: the size of our tables, with their indexes and TOAST tables
SELECT CAST(c.relname AS text), pg_total_relation_size(c.oid) FROM pg_catalog.pg_class c
WHERE c.relkind IN ('r', 'p') AND c.relname LIKE 'tk\_%'
  AND c.relnamespace = (SELECT o.relnamespace FROM pg_catalog.pg_class o WHERE o.oid = to_regclass(:table))
ORDER BY 1;
