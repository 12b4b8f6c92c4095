-- The statements that all SQL databases share, as named blocks. A block is `-- name: purpose` and what follows it;
-- {name} in a block stands for another one. A dialect's own file adds its schema and replaces what it says otherwise.
-- Every statement about a thread names its number first: where threads are spread over machines, one machine answers.

-- thread: a thread's row
SELECT {thread-columns} FROM tk_threads t WHERE {this-thread}

-- lock-thread: a thread's row, which nobody else changes until this transaction ends
{thread};

-- latest: the greatest visible checkpoint id of a namespace
SELECT id FROM tk_checkpoints WHERE thread = :thread AND ns = :ns AND hidden = 0 ORDER BY id DESC LIMIT 1;

-- checkpoint: one checkpoint
SELECT {checkpoint-columns} FROM tk_checkpoints c WHERE c.thread = :thread AND c.ns = :ns AND c.id = :id;

-- checkpoints-down: checkpoints of a namespace from an id downwards
SELECT {checkpoint-columns} FROM tk_checkpoints c
WHERE c.thread = :thread AND c.ns = :ns AND c.id <= :id ORDER BY c.id DESC LIMIT :limit;

-- checkpoints: all checkpoints of a thread
SELECT {checkpoint-columns} FROM tk_checkpoints c WHERE c.thread = :thread ORDER BY c.ns, c.id;

-- writes: the writes on one checkpoint
SELECT {write-columns} FROM tk_writes w WHERE w.thread = :thread AND w.ns = :ns AND w.checkpoint = :id;

-- all-writes: all writes of a thread
SELECT {write-columns} FROM tk_writes w WHERE w.thread = :thread ORDER BY w.ns, w.checkpoint, w.task;

-- items: a run of items
SELECT lane, n, payload FROM tk_items WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- lengths: how long the items of a run are, and how they begin
SELECT lane, n, length(payload), substr(payload, 1, CAST(:beginning AS integer)) FROM tk_items
WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

-- item-ids: which items a thread has
SELECT lane, n FROM tk_items WHERE thread = :thread ORDER BY lane, n;

-- scan: visible checkpoints, newest id first
SELECT t.tenant, t.kind, t.id, {checkpoint-columns}, l.payload
FROM tk_threads t
{join-in-order} tk_checkpoints c ON c.thread = t.thread
LEFT JOIN tk_items l ON l.thread = c.thread AND l.lane = 2 AND l.n = c.labels
WHERE c.hidden = 0 AND {conditions}
ORDER BY c.id DESC, t.id, c.ns LIMIT :limit;

-- catalogue: threads in an order; labels are looked up for those of the page only
SELECT {thread-columns}, l.payload
FROM (SELECT t.* FROM tk_threads t WHERE {conditions} ORDER BY {order} LIMIT :limit) t
LEFT JOIN tk_items l ON l.thread = t.thread AND l.lane = 2 AND l.n = t.labels
ORDER BY {order};

-- thread-columns: a thread's row, in the order in which it is read
t.thread, t.tenant, t.kind, t.id, t.epoch, t.rev, t.nexts, t.created, t.updated, t.checkpoints, t.writes, t.bytes, t.top,
       t.run, t.step, t.source, t.status, t.labels, t.early, t.early_status, t.lease

-- checkpoint-columns: a checkpoint's row, in the order in which it is read
c.ns, c.id, c.parent, c.run, c.step, c.source, c.labels, c.time, c.hidden, c.refs, c.body

-- write-columns: the row of a task's writes, in the order in which it is read
w.ns, w.checkpoint, w.task, w.path, w.run, w.time, w.entries, w.refs, w.body

-- where-thread: one thread
{this-thread}

-- where-tenant: a tenant's threads
t.tenant = :tenant

-- where-kind: threads of a kind
t.kind = :kind

-- where-status: threads of a status
t.status = :status

-- where-prefix: threads whose ids begin so
t.id >= :prefix AND t.id < :prefix_end

-- where-ns: checkpoints of a namespace
c.ns = :ns

-- where-id: checkpoints of an id
c.id = :id

-- where-below: checkpoints below an id
c.id < :below

-- where-after: checkpoints after the last one of the slice before
(c.id < :after_id OR (c.id = :after_id AND (t.id, c.ns) > (:after_thread, :after_ns)))

-- where-source: checkpoints of a source
c.source = :source

-- where-step: checkpoints of a step; an odd one stands elsewhere
(c.step = :step OR c.step IS NULL)

-- where-run: checkpoints of a run
c.run = :run

-- where-tag: a set of labels that has a tag
EXISTS (SELECT 1 FROM tk_tags g WHERE g.thread = {labelled}.thread AND g.labels = {labelled}.labels AND g.tag = :{tag})

-- order-updated: the last changed first
t.updated DESC, t.kind, t.id

-- after-updated: those after the last one of the page before
t.updated <= :value AND (t.updated < :value OR (t.kind, t.id) > (:after_kind, :after_id))

-- order-created: the newest first
t.created DESC, t.kind, t.id

-- after-created: those after the last one of the page before
t.created <= :value AND (t.created < :value OR (t.kind, t.id) > (:after_kind, :after_id))

-- order-bytes: the largest first
t.bytes DESC, t.kind, t.id

-- after-bytes: those after the last one of the page before
t.bytes <= :value AND (t.bytes < :value OR (t.kind, t.id) > (:after_kind, :after_id))

-- order-id: by id
t.id, t.kind

-- after-id: those after the last one of the page before
t.id >= :after_id AND (t.id, t.kind) > (:after_id, :after_kind)

-- run-threads: the threads of a run
SELECT t.tenant, t.kind, t.id FROM tk_runs r JOIN tk_threads t ON t.thread = r.thread
WHERE r.run = :run AND t.tenant = :tenant AND t.kind = :kind;

-- next-thread: the thread's row after a batch, if it is as expected
UPDATE tk_threads AS t
SET epoch = :epoch, rev = :rev, nexts = :nexts, {updated}, checkpoints = :checkpoints, writes = :writes,
    bytes = t.bytes + :bytes, top = :top, run = :run, step = :step, source = :source, status = :status, labels = :labels,
    early = :early, early_status = :early_status
WHERE {this-thread} AND t.epoch = :expect_epoch AND t.rev = :expect_rev
RETURNING thread;

-- less-bytes: count what freed items held
UPDATE tk_threads SET bytes = bytes - :freed WHERE thread = :thread;

-- new-items: add items
INSERT INTO tk_items (thread, lane, n, payload) VALUES (:thread, :lane, :n, :payload);

-- insert-checkpoints: the start of adding or replacing checkpoints
INSERT INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
VALUES (:thread, :ns, :id, :parent, :run, :step, :source, :labels, :time, :hidden, {refs}, :body)

-- new-checkpoints: add checkpoints; one that is there stays and is not counted
{insert-checkpoints} ON CONFLICT DO NOTHING;

-- changed-checkpoints: replace checkpoints
{insert-checkpoints} {replace-checkpoints};

-- replace-checkpoints: what becomes of a checkpoint that is there
ON CONFLICT (thread, ns, id) DO UPDATE
SET parent = excluded.parent, run = excluded.run, step = excluded.step, source = excluded.source,
    labels = excluded.labels, time = excluded.time, hidden = excluded.hidden, refs = excluded.refs, body = excluded.body

-- insert-writes: the start of adding or replacing a task's writes
INSERT INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
VALUES (:thread, :ns, :checkpoint, :task, :path, :run, :time, :entries, {refs}, :body)

-- new-writes: add writes; a task's that are there stay and are not counted
{insert-writes} ON CONFLICT DO NOTHING;

-- changed-writes: replace writes
{insert-writes} {replace-writes};

-- replace-writes: what becomes of a task's writes that are there
ON CONFLICT (thread, ns, checkpoint, task) DO UPDATE
SET path = excluded.path, run = excluded.run, time = excluded.time, entries = excluded.entries, refs = excluded.refs,
    body = excluded.body

-- new-tags: index labels
INSERT INTO tk_tags (thread, labels, tag) VALUES (:thread, :labels, :tag) ON CONFLICT DO NOTHING;

-- new-runs: remember which runs were here
INSERT INTO tk_runs (thread, run) VALUES (:thread, :run) ON CONFLICT DO NOTHING;

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

-- copy-run: a run of items of another thread
INSERT INTO tk_items (thread, lane, n, payload)
SELECT :target, lane, n, payload FROM tk_items WHERE thread = :thread AND lane = :lane AND n >= :start AND n < :end;

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
