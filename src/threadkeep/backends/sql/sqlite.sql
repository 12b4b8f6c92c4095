-- The SQLite dialect: schema and statements as named blocks. A block is `-- name: purpose` and what follows it;
-- {name} in a block stands for another one.
-- Ids are UTF-8 in BLOBs: their byte order is Python's order of strings. Times are milliseconds since 1970.

-- schema-1: everything, from an empty database
CREATE TABLE tk_threads (
    thread INTEGER PRIMARY KEY,
    tenant BLOB NOT NULL,
    kind TEXT NOT NULL,
    id BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    nexts BLOB NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    checkpoints INTEGER NOT NULL,
    writes INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    top BLOB,
    run BLOB,
    step INTEGER,
    source TEXT,
    status TEXT NOT NULL,
    labels INTEGER,
    early BLOB,
    early_status TEXT,
    lease BLOB,
    UNIQUE (tenant, kind, id)
) STRICT;
CREATE INDEX tk_threads_updated ON tk_threads (tenant, updated);
CREATE INDEX tk_threads_created ON tk_threads (tenant, created);
-- Items are rows in order of arrival: their pages are full, and long ones do not waste overflow pages.
CREATE TABLE tk_items (
    thread INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    n INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX tk_items_place ON tk_items (thread, lane, n);
CREATE TABLE tk_checkpoints (
    thread INTEGER NOT NULL,
    ns BLOB NOT NULL,
    id BLOB NOT NULL,
    parent BLOB,
    run BLOB,
    step INTEGER,
    source TEXT,
    labels INTEGER NOT NULL,
    time INTEGER NOT NULL,
    hidden INTEGER NOT NULL,
    refs BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, id)
) WITHOUT ROWID, STRICT;
CREATE TABLE tk_writes (
    thread INTEGER NOT NULL,
    ns BLOB NOT NULL,
    checkpoint BLOB NOT NULL,
    task BLOB NOT NULL,
    path BLOB NOT NULL,
    run BLOB,
    time INTEGER NOT NULL,
    entries TEXT NOT NULL,
    refs BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, task)
) WITHOUT ROWID, STRICT;
CREATE TABLE tk_tags (
    thread INTEGER NOT NULL,
    labels INTEGER NOT NULL,
    tag BLOB NOT NULL,
    PRIMARY KEY (thread, labels, tag)
) WITHOUT ROWID, STRICT;
CREATE TABLE tk_runs (
    thread INTEGER NOT NULL,
    run BLOB NOT NULL,
    PRIMARY KEY (thread, run)
) WITHOUT ROWID, STRICT;
CREATE INDEX tk_runs_run ON tk_runs (run);

-- thread: a thread's row
SELECT {thread-columns} FROM tk_threads t WHERE t.tenant = :tenant AND t.kind = :kind AND t.id = :id;

-- latest: the greatest visible checkpoint id of a namespace
SELECT id FROM tk_checkpoints WHERE thread = :thread AND ns = :ns AND hidden = 0 ORDER BY id DESC LIMIT 1;

-- checkpoint: one checkpoint
SELECT {checkpoint-columns} FROM tk_checkpoints c WHERE thread = :thread AND ns = :ns AND id = :id;

-- checkpoints: all checkpoints of a thread
SELECT {checkpoint-columns} FROM tk_checkpoints c WHERE thread = :thread ORDER BY ns, id;

-- writes: the writes on one checkpoint
SELECT ns, checkpoint, task, path, run, time, entries, refs, body
FROM tk_writes WHERE thread = :thread AND ns = :ns AND checkpoint = :id;

-- all-writes: all writes of a thread
SELECT ns, checkpoint, task, path, run, time, entries, refs, body
FROM tk_writes WHERE thread = :thread ORDER BY ns, checkpoint, task;

-- items: a run of items
SELECT lane, n, payload FROM tk_items WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- item-ids: which items a thread has
SELECT lane, n FROM tk_items WHERE thread = :thread ORDER BY lane, n;

-- scan: visible checkpoints of a thread or of all, newest id first, after a place
SELECT t.tenant, t.kind, t.id, {checkpoint-columns}, l.payload
FROM tk_checkpoints c
JOIN tk_threads t ON t.thread = c.thread
LEFT JOIN tk_items l ON l.thread = c.thread AND l.lane = 2 AND l.n = c.labels
WHERE t.tenant = :tenant AND t.kind = :kind
  AND (:thread IS NULL OR t.id = :thread)
  AND (:ns IS NULL OR c.ns = :ns)
  AND (:before IS NULL OR c.id < :before)
  AND (:after_id IS NULL OR c.id < :after_id OR (c.id = :after_id AND (t.id, c.ns) > (:after_thread, :after_ns)))
  AND {fitting}
ORDER BY c.id DESC, t.id, c.ns LIMIT :limit;

-- scan-namespace: the same, of one namespace of one thread, along the key
SELECT t.tenant, t.kind, t.id, {checkpoint-columns}, l.payload
FROM tk_threads t
CROSS JOIN tk_checkpoints c ON c.thread = t.thread
LEFT JOIN tk_items l ON l.thread = c.thread AND l.lane = 2 AND l.n = c.labels
WHERE t.tenant = :tenant AND t.kind = :kind AND t.id = :thread AND c.ns = :ns AND c.id < :below
  AND {fitting}
ORDER BY c.id DESC LIMIT :limit;

-- catalogue: threads by a column, greatest first
SELECT {thread-columns}, l.payload
FROM tk_threads t LEFT JOIN tk_items l ON l.thread = t.thread AND l.lane = 2 AND l.n = t.labels
WHERE t.tenant = :tenant AND t.{order} <= coalesce(:value, 9223372036854775807)
  AND (:value IS NULL OR t.{order} < :value OR (t.kind, t.id) > (:after_kind, :after_id))
  AND {chosen}
ORDER BY t.{order} DESC, t.kind, t.id LIMIT :limit;

-- catalogue-id: threads by id
SELECT {thread-columns}, l.payload
FROM tk_threads t LEFT JOIN tk_items l ON l.thread = t.thread AND l.lane = 2 AND l.n = t.labels
WHERE t.tenant = :tenant AND (:value IS NULL OR (t.id, t.kind) > (:after_id, :after_kind)) AND {chosen}
ORDER BY t.id, t.kind LIMIT :limit;

-- thread-columns: a thread's row, in the order in which it is read
t.thread, t.tenant, t.kind, t.id, t.epoch, t.rev, t.nexts, t.created, t.updated, t.checkpoints, t.writes, t.bytes, t.top,
       t.run, t.step, t.source, t.status, t.labels, t.early, t.early_status, t.lease

-- checkpoint-columns: a checkpoint's row, in the order in which it is read
c.ns, c.id, c.parent, c.run, c.step, c.source, c.labels, c.time, c.hidden, c.refs, c.body

-- fitting: what every scan may leave out
c.hidden = 0
  AND (:id IS NULL OR c.id = :id)
  AND (:source IS NULL OR c.source = :source)
  AND (:step IS NULL OR c.step = :step OR c.step IS NULL)
  AND (:run IS NULL OR c.run = :run)
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:tags) wanted
      WHERE NOT EXISTS (
          SELECT 1 FROM tk_tags g WHERE g.thread = c.thread AND g.labels = c.labels AND g.tag = unhex(wanted.value)))

-- chosen: what every catalogue may leave out
(:kind IS NULL OR t.kind = :kind)
  AND (:status IS NULL OR t.status = :status)
  AND substr(t.id, 1, length(:prefix)) = :prefix
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:tags) wanted
      WHERE NOT EXISTS (
          SELECT 1 FROM tk_tags g WHERE g.thread = t.thread AND g.labels = t.labels AND g.tag = unhex(wanted.value)))

-- run-threads: the threads of a run
SELECT t.tenant, t.kind, t.id FROM tk_runs r JOIN tk_threads t ON t.thread = r.thread
WHERE r.run = :run AND t.tenant = :tenant AND t.kind = :kind;

-- new-thread: make a thread's row; no row comes back if it is there
INSERT INTO tk_threads (tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, bytes, top, run, step,
                        source, status, labels, early, early_status, lease)
VALUES (:tenant, :kind, :id, :epoch, :rev, :nexts, :created, :updated, :checkpoints, :writes, :bytes, :top, :run, :step,
        :source, :status, :labels, :early, :early_status, :lease)
ON CONFLICT DO NOTHING RETURNING thread;

-- next-thread: the thread's row after a batch, if it is as expected
UPDATE tk_threads
SET epoch = :epoch, rev = :rev, nexts = :nexts, updated = :updated, checkpoints = :checkpoints, writes = :writes,
    bytes = bytes + :bytes, top = :top, run = :run, step = :step, source = :source, status = :status, labels = :labels,
    early = :early, early_status = :early_status
WHERE tenant = :tenant AND kind = :kind AND id = :id AND epoch = :expect_epoch AND rev = :expect_rev
RETURNING thread;

-- less-bytes: count what freed items held
UPDATE tk_threads SET bytes = bytes - :freed WHERE thread = :thread;

-- new-items: add items
INSERT INTO tk_items (thread, lane, n, payload) VALUES (:thread, :lane, :n, :payload);

-- new-checkpoints: add checkpoints; one that is there stays and is not counted
INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
VALUES (:thread, :ns, :id, :parent, :run, :step, :source, :labels, :time, :hidden, :refs, :body)
ON CONFLICT DO NOTHING;

-- changed-checkpoints: replace checkpoints
INSERT OR REPLACE INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
VALUES (:thread, :ns, :id, :parent, :run, :step, :source, :labels, :time, :hidden, :refs, :body);

-- new-writes: add writes; a task's that are there stay and are not counted
INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
VALUES (:thread, :ns, :checkpoint, :task, :path, :run, :time, :entries, :refs, :body)
ON CONFLICT DO NOTHING;

-- changed-writes: replace writes
INSERT OR REPLACE INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
VALUES (:thread, :ns, :checkpoint, :task, :path, :run, :time, :entries, :refs, :body);

-- new-tags: index labels
INSERT OR IGNORE INTO tk_tags (thread, labels, tag) VALUES (:thread, :labels, :tag);

-- new-runs: remember which runs were here
INSERT OR IGNORE INTO tk_runs (thread, run) VALUES (:thread, :run);

-- gone-checkpoints: remove checkpoints
DELETE FROM tk_checkpoints WHERE thread = :thread AND ns = :ns AND id = :id;

-- gone-writes: remove a task's writes
DELETE FROM tk_writes WHERE thread = :thread AND ns = :ns AND checkpoint = :checkpoint AND task = :task;

-- held: bytes of a run of items
SELECT coalesce(sum(length(payload)), 0) FROM tk_items
WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- gone-items: remove a run of items
DELETE FROM tk_items WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- gone-tags: remove the index entries of a run of labels
DELETE FROM tk_tags WHERE thread = :thread AND labels >= :start AND labels < :end;

-- gone-runs: forget runs
DELETE FROM tk_runs WHERE thread = :thread AND run = :run;

-- copy-items: items of another thread
INSERT INTO tk_items (thread, lane, n, payload) SELECT :target, lane, n, payload FROM tk_items WHERE thread = :thread;

-- copy-checkpoints: checkpoints of another thread
INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
SELECT :target, ns, id, parent, run, step, source, labels, time, hidden, refs, body
FROM tk_checkpoints WHERE thread = :thread;

-- copy-writes: writes of another thread
INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
SELECT :target, ns, checkpoint, task, path, run, time, entries, refs, body FROM tk_writes WHERE thread = :thread;

-- copy-tags: index entries of another thread
INSERT INTO tk_tags (thread, labels, tag) SELECT :target, labels, tag FROM tk_tags WHERE thread = :thread;

-- copy-runs: runs of another thread
INSERT INTO tk_runs (thread, run) SELECT :target, run FROM tk_runs WHERE thread = :thread;

-- replace-item: another payload for one item
UPDATE tk_items SET payload = :payload WHERE thread = :thread AND lane = :lane AND n = :n;

-- drop-items: all items of a thread
DELETE FROM tk_items WHERE thread = :thread;

-- drop-checkpoints: all checkpoints of a thread
DELETE FROM tk_checkpoints WHERE thread = :thread;

-- drop-writes: all writes of a thread
DELETE FROM tk_writes WHERE thread = :thread;

-- drop-tags: all index entries of a thread
DELETE FROM tk_tags WHERE thread = :thread;

-- drop-runs: all runs of a thread
DELETE FROM tk_runs WHERE thread = :thread;

-- drop-thread: the thread's row
DELETE FROM tk_threads WHERE thread = :thread;
