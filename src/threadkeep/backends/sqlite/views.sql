-- Views for people who query the database directly; threadkeep never reads them. Ids are text, times are UTC, channels
-- are shown by name. `number` is the thread's number in the tables. A condition on it is fast, except in tk_v_sizes,
-- which computes everything first. A condition on a text column reads all threads.

-- text: bytes as text. Bytes that are not valid text (a NUL, a lone surrogate) become \x and hexadecimal digits
-- GLOB reads a lone surrogate as U+FFFD. So the characters that GLOB reads as U+FFFD anyway are removed first.
CASE WHEN instr({it}, x'00') OR (instr({it}, x'ED') AND
        replace(replace(replace(CAST({it} AS TEXT), char(65533), ''), char(65534), ''), char(65535), '')
            GLOB '*[' || char(65533) || ']*')
     THEN '\x' || lower(hex({it})) ELSE CAST({it} AS TEXT) END

-- id: a packed id as text
CASE substr({it}, 1, 1)
     WHEN x'75' THEN lower(
        substr(hex({it}), 3, 8) || '-' || substr(hex({it}), 11, 4) || '-' || substr(hex({it}), 15, 4) || '-' ||
        substr(hex({it}), 19, 4) || '-' || substr(hex({it}), 23))
     WHEN x'68' THEN lower(substr(hex({it}), 3))
     ELSE {text substr({it}, 2)} END

-- item-name: the text of an item in the lane of names
-- It follows the format byte and the checksum. A compressed name is shown as # and its number.
CASE WHEN substr({it}.payload, 1, 1) = x'00' THEN {text substr({it}.payload, 6)} ELSE '#' || {it}.n END

-- time: milliseconds as text that sorts by time
strftime('%Y-%m-%d %H:%M:%f', {it} / 1000.0, 'unixepoch')

-- schema-3: an index of threads by id, for all kinds
-- PostgreSQL has it since version 1; its version 3 adds the column `tick`.
CREATE INDEX tk_threads_id ON tk_threads (tenant, id, kind);

-- path: the path of a task, which may be stored without its beginning: see `identity.pack_path`
CASE substr({it}, 1, 1) WHEN x'01' THEN CAST('~__pregel_pull, ' || substr({it}, 2) AS BLOB)
     WHEN x'00' THEN substr({it}, 2) ELSE {it} END

-- entries: one row for each write of a task: its index, the number of the channel's name, its bytes
-- A list has three numbers for each, other texts two: see `rows.pack_index`.
SELECT l.thread, l.ns, l.checkpoint, l.task, {path l.path} AS path, l.run, l.time,
       iif(l.step = 3, e.value, e.key / 2) AS idx, json_extract(l.list, '$[' || (e.key + l.step - 2) || ']') AS n,
       json_extract(l.list, '$[' || (e.key + l.step - 1) || ']') AS bytes
FROM (SELECT w.*, iif(substr(w.entries, 1, 1) = '[', 3, 2) AS step,
             iif(substr(w.entries, 1, 1) = '[', w.entries, '[' || w.entries || ']') AS list FROM tk_writes w) l
JOIN json_each(l.list) e ON e.key % l.step = 0

-- views-of-writes: the views that read tk_writes
CREATE VIEW tk_v_writes AS
SELECT t.number, t.tenant, t.kind, t.thread, {text w.ns} AS ns,
       {text w.checkpoint} AS checkpoint, {id w.task} AS task,
       CASE WHEN substr(w.path, 1, 16) = CAST('~__pregel_pull, ' AS BLOB) THEN {text substr(w.path, 17)} END AS node,
       {text w.path} AS path, w.idx, {item-name i} AS channel, w.bytes, {time w.time} AS time, {id w.run} AS run
FROM ({entries}) w JOIN tk_v_threads t ON t.number = w.thread
LEFT JOIN tk_items i ON i.thread = w.thread AND i.lane = 0 AND i.n = w.n;
CREATE VIEW tk_v_sizes AS
WITH held AS (
    SELECT thread, lane, count(*) AS items, sum(length(payload)) AS stored FROM tk_items GROUP BY thread, lane
), wrote AS (
    SELECT w.thread, w.n, count(*) AS writes, sum(w.bytes) AS written FROM ({entries}) w GROUP BY w.thread, w.n
), parts AS (
    SELECT i.thread, 'channel' AS part, {item-name i} AS channel, coalesce(h.items, 0) AS items,
           coalesce(h.stored, 0) AS stored, coalesce(o.writes, 0) AS writes, coalesce(o.written, 0) AS written
    FROM tk_items i LEFT JOIN held h ON h.thread = i.thread AND h.lane = i.n + 3
    LEFT JOIN wrote o ON o.thread = i.thread AND o.n = i.n
    WHERE i.lane = 0 AND (h.items > 0 OR o.writes > 0)
    UNION ALL
    SELECT thread, 'shared', NULL, sum(items), sum(stored), 0, 0 FROM held WHERE lane < 3 GROUP BY thread
    UNION ALL
    SELECT t.thread, 'rows', NULL, 0, t.bytes - coalesce(sum(h.stored), 0), 0, 0
    FROM tk_threads t LEFT JOIN held h ON h.thread = t.thread GROUP BY t.thread, t.bytes
)
SELECT p.thread AS number, t.tenant, t.kind, t.thread, p.part, p.channel, p.items, p.stored,
       p.writes, p.written
FROM parts p JOIN tk_v_threads t ON t.number = p.thread;
CREATE VIEW tk_v_activity AS
SELECT number, tenant, kind, thread, ns, date(time) AS day, node, channel, count(*) AS writes, sum(bytes) AS bytes,
       avg(bytes) AS average
FROM tk_v_writes GROUP BY number, tenant, kind, thread, ns, date(time), node, channel;

-- threads-in-view: the columns of tk_v_threads
SELECT t.thread AS number, {text t.tenant} AS tenant, t.kind, {text t.id} AS thread, t.status, t.checkpoints, t.writes,
       t.bytes, {time t.created} AS created, {time t.updated} AS updated, {text t.top} AS checkpoint, {id t.run} AS run,
       t.step, t.source

-- view-of-checkpoints: tk_v_checkpoints
CREATE VIEW tk_v_checkpoints AS
SELECT t.number, t.tenant, t.kind, t.thread, {text c.ns} AS ns, {text c.id} AS checkpoint,
       {id c.parent} AS parent, {id c.run} AS run, c.step, c.source, {time c.time} AS time, c.hidden,
       length(c.body) AS body_bytes
FROM tk_checkpoints c JOIN tk_v_threads t ON t.number = c.thread;

-- view-of-threads-with-description: tk_v_threads since version 8
CREATE VIEW tk_v_threads AS
{threads-in-view}, t.description
FROM tk_threads t;

-- schema-4: views
CREATE VIEW tk_v_threads AS
{threads-in-view}
FROM tk_threads t;
{view-of-checkpoints}
{views-of-writes}
