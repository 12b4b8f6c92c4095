-- Checking: rows as they are stored, and rows that belong to nothing. Read by `sql_health`; run seldom, and slowly.

-- roster: which threads there are
SELECT t.id, t.kind FROM tk_threads t WHERE {conditions} ORDER BY t.id, t.kind LIMIT :limit;

-- after-present: those after the last one of the page before
t.id >= :after_id AND (t.id > :after_id OR t.kind > :after_kind)

-- item-sizes: which items a thread has, and how long they are
SELECT lane, n, length(payload) FROM tk_items WHERE thread = :thread ORDER BY lane, n;

-- engine-items: names, run lists, labels and shapes
SELECT lane, n, payload FROM tk_items WHERE thread = :thread AND lane <= 2;

-- tags: the index entries of a thread
SELECT labels, tag FROM tk_tags WHERE thread = :thread;

-- runs: the runs of a thread
SELECT run FROM tk_runs WHERE thread = :thread;

-- orphans: rows of threads that are not there
SELECT o.thread, count(*) FROM {table} o
WHERE NOT EXISTS (SELECT 1 FROM tk_threads t WHERE t.thread = o.thread) GROUP BY o.thread ORDER BY o.thread LIMIT 100;

-- inspect-memories: memories as they are stored
SELECT m.memory, m.part, m.space, m.key, m.value FROM tk_memories m
WHERE +m.tenant = :tenant AND m.memory > :after ORDER BY m.memory LIMIT :limit;

-- inspect-vectors: the vectors of some memories: how many bytes, and whether their number of dimensions is what it says
SELECT v.memory, v.field, length(v.vector), 1 FROM tk_vectors v WHERE v.memory > :after AND v.memory <= :last;

-- lost-vectors: vectors of memories that are not there
SELECT v.memory, count(*) FROM tk_vectors v
WHERE NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.memory = v.memory AND m.part = v.part)
GROUP BY v.memory ORDER BY v.memory LIMIT 100;

-- unseen-vectors: vectors that no search will find, since their partition does not count them
SELECT v.memory, count(*) FROM tk_vectors v
WHERE NOT EXISTS (SELECT 1 FROM tk_parts p WHERE p.part = v.part AND p.seq >= v.seq)
GROUP BY v.memory ORDER BY v.memory LIMIT 100;

-- lost-words: words of memories that are not there
SELECT d.id FROM tk_words_docsize d WHERE NOT EXISTS (SELECT 1 FROM tk_memories m WHERE m.n = d.id) ORDER BY d.id LIMIT 100;

-- told-tick: what the index by time says of a thread
SELECT NULL WHERE 1 = 0;
