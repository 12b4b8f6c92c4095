-- Statements for `verify`: rows as they are stored, and rows that belong to nothing. They are slow and run rarely.

-- list-stored-threads: a page of stored threads
SELECT t.thread, t.id, t.kind FROM tk_threads t WHERE {conditions} ORDER BY t.id, t.kind LIMIT :limit;

-- after-stored-thread: threads after the last one of the previous page
t.id >= :after_id AND (t.id > :after_id OR t.kind > :after_kind)

-- item-sizes: the ids and sizes of all items of a thread
SELECT lane, n, length(payload) FROM tk_items WHERE thread = :thread ORDER BY lane, n;

-- engine-items: the items of the engine's own lanes: names, range lists, labels and shapes
SELECT lane, n, payload FROM tk_items WHERE thread = :thread AND lane <= 2;

-- tags: all index entries of a thread
SELECT labels, tag FROM tk_tags WHERE thread = :thread;

-- runs: all runs of a thread
SELECT run FROM tk_runs WHERE thread = :thread;

-- orphan-rows: rows whose thread does not exist
SELECT o.thread, count(*) FROM {table} o
WHERE NOT EXISTS (SELECT 1 FROM tk_threads t WHERE t.thread = o.thread) GROUP BY o.thread ORDER BY o.thread LIMIT 100;

-- threads-of-others: the rows of threads of other tenants, page by page
SELECT {thread-columns} FROM tk_threads t
WHERE t.tenant IS DISTINCT FROM :tenant AND t.thread > :after ORDER BY t.thread LIMIT :limit;

-- inspect-memories: memories as they are stored
-- A column whose type is damaged comes as NULL or as bytes, so that it does not stop the others.
SELECT m.memory, m.part, CAST(m.space AS BLOB), CAST(m.key AS BLOB), CAST(m.value AS BLOB), {number m.created},
       {number m.updated}, {number m.expires}, {number m.ttl}, {number m.vectors}, {number m.checksum}, {number m.times},
       {number m.words_check}, NULL
FROM tk_memories m
WHERE +m.tenant = :tenant AND m.memory > :after ORDER BY m.memory LIMIT :limit;

-- inspect-words-of-tenant: the marked words of some memories in the index, which is read as a whole
SELECT m.memory, group_concat(t.term, ' ') FROM tk_terms t CROSS JOIN tk_memories m ON m.n = t.doc
WHERE +m.tenant = :tenant AND m.memory > :after AND m.memory <= :last GROUP BY m.memory;

-- number: a number, or something else as bytes
CASE WHEN typeof({it}) IN ('integer', 'real') THEN {it} ELSE CAST({it} AS BLOB) END

-- inspect-vectors: the vectors of some memories, and whether the other columns of a vector are right
SELECT v.memory, {number v.field}, {number v.part}, 1, CAST(m.space AS BLOB), CAST(v.vector AS BLOB), {number v.seq},
       {number v.checksum}
FROM tk_memories m CROSS JOIN tk_vectors v ON v.memory = m.memory
WHERE +m.tenant = :tenant AND m.memory > :after AND m.memory <= :last;

-- partitions-of-memories: the partitions of all memories, each with its first and last namespace
SELECT m.part, CAST(m.tenant AS BLOB), CAST(min(m.space) AS BLOB), CAST(max(m.space) AS BLOB)
FROM tk_memories m GROUP BY m.part, m.tenant;

-- all-partitions: all partitions that have, or had, vectors
SELECT part, CAST(tenant AS BLOB), CAST(first AS BLOB) FROM tk_parts;

-- orphan-vectors: vectors whose memory does not exist
SELECT v.memory, count(*) FROM tk_vectors v
WHERE NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.memory = v.memory AND m.part = v.part)
GROUP BY v.memory ORDER BY v.memory LIMIT 100;

-- uncounted-vectors: vectors that no search finds, because their partition does not count them
SELECT v.memory, count(*) FROM tk_vectors v
WHERE NOT EXISTS (SELECT 1 FROM tk_parts p WHERE p.part = v.part AND p.seq >= v.seq)
GROUP BY v.memory ORDER BY v.memory LIMIT 100;

-- orphan-words: entries in the index of words whose memory does not exist
SELECT d.id FROM (SELECT id FROM tk_words_docsize UNION SELECT doc FROM tk_terms) AS d
WHERE NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.n = d.id) ORDER BY d.id LIMIT 100;

-- inspect-words: of some memories: the checksum of their words, and their words in the index, in any order
SELECT m.space, m.key, m.words_check, coalesce(f.words, '')
FROM tk_memories m LEFT JOIN (SELECT t.doc, group_concat(t.term, ' ') AS words FROM tk_terms t
                              WHERE t.doc > :after AND t.doc <= :last GROUP BY t.doc) AS f ON f.doc = m.n
WHERE m.n > :after AND m.n <= :last AND m.words_check IS NOT NULL;

-- inspected-memories: the last of the next memories by row number
SELECT max(n) FROM (SELECT n FROM tk_memories WHERE n > :after ORDER BY n LIMIT :limit);

-- stale-tick: returns a row if the index by time has a wrong entry for a thread
SELECT 1 FROM tk_threads WHERE thread = :thread AND tick <> updated >> {tick-bits};
