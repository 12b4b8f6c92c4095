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
SELECT m.memory, m.part, m.space, m.key, m.value FROM tk_memories m
WHERE +m.tenant = :tenant AND m.memory > :after ORDER BY m.memory LIMIT :limit;

-- inspect-vectors: of the vectors of some memories: size in bytes, and whether the stored number of dimensions is right
SELECT v.memory, v.field, length(v.vector), 1 FROM tk_vectors v WHERE v.memory > :after AND v.memory <= :last;

-- orphan-vectors: vectors whose memory does not exist
SELECT v.memory, count(*) FROM tk_vectors v
WHERE NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.memory = v.memory AND m.part = v.part)
GROUP BY v.memory ORDER BY v.memory LIMIT 100;

-- uncounted-vectors: vectors that no search finds, because their partition does not count them
SELECT v.memory, count(*) FROM tk_vectors v
WHERE NOT EXISTS (SELECT 1 FROM tk_parts p WHERE p.part = v.part AND p.seq >= v.seq)
GROUP BY v.memory ORDER BY v.memory LIMIT 100;

-- orphan-words: full-text entries whose memory does not exist
SELECT d.id FROM tk_words_docsize d
WHERE NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.n = d.id) ORDER BY d.id LIMIT 100;

-- stale-tick: returns a row if the index by time has a wrong entry for a thread; SQLite has no such index
SELECT NULL WHERE 1 = 0;
