-- Checking in PostgreSQL: what differs.

-- inspect-memories: memories as they are stored; a value that is no JSON text cannot be there
SELECT m.memory, m.part, m.space, m.key, m.value::text FROM tk_memories m
WHERE m.tenant IS NOT DISTINCT FROM :tenant AND m.memory > :after ORDER BY m.memory, m.part LIMIT :limit;

-- inspect-vectors: the vectors of some memories: how many bytes, and whether their number of dimensions is what it says
SELECT v.memory, v.field, 4 * cardinality(v.vector), CAST(cardinality(v.vector) = v.dims AS integer)
FROM tk_vectors v WHERE v.memory > :after AND v.memory <= :last;

-- lost-words: words stand in the rows of memories
SELECT NULL WHERE 1 = 0;

-- told-tick: what the index by time says of a thread
SELECT 1 FROM tk_threads WHERE thread = :thread AND tick <> updated >> 8;

-- invalid-indexes: indexes of ours that were not finished, or are broken
SELECT c.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid IN (SELECT t.oid FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
                     WHERE t.relname LIKE 'tk\_%' AND n.nspname = coalesce(CAST(:schema AS text), current_schema()))
  AND NOT (i.indisvalid AND i.indisready);
