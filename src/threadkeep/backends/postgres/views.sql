-- Views for people who query the database directly; threadkeep never reads them. Ids are text, times are timestamps,
-- channels are shown by name. `number` is the thread's number in the tables. A condition on it is fast, except in
-- tk_v_sizes, which computes everything first. A condition on a text column reads all threads.
-- Every join is on the thread first, and the views use no JSON and no functions of our own, so that distributed
-- databases can run them.

-- text: bytes as text. Bytes that are not valid text (a NUL, a lone surrogate) become \x and hexadecimal digits
CASE WHEN encode({it}, 'hex') ~ '^(..)*(00|ed[ab])'
     THEN '\x' || encode({it}, 'hex') ELSE convert_from({it}, 'UTF8') END

-- id: a packed id as text; an empty one is NULL
CASE WHEN length({it}) = 0 THEN NULL
     WHEN get_byte({it}, 0) = 117 THEN CAST(CAST(encode(substr({it}, 2), 'hex') AS uuid) AS text)
     WHEN get_byte({it}, 0) = 104 THEN encode(substr({it}, 2), 'hex')
     ELSE {text substr({it}, 2)} END

-- item-name: the text of an item in the lane of names
-- It follows the format byte and the checksum. A compressed name is shown as # and its number.
CASE WHEN get_byte({it}.payload, 0) = 0 THEN {text substr({it}.payload, 6)} ELSE '#' || {it}.n END

-- time: milliseconds as a timestamp
to_timestamp({it} / 1000.0)

-- path: the path of a task, which may be stored without its beginning: see `identity.pack_path`
CASE substr({it}, 1, 1) WHEN CAST('\x01' AS bytea) THEN CAST('~__pregel_pull, ' AS bytea) || substr({it}, 2)
     WHEN CAST('\x00' AS bytea) THEN substr({it}, 2) ELSE {it} END

-- entries: one row for each write of a task: its index, the number of the channel's name, its bytes
-- A list has three numbers for each, other texts two: see `rows.pack_index`.
SELECT l.thread, l.ns, l.checkpoint, l.task, {path l.path} AS path, l.run, l.time,
       CASE l.step WHEN 3 THEN l.list[l.k] ELSE (l.k - 1) / 2 END AS idx, l.list[l.k + l.step - 2] AS n,
       l.list[l.k + l.step - 1] AS bytes
FROM (SELECT s.*, generate_series(1, cardinality(s.list), s.step) AS k
      FROM (SELECT w.thread, w.ns, w.checkpoint, w.task, w.path, w.run, w.time,
                   CASE substr(w.entries, 1, 1) WHEN '[' THEN 3 ELSE 2 END AS step,
                   CAST(string_to_array(btrim(w.entries, '[]'), ',') AS bigint[]) AS list FROM tk_writes w) s) l

-- views-of-writes: the views that read tk_writes
CREATE VIEW tk_v_writes AS
SELECT t.number, t.tenant, t.kind, t.thread, {text w.ns} AS ns,
       {text w.checkpoint} AS checkpoint, {id w.task} AS task,
       CASE WHEN substr(w.path, 1, 16) = CAST('~__pregel_pull, ' AS bytea) THEN {text substr(w.path, 17)} END AS node,
       {text w.path} AS path, w.idx, {item-name i} AS channel, w.bytes, {time w.time} AS time, {id w.run} AS run
FROM ({entries}) w JOIN tk_v_threads t ON t.number = w.thread
LEFT JOIN tk_items i ON i.thread = w.thread AND i.lane = 0 AND i.n = w.n;
CREATE VIEW tk_v_sizes AS
WITH held AS (
    SELECT thread, lane, count(*) AS items, sum(length(payload)) AS stored FROM tk_items GROUP BY thread, lane
), wrote AS (
    SELECT w.thread, w.n, count(*) AS writes, CAST(sum(w.bytes) AS bigint) AS written
    FROM ({entries}) w GROUP BY w.thread, w.n
), parts AS (
    SELECT i.thread, 'channel' AS part, {item-name i} AS channel, coalesce(h.items, 0) AS items,
           coalesce(h.stored, 0) AS stored, coalesce(o.writes, 0) AS writes, coalesce(o.written, 0) AS written
    FROM tk_items i LEFT JOIN held h ON h.thread = i.thread AND h.lane = i.n + 3
    LEFT JOIN wrote o ON o.thread = i.thread AND o.n = i.n
    WHERE i.lane = 0 AND (h.items > 0 OR o.writes > 0)
    UNION ALL
    SELECT thread, 'shared', NULL, CAST(sum(items) AS bigint), CAST(sum(stored) AS bigint), 0, 0
    FROM held WHERE lane < 3 GROUP BY thread
    UNION ALL
    SELECT t.thread, 'rows', NULL, 0, t.bytes - CAST(coalesce(sum(h.stored), 0) AS bigint), 0, 0
    FROM tk_threads t LEFT JOIN held h ON h.thread = t.thread GROUP BY t.thread, t.bytes
)
SELECT p.thread AS number, t.tenant, t.kind, t.thread, p.part, p.channel, p.items, p.stored,
       p.writes, p.written
FROM parts p JOIN tk_v_threads t ON t.number = p.thread;
CREATE VIEW tk_v_activity AS
SELECT number, tenant, kind, thread, ns, CAST(time AT TIME ZONE 'UTC' AS date) AS day, node, channel,
       count(*) AS writes, CAST(sum(bytes) AS bigint) AS bytes, CAST(avg(bytes) AS double precision) AS average
FROM tk_v_writes GROUP BY number, tenant, kind, thread, ns, CAST(time AT TIME ZONE 'UTC' AS date), node, channel;

-- threads-in-view: the columns of tk_v_threads
SELECT t.thread AS number, {text t.tenant} AS tenant, t.kind, {text t.id} AS thread, t.status, t.checkpoints, t.writes,
       t.bytes, {time t.created} AS created, {time t.updated} AS updated, {text t.top} AS checkpoint, {id t.run} AS run,
       t.step, t.source

-- view-of-threads-with-description: tk_v_threads since version 8
CREATE OR REPLACE VIEW tk_v_threads AS
{threads-in-view}, t.description
FROM tk_threads t;

-- schema-4: views
CREATE VIEW tk_v_threads AS
{threads-in-view}
FROM tk_threads t;
CREATE VIEW tk_v_checkpoints AS
SELECT t.number, t.tenant, t.kind, t.thread, {text c.ns} AS ns, {text c.id} AS checkpoint,
       {id c.parent} AS parent, {id c.run} AS run, c.step, c.source, {time c.time} AS time,
       c.hidden <> 0 AS hidden, length(c.body) AS body_bytes
FROM tk_checkpoints c JOIN tk_v_threads t ON t.number = c.thread;
{views-of-writes}

-- schema-8: everything since version 4, which threadkeep 0.1.0 had
ALTER TABLE tk_schema ADD COLUMN readable integer;
ALTER TABLE tk_schema ADD COLUMN writable integer;
UPDATE tk_schema SET readable = 8, writable = 8 WHERE version = 8;
-- Checksums, NULL in rows that were written before.
ALTER TABLE tk_memories ADD COLUMN vectors integer;
ALTER TABLE tk_memories ADD COLUMN checksum bigint;
ALTER TABLE tk_memories ADD COLUMN times bigint;
ALTER TABLE tk_vectors ADD COLUMN checksum bigint;
ALTER TABLE tk_memories ADD COLUMN words_check integer;
ALTER TABLE tk_threads ADD COLUMN family bigint NOT NULL DEFAULT 0;
ALTER TABLE tk_threads ADD COLUMN top_writes bigint;
ALTER TABLE tk_threads ADD COLUMN early_writes bigint;
ALTER TABLE tk_threads ADD COLUMN bytes_check bigint;
ALTER TABLE tk_threads ADD COLUMN checksum bigint;
-- Refs as text, without the 24 bytes that precede the numbers of an array. The views that read the tables depend on the
-- column. Items may be compressed with dictionary no. 2.
DROP VIEW tk_v_activity;
DROP VIEW tk_v_writes;
DROP VIEW tk_v_sizes;
ALTER TABLE tk_checkpoints ALTER COLUMN refs TYPE text USING array_to_string(refs, ',');
ALTER TABLE tk_writes ALTER COLUMN refs TYPE text USING array_to_string(refs, ',');
-- Paths and entries of writes may be shorter; those that look shorter by chance are marked.
UPDATE tk_writes SET path = CAST('\x00' AS bytea) || path
WHERE substr(path, 1, 1) IN (CAST('\x00' AS bytea), CAST('\x01' AS bytea));
{views-of-writes}
{smaller-memory-indexes}
-- Encryption: the key of a thread, of a tenant and of its partitions of memories. Descriptions of threads.
ALTER TABLE tk_threads ADD COLUMN sealed bytea;
ALTER TABLE tk_threads ADD COLUMN description text;
{view-of-threads-with-description}
{tenant-tables}
