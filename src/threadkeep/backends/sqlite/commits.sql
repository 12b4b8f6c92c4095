-- The statements of a commit that is executed as one script; see `commits.py`. Parameters are positional, and {insert}
-- is INSERT, or INSERT OR ROLLBACK.

-- begin: start the transaction
BEGIN IMMEDIATE;

-- commit: end the transaction
COMMIT;

-- this-thread: the number of a thread at a version; NULL if it is not at that version
(SELECT thread FROM tk_threads WHERE tenant = ? AND kind = ? AND id = ? AND epoch = ? AND rev = ?)

-- update-thread: replace a thread's row; an earlier statement has found it at the expected version
UPDATE tk_threads
SET epoch = ?, rev = ?, nexts = ?, updated = ?, checkpoints = ?, writes = ?, bytes = bytes + ?, top = ?, run = ?,
    step = ?, source = ?, status = ?, labels = ?, early = ?, early_status = ?, top_writes = ?, early_writes = ?,
    bytes_check = bytes + ?, checksum = ?, sealed = ?, lease = ?, description = ?
WHERE tenant = ? AND kind = ? AND id = ?;

-- insert-thread: add a thread's row; fail if it exists
{insert} INTO tk_threads (epoch, rev, nexts, updated, checkpoints, writes, bytes, top, run, step, source, status,
                          labels, early, early_status, top_writes, early_writes, bytes_check, checksum, sealed, lease,
                          description, tenant, kind, id, created, family)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- insert-checkpoint: add a checkpoint; fail if it exists
{insert} INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
VALUES ({this-thread}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- replace-checkpoint: add or replace a checkpoint
{insert} INTO tk_checkpoints (thread, ns, id, parent, run, step, source, labels, time, hidden, refs, body)
VALUES ({this-thread}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (thread, ns, id) DO UPDATE
SET parent = excluded.parent, run = excluded.run, step = excluded.step, source = excluded.source,
    labels = excluded.labels, time = excluded.time, hidden = excluded.hidden, refs = excluded.refs,
    body = excluded.body;

-- insert-writes: add the writes of a task; fail if they exist
{insert} INTO tk_writes (thread, ns, checkpoint, task, path, run, time, entries, refs, body)
VALUES ({this-thread}, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- insert-item: add an item
{insert} INTO tk_items (thread, lane, n, payload) VALUES ({this-thread}, ?, ?, ?);

-- insert-tag: add an index entry for labels
INSERT OR IGNORE INTO tk_tags (thread, labels, tag) VALUES ({this-thread}, ?, ?);

-- insert-run: add a run to the index of runs
INSERT OR IGNORE INTO tk_runs (thread, run) VALUES ({this-thread}, ?);

-- found-thread: the number of a thread; NULL if a damaged index leads to the row of another one
-- abs() of this number fails: a thread with a lease is not deleted so, but by a request, which finds out whose it is.
(SELECT CASE WHEN t.lease IS NULL THEN t.thread ELSE abs(-9223372036854775807 - 1) END FROM tk_threads t
 WHERE t.thread = (SELECT thread FROM tk_threads WHERE tenant = ? AND kind = ? AND id = ?)
   AND +t.tenant = ? AND +t.kind = ? AND +t.id = ?)

-- drop: delete a thread with everything in it
-- abs() fails if the tenant is encrypted and the caller does not know: a request then raises the error.
BEGIN IMMEDIATE;
DELETE FROM tk_items WHERE thread = CASE
    WHEN EXISTS (SELECT 1 FROM tk_tenants WHERE tenant = ? AND sealed > ?) THEN abs(-9223372036854775807 - 1)
    ELSE {found-thread} END;
DELETE FROM tk_checkpoints WHERE thread = {found-thread};
DELETE FROM tk_writes WHERE thread = {found-thread};
DELETE FROM tk_tags WHERE thread = {found-thread};
DELETE FROM tk_runs WHERE thread = {found-thread};
DELETE FROM tk_threads WHERE thread = {found-thread};
COMMIT;
