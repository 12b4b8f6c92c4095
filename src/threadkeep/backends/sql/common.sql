-- Statements on threads that all SQL databases share, as named blocks. A block is a line `-- name: purpose` and the
-- lines that follow. {name} stands for another block. A dialect's own file adds the schema, and replaces a block by
-- giving its own block the same name.
-- The first condition of a statement on a thread is the thread's number, so that a database that distributes tables can
-- send the statement to one machine.

-- thread: a thread's row
SELECT {thread-columns} FROM tk_threads t WHERE {this-thread}

-- lock-thread: a thread's row, locked until the transaction ends
{thread};

-- thread-key: the key in a thread's row
SELECT tenant, kind, id FROM tk_threads WHERE thread = :thread;

-- latest-checkpoint: the greatest visible checkpoint id in a namespace
SELECT id FROM tk_checkpoints WHERE thread = :thread AND ns = :ns AND hidden = 0 ORDER BY id DESC LIMIT 1;

-- checkpoint: one checkpoint
SELECT {checkpoint-columns} FROM tk_checkpoints c WHERE c.thread = :thread AND c.ns = :ns AND c.id = :id;

-- checkpoints-down: checkpoints of a namespace in descending order, starting at an id
SELECT {checkpoint-columns} FROM tk_checkpoints c
WHERE c.thread = :thread AND c.ns = :ns AND c.id <= :id ORDER BY c.id DESC LIMIT :limit;

-- checkpoints: all checkpoints of a thread
SELECT {checkpoint-columns} FROM tk_checkpoints c WHERE c.thread = :thread ORDER BY c.ns, c.id;

-- writes: the writes of one checkpoint
SELECT {write-columns} FROM tk_writes w WHERE w.thread = :thread AND w.ns = :ns AND w.checkpoint = :id;

-- writes-between: the writes of all checkpoints of a namespace between two ids
SELECT {write-columns} FROM tk_writes w
WHERE w.thread = :thread AND w.ns = :ns AND w.checkpoint >= :low AND w.checkpoint <= :high;

-- all-writes: all writes of a thread
SELECT {write-columns} FROM tk_writes w WHERE w.thread = :thread ORDER BY w.ns, w.checkpoint, w.task;

-- items: a range of items
SELECT lane, n, payload FROM tk_items WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- item-lengths: the stored length and the first bytes of each item in a range
SELECT lane, n, length(payload), substr(payload, 1, CAST(:beginning AS integer)) FROM tk_items
WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- item-ids: the ids of all items of a thread
SELECT lane, n FROM tk_items WHERE thread = :thread ORDER BY lane, n;

-- scan-checkpoints: checkpoints, greatest id first; all columns are looked up only for those that are returned
SELECT {scan-columns}
FROM (
    SELECT c.thread, c.ns, c.id, t.id AS thread_id
    FROM tk_threads t {join-in-order} tk_checkpoints c ON c.thread = t.thread
    WHERE {conditions}
    ORDER BY c.id DESC, t.id, c.ns LIMIT :limit
) f
{join-in-order} tk_checkpoints c ON c.thread = f.thread AND c.ns = f.ns AND c.id = f.id
{join-in-order} tk_threads t ON t.thread = f.thread
LEFT JOIN tk_items l ON l.thread = c.thread AND l.lane = 2 AND l.n = c.labels
ORDER BY f.id DESC, f.thread_id, f.ns;

-- scan-columns: what a scan returns: a thread, a checkpoint, its labels, and whether it has writes
{thread-columns}, {checkpoint-columns}, l.payload,
       EXISTS (SELECT 1 FROM tk_writes w WHERE w.thread = c.thread AND w.ns = c.ns AND w.checkpoint = c.id)

-- list-threads: a page of threads; labels are looked up only for the rows of the page
SELECT {thread-columns}, l.payload
FROM (SELECT t.* FROM tk_threads t WHERE {conditions} ORDER BY {order} LIMIT :limit) t
LEFT JOIN tk_items l ON l.thread = t.thread AND l.lane = 2 AND l.n = t.labels
ORDER BY {order};

-- thread-columns: the columns of a thread's row, in the order that `rows.thread_row` reads
t.thread, t.tenant, t.kind, t.id, t.epoch, t.rev, t.nexts, t.created, t.updated, t.checkpoints, t.writes, t.bytes,
       t.top, t.run, t.step, t.source, t.status, t.labels, t.early, t.early_status, t.lease, t.family, t.top_writes,
       t.early_writes, t.bytes_check, t.checksum, t.sealed, t.description

-- checkpoint-columns: the columns of a checkpoint, in the order that `SqlBackend.checkpoint_row` reads
c.ns, c.id, c.parent, c.run, c.step, c.source, c.labels, c.time, c.hidden, c.refs, c.body

-- write-columns: the columns of a task's writes, in the order that `SqlBackend.write_row` reads
w.ns, w.checkpoint, w.task, w.path, w.run, w.time, w.entries, w.refs, w.body

-- where-thread: one thread
{this-thread}

-- where-tenant: threads of a tenant
t.tenant = :tenant

-- where-kind: threads of a kind
t.kind = :kind

-- where-status: threads with a status
t.status = :status

-- where-described: threads that have a description
t.description IS NOT NULL

-- where-prefix: threads whose id starts with a prefix
t.id >= :prefix AND t.id < :prefix_end

-- where-visible: checkpoints that are not hidden
c.hidden = 0

-- where-ns: checkpoints of a namespace
c.ns = :ns

-- where-id: checkpoints with an id
c.id = :id

-- where-below: checkpoints whose id is less than a bound
c.id < :below

-- where-after: checkpoints after the last one of the previous page
(c.id < :after_id OR (c.id = :after_id AND (t.id, c.ns) > (:after_thread, :after_ns)))

-- where-source: checkpoints with a source
c.source = :source

-- where-step: checkpoints with a step; NULL if the step is not an integer, and the engine compares again
(c.step = :step OR c.step IS NULL)

-- where-run: checkpoints of a run
c.run = :run

-- where-tag: rows whose labels have a tag
EXISTS (SELECT 1 FROM tk_tags g WHERE g.thread = {alias}.thread AND g.labels = {alias}.labels AND g.tag = :{tag})

-- where-any-tags: threads that have labels with some tags; {more} are conditions on the same labels
EXISTS (SELECT 1 FROM tk_tags a WHERE a.thread = t.thread AND a.tag = :tag0{more})

-- order-updated: last updated first; the index is on `tick`, and only the rows of one tick are sorted
t.tick DESC, t.updated DESC, t.kind, t.id

-- after-updated: threads after the last one of the previous page
t.tick <= :value >> {tick-bits} AND t.updated <= :value AND (t.updated < :value OR (t.kind, t.id) > (:after_kind, :after_id))

-- order-created: newest first
t.created DESC, t.kind, t.id

-- after-created: threads after the last one of the previous page
t.created <= :value AND (t.created < :value OR (t.kind, t.id) > (:after_kind, :after_id))

-- order-bytes: largest first
t.bytes DESC, t.kind, t.id

-- after-bytes: threads after the last one of the previous page
t.bytes <= :value AND (t.bytes < :value OR (t.kind, t.id) > (:after_kind, :after_id))

-- order-id: by id
t.id, t.kind

-- after-id: threads after the last one of the previous page
t.id >= :after_id AND (t.id, t.kind) > (:after_id, :after_kind)

-- threads-of-run: the threads of a run
SELECT t.tenant, t.kind, t.id FROM tk_runs r JOIN tk_threads t ON t.thread = r.thread
WHERE r.run = :run AND t.tenant = :tenant AND t.kind = :kind;

-- update-thread: replace a thread's row if its version is the expected one; returns no row otherwise
UPDATE tk_threads AS t
SET epoch = :epoch, rev = :rev, nexts = :nexts, {set-updated}, checkpoints = :checkpoints, writes = :writes,
    bytes = t.bytes + :bytes, top = :top, run = :run, step = :step, source = :source, status = :status,
    labels = :labels, early = :early, early_status = :early_status, top_writes = :top_writes,
    early_writes = :early_writes, bytes_check = t.bytes + :bytes, checksum = :checksum, sealed = :sealed,
    lease = :lease, description = :description
WHERE {this-thread} AND t.epoch = :expect_epoch AND t.rev = :expect_rev
RETURNING thread;

-- subtract-bytes: subtract the size of removed items from a thread's bytes
UPDATE tk_threads SET bytes = bytes - :freed, bytes_check = bytes - :freed WHERE thread = :thread;

-- insert-items: add items
INSERT INTO tk_items (thread, lane, n, payload) VALUES (:thread, :lane, :n, :payload);

-- insert-into-checkpoints: the common start of the two statements below
INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
VALUES (:thread, :ns, :id, :parent, :run, :step, :source, :labels, :time, :hidden, {refs}, :body)

-- insert-checkpoints: add checkpoints; an existing one is left alone and not counted
{insert-into-checkpoints} ON CONFLICT DO NOTHING;

-- upsert-checkpoints: add or replace checkpoints
{insert-into-checkpoints} {replace-checkpoints};

-- replace-checkpoints: replace an existing checkpoint
ON CONFLICT (thread, ns, id) DO UPDATE
SET parent = excluded.parent, run = excluded.run, step = excluded.step, source = excluded.source,
    labels = excluded.labels, time = excluded.time, hidden = excluded.hidden, refs = excluded.refs, body = excluded.body

-- insert-into-writes: the common start of the two statements below
INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
VALUES (:thread, :ns, :checkpoint, :task, :path, :run, :time, :entries, {refs}, :body)

-- insert-writes: add writes; existing writes of the same task are left alone and not counted
{insert-into-writes} ON CONFLICT DO NOTHING;

-- upsert-writes: add or replace writes
{insert-into-writes} {replace-writes};

-- replace-writes: replace existing writes of the same task
ON CONFLICT (thread, ns, checkpoint, task) DO UPDATE
SET path = excluded.path, run = excluded.run, time = excluded.time, entries = excluded.entries, refs = excluded.refs,
    body = excluded.body

-- insert-tags: add index entries for labels
INSERT INTO tk_tags (thread, labels, tag) VALUES (:thread, :labels, :tag) ON CONFLICT DO NOTHING;

-- insert-runs: add runs to the index of runs
INSERT INTO tk_runs (thread, run) VALUES (:thread, :run) ON CONFLICT DO NOTHING;

-- delete-checkpoints: delete checkpoints
DELETE FROM tk_checkpoints WHERE thread = :thread AND ns = :ns AND id = :id;

-- delete-writes: delete the writes of a task
DELETE FROM tk_writes WHERE thread = :thread AND ns = :ns AND checkpoint = :checkpoint AND task = :task;

-- item-bytes: the total size of a range of items
SELECT coalesce(sum(length(payload)), 0) FROM tk_items
WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- delete-items: delete a range of items
DELETE FROM tk_items WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- delete-tags: delete the index entries of a range of labels
DELETE FROM tk_tags WHERE thread = :thread AND labels >= :start AND labels < :end;

-- delete-runs: delete runs from the index of runs
DELETE FROM tk_runs WHERE thread = :thread AND run = :run;

-- copy-items: copy all items of another thread
INSERT INTO tk_items (thread, lane, n, payload) SELECT :target, lane, n, payload FROM tk_items WHERE thread = :thread;

-- copy-item-range: copy a range of items of another thread
INSERT INTO tk_items (thread, lane, n, payload)
SELECT :target, lane, n, payload FROM tk_items WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- copy-checkpoints: copy all checkpoints of another thread
INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
SELECT :target, ns, id, parent, run, step, source, labels, time, hidden, refs, body
FROM tk_checkpoints WHERE thread = :thread;

-- copy-writes: copy all writes of another thread
INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
SELECT :target, ns, checkpoint, task, path, run, time, entries, refs, body FROM tk_writes WHERE thread = :thread;

-- copy-tags: copy all index entries of another thread
INSERT INTO tk_tags (thread, labels, tag) SELECT :target, labels, tag FROM tk_tags WHERE thread = :thread;

-- copy-runs: copy all runs of another thread
INSERT INTO tk_runs (thread, run) SELECT :target, run FROM tk_runs WHERE thread = :thread;

-- replace-item: replace the payload of one item
UPDATE tk_items SET payload = :payload WHERE thread = :thread AND lane = :lane AND n = :n;

-- drop-items: delete all items of a thread
DELETE FROM tk_items WHERE thread = :thread;

-- drop-checkpoints: delete all checkpoints of a thread
DELETE FROM tk_checkpoints WHERE thread = :thread;

-- drop-writes: delete all writes of a thread
DELETE FROM tk_writes WHERE thread = :thread;

-- drop-tags: delete all index entries of a thread
DELETE FROM tk_tags WHERE thread = :thread;

-- drop-runs: delete all runs of a thread
DELETE FROM tk_runs WHERE thread = :thread;

-- drop-thread: delete a thread's row
DELETE FROM tk_threads WHERE thread = :thread;
